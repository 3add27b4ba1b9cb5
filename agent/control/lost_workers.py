"""Lost workers: whose fault it is that a process of Spark's was killed, or had no memory left, as a table was written.

    written ──a process is lost, with this table alone──► written apart from all others
                                                            ├──success──► written
                                                            └──lost again and again──► the capture's fault: the
                                                               changefeed's work goes to others, where the table is a
                                                               suspect (``owner.feed.holds.suspects``)
    a suspect ──a process is lost, again and again──► the table's fault: it is held

So a capture with too little memory, or a machine whose kernel kills, holds no table; and a table that needs more than
any capture has does not wander. On the only capture of a cluster, it is the table's fault at once: nobody else can try.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace

from agent.control.runtime import FlushLimits
from agent.errors import WorkerLostError
from reactor.errors import Scope, WeirError
from reactor.records.changefeed import RunningError

#: consecutive losses after which the owner is notified
LOSSES_MAX = 3
_OF_CAPTURE = (
    "see in the kernel's log whether memory ran out; give this capture more memory, or let its machine do less; other "
    "captures take over"
)
_OF_TABLE = (
    "see in the kernel's log whether memory ran out, and what crashed; give captures more memory or leave the table out"
)


@dataclass(slots=True)
class LostWorkers:
    """``is_alone``: whether the cluster has no other capture. ``tables``: those whose last job ended a process."""

    is_alone: Callable[[], bool]
    tables: set[int] = field(default_factory=set)

    def attribute(self, error: WeirError, table_id: int, suspects: Collection[int]) -> None:
        """Give an error of a job that wrote only this table its scope.

        ``suspects``: tables that have ended processes, or captures, elsewhere.
        """
        self.tables.add(table_id)
        error.table_id = table_id
        error.scope = Scope.TABLE if table_id in suspects or self.is_alone() else Scope.CAPTURE
        cure = _OF_TABLE if error.scope is Scope.TABLE else _OF_CAPTURE
        error.args = (f"{error}; {cure}",)

    def apart(self, limits: FlushLimits) -> FlushLimits:
        """Return the limits with these tables as suspects: they are written after all others, and recorded exactly."""
        return replace(limits, suspects=limits.suspects | self.tables) if self.tables else limits


def is_loss(error: WeirError) -> bool:
    """Return whether a process was lost."""
    return error.code == WorkerLostError.code


def is_single(error: RunningError) -> bool:
    """Return whether only this table is delayed by it, and its failures are counted."""
    return error.is_of_table or (error.code == WorkerLostError.code and error.table_id is not None)

"""Verdict: what one round of holds changes, bounded by what one transaction takes."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from reactor import patches
from reactor.effects import Commit, Effect
from reactor.records.base import Record
from reactor.records.changefeed import RunningError

#: of one transaction, which changes other records too: etcd takes 128 operations and 1.5 MiB
_CHANGES_MAX, _BYTES_MAX = 80, 512 << 10
#: tables that an operator has tried again, in one transaction
_AGAIN_MAX = 40


@dataclass(slots=True)
class Verdict:
    """The result of one round. ``errors``: of the changefeed."""

    changes: list[patches.Patch] = field(default_factory=list)
    errors: list[RunningError] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)
    touched: set[int] = field(default_factory=set)
    #: bytes of the changed records
    size: int = 0

    @property
    def is_full(self) -> bool:
        """Whether they are enough for one transaction: other tables wait for the next round."""
        return len(self.changes) >= _CHANGES_MAX or self.size >= _BYTES_MAX

    def put(self, change: patches.Patch, after: Record | None) -> None:
        self.changes.append(change)
        self.size += len(after.encode()) if after is not None else 0


def in_parts(changes: Sequence[patches.Patch]) -> list[Effect]:
    """Commit changes of tables that do not depend on each other, and are more than one transaction takes."""
    return [Commit(patches.group(changes[at : at + _AGAIN_MAX])) for at in range(0, len(changes), _AGAIN_MAX)]

"""Owner's questions: everything the owner asks of sources and sinks. Each class names the type of its answer.

A new one costs three files: its class here, the machine that asks it and takes the answer (``handle_answer``), and its
handler in ``capture.member.member_data_plane``.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from reactor.ids import TableSpan, Ts
from reactor.questions import Answered, Question
from reactor.records.changefeed import DdlRecord, TableRecord


class Asks(Protocol):
    """A machine that asks questions."""

    def handle_answer(self, answer: Answered[Any]) -> None:
        """Take the answer, if it is one to a question of this machine that still matters."""
        ...


@dataclass(frozen=True, slots=True)
class ReleaseSource(Question[None]):
    """Remove what the changefeed left at its source (slot, publication) and in the change log."""


@dataclass(frozen=True, slots=True)
class TableRead:
    """``version``: the sink's own name for what readers see; ``committed_ts``: the furthest span in it, 0 unknown."""

    table: str
    version: str
    committed_ts: Ts


@dataclass(frozen=True, slots=True)
class ReadPositions(Question[tuple[TableRead, ...]]):
    """Which version of each table the sink's readers see, and how far its spans are in that version.

    ``ts``: where the owner holds the spans while it asks.
    """

    tables: tuple[TableRecord, ...]
    spans: tuple[TableSpan, ...]
    ts: Ts


@dataclass(frozen=True, slots=True)
class RepartitionTable(Question[Ts]):
    """Let the sink record that ``table`` consists of the spans ``new``, which are at ``ts``, and not of ``old``.

    ``number`` orders the repartitions of one table. The answer is ``ts`` itself when it is done; a larger Ts means that
    an old span is recorded there, and that nothing was changed.
    """

    table: TableRecord
    old: tuple[TableSpan, ...]
    new: tuple[TableSpan, ...]
    ts: Ts
    number: int

    @property
    def subject(self) -> int:
        return self.table.table_id


@dataclass(frozen=True, slots=True)
class ApplySchema(Question[None]):
    """Let the sink's tables become what ``record`` says; all their spans are right before it.

    The record may be a part of the stored one: of the tables that are asked for. ``tables``: those of them that the
    sink has, under the names that they have there: one that was held may have got others at its source since.
    """

    #: a table may have to be rewritten
    deadline_s: ClassVar[float] = 6 * 3600.0

    record: DdlRecord
    tables: tuple[TableRecord, ...] = ()

    @property
    def subject(self) -> tuple[Ts, frozenset[int]]:
        return self.record.ts, self.record.table_ids

"""Owner's questions: all requests of the owner to sources and sinks. Each class names the type of its answer.

A new one needs three files: its class here, the state machine that asks it and processes the answer
(``handle_answer``), and its handler in ``capture.member.member_data_plane``.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from reactor.ids import TableSpan, Ts
from reactor.questions import Answered, Question
from reactor.records.tables.schema_change import DdlRecord
from reactor.records.tables.table import TableRecord


class Asks(Protocol):
    """A state machine that asks questions."""

    def handle_answer(self, answer: Answered[Any]) -> None:
        """Process the answer, if it is to a current question of this state machine."""
        ...


@dataclass(frozen=True, slots=True)
class ReleaseSource(Question[None]):
    """Remove the changefeed's data at its source (slot, publication) and its change log."""


@dataclass(frozen=True, slots=True)
class TableRead:
    """``version``: the sink's own name for what readers see; ``committed_ts``: the furthest span in it, 0 unknown."""

    table: str
    version: str
    committed_ts: Ts


@dataclass(frozen=True, slots=True)
class ReadPositions(Question[tuple[TableRead, ...]]):
    """Read which version of each table the sink's readers see, and its spans' positions in that version.

    ``ts``: where the owner holds the spans meanwhile.
    """

    tables: tuple[TableRecord, ...]
    spans: tuple[TableSpan, ...]
    ts: Ts


@dataclass(frozen=True, slots=True)
class RepartitionTable(Question[Ts]):
    """Let the sink record that ``table`` consists of the spans ``new``, which are at ``ts``, instead of ``old``.

    ``number`` orders the repartitions of one table. The answer is ``ts`` on success; a larger Ts is that of an old
    span, and means that nothing was changed.
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
    """Apply the schema change ``record`` to the sink's tables, whose spans have all reached it.

    The record may be a part of the stored one, for some of its tables. ``tables``: those that the sink has, under their
    names there: a held table may have been renamed at its source since.
    """

    #: a table may have to be rewritten
    deadline_s: ClassVar[float] = 6 * 3600.0

    record: DdlRecord
    tables: tuple[TableRecord, ...] = ()

    @property
    def subject(self) -> tuple[Ts, frozenset[int]]:
        return self.record.ts, self.record.table_ids


@dataclass(frozen=True, slots=True)
class MarkLeft(Question[None]):
    """Let the sink mark ``table`` as no longer replicated since ``time`` (Unix seconds); idempotent. If it has been
    replaced at a later position than ``ts``, it is not marked."""

    table: TableRecord
    ts: Ts
    time: float

    @property
    def subject(self) -> int:
        return self.table.table_id


@dataclass(frozen=True, slots=True)
class MeasureTables(Question[Mapping[int, int]]):
    """Estimate how many rows ``tables`` have at the source, by id; tables that are gone there are left out."""

    joins: ClassVar[bool] = True

    tables: tuple[TableRecord, ...]


@dataclass(frozen=True, slots=True)
class TableCopied:
    """``table``: its record as copied; ``start_ts`` is the copy's position. ``rows``: of the copy."""

    table: TableRecord
    rows: int


@dataclass(frozen=True, slots=True)
class CopyTable(Question[TableCopied]):
    """Stage all rows of ``table``, at a position not before now.

    ``number``: of this copy; ``epoch``: of this order, larger than those of every previous owner. ``log``: what the
    changefeed's source reported of the log's position. ``rows_per_second``: to read at most. ``together``: the table is
    small, and may be read under one snapshot with others that are asked for meanwhile.
    """

    deadline_s: ClassVar[float] = 24 * 3600.0
    joins: ClassVar[bool] = True

    table: TableRecord
    number: int
    epoch: int
    log: str = field(compare=False)
    rows_per_second: int | None = None
    together: bool = field(default=False, compare=False)

    @property
    def subject(self) -> int:
        return self.table.table_id


@dataclass(frozen=True, slots=True)
class PlaceTable(Question[None]):
    """Let the sink replace the table by the copy ``number``, with ``spans`` at the copy's position; idempotent.
    ``cut``: the number of the repartition that made the spans, 0 for none."""

    deadline_s: ClassVar[float] = 3600.0

    table: TableRecord
    spans: tuple[TableSpan, ...]
    number: int
    cut: int = 0

    @property
    def subject(self) -> int:
        return self.table.table_id


@dataclass(frozen=True, slots=True)
class DropCopy(Question[None]):
    """Remove the manifest of the copy ``number`` of a table; its staged files belong to the sink."""

    table_id: int
    number: int

    @property
    def subject(self) -> tuple[int, int]:
        return self.table_id, self.number

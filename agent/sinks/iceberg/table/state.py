"""Iceberg table state: whose a table is, the Ts of its spans, and what others have done to it since our last commit.

Two properties of the table have it, and every commit of ours writes them together with the data: ``weir.owner``, the
changefeed and the write mode, and ``weir.state``, the rest. A property outlives the expiry of snapshots by others,
which a snapshot's summary does not; the summary says the same of its own commit (``weir.changefeed``,
``weir.records``).

The state names our newest snapshot. The table's current one must be that, or come after it through snapshots that leave
the rows as they are (operation ``replace``: compaction and manifest rewriting by others). Otherwise rows have been
changed, or the table was set back: it is held. So it is if its columns are not those of our commit.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, Self

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot

from agent.errors import RESYNC, TableForeignError
from agent.ports.sink import FlushTask
from agent.sinks.common import span_records
from agent.sinks.common.row_marks import NO_MARKS, Marks
from agent.sinks.common.span_records import RETIRED
from agent.sinks.iceberg.table import schema
from agent.sinks.iceberg.table.files import VECTORS_VERSION
from reactor.ids import TableSpan, Ts
from reactor.records.changefeed import SinkMode

OWNER: Final = "weir.owner"
STATE: Final = "weir.state"
#: when files were last rewritten, Unix milliseconds: a property stays when the snapshot expires
COMPACTED: Final = "weir.compacted"
SUMMARY_OWNER: Final = "weir.changefeed"
SUMMARY_RECORDS: Final = "weir.records"


@dataclass(frozen=True, slots=True)
class TableOwner:
    """The changefeed that writes a table, and the mode. ``marks``: the columns that its sink adds; the table does not
    say."""

    changefeed: str
    mode: SinkMode
    marks: Marks = field(default=NO_MARKS, compare=False)

    @property
    def is_changelog(self) -> bool:
        return self.mode is SinkMode.CHANGELOG

    @property
    def is_history(self) -> bool:
        return self.mode is SinkMode.HISTORY

    def to_json(self) -> str:
        return json.dumps({"changefeed": self.changefeed, "mode": self.mode.value})

    @classmethod
    def of(cls, table: Table) -> Self | None:
        """None if the table is not Weir's."""
        try:
            named = json.loads(table.properties[OWNER])
            return cls(named["changefeed"], SinkMode(named["mode"]))
        except (ValueError, KeyError, TypeError):
            return None

    def refuse_foreign(self, table: Table, place: object) -> None:
        """:raises TableForeignError: the table is not this owner's."""
        owner = TableOwner.of(table)
        if owner is None:
            raise TableForeignError(
                f"{place} is an Iceberg table that is not Weir's; choose another catalog or warehouse"
            )
        if owner.changefeed != self.changefeed:
            raise TableForeignError(
                f"{place} is written by changefeed {owner.changefeed!r}; choose another catalog or warehouse"
            )
        if owner.mode != self.mode:
            raise TableForeignError(
                f"{place} is written in {owner.mode} mode; choose that mode, or another catalog or warehouse"
            )


@dataclass(frozen=True, slots=True)
class State:
    """``records``: each span's Ts. ``ddl``: the Ts of the newest schema change, ``cut``: the number of the newest
    repartition, ``copy``: the Ts of the newest copy, with its ``copy_number``, ``moved``: of the newest change of name,
    ``placed``: of the table's beginning. ``dropped``: when the table was dropped at its source, ``left``: when it left
    its changefeed (``left_at``: in words); 0: neither. ``former_keys``: those of a changelog, as text. ``snapshot``,
    ``columns``: what our newest commit left."""

    records: Mapping[str, int] = field(default_factory=dict)
    ddl: int = 0
    cut: int = 0
    copy: int = 0
    copy_number: int = 0
    moved: int = 0
    placed: int = 0
    dropped: int = 0
    left: int = 0
    left_at: str = ""
    snapshot: int = 0
    columns: str = ""
    former_keys: str = ""

    @classmethod
    def of(cls, table: Table) -> Self:
        text = table.properties.get(STATE)
        try:
            fields: dict[str, Any] = json.loads(text) if text else {}
            return cls(**{name: value for name, value in fields.items() if name in cls.__slots__})
        except (ValueError, TypeError) as error:
            raise TableForeignError(
                f"the property {STATE} of {'.'.join(table.name())} was damaged; {RESYNC}"
            ) from error

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    def recorded_ts(self, span: TableSpan) -> Ts | None:
        """Return the recorded Ts, which may be ``RETIRED`` and thus not a position."""
        found = self.records.get(str(span))
        return None if found is None else Ts(found)

    def tells_of(self, table_id: int) -> bool:
        """Return whether it has records of this table."""
        return any(span.startswith(f"{table_id}:") for span in self.records)

    def without_spans(self) -> Self:
        """Refuse whoever writes a span that it has."""
        return replace(self, records=dict.fromkeys(self.records, int(RETIRED)))

    def at(self, records: Mapping[TableSpan, int]) -> Self:
        return replace(self, records={**self.records, **{str(span): int(ts) for span, ts in records.items()}})

    def written(self, tasks: Sequence[FlushTask]) -> Self:
        return self.at({task.span: task.to_ts for task in tasks})

    def is_written(self, task: FlushTask) -> bool:
        """See ``span_records.is_written``."""
        return span_records.is_written(self.recorded_ts(task.span), task)


def check_history(table: Table, place: object) -> None:
    """:raises TableForeignError: other writers have changed the table since our last commit."""
    state = State.of(table)
    if not state.snapshot:
        return
    if table.metadata.format_version not in (2, VECTORS_VERSION):
        raise TableForeignError(
            f"{place} was upgraded to format version {table.metadata.format_version}, which Weir does not "
            f"write; {RESYNC}"
        )
    _follow(table, state.snapshot, place)
    if schema.fingerprint(table.schema()) != state.columns:
        raise TableForeignError(f"the columns of {place} were changed by another writer; change them back, or {RESYNC}")


def _follow(table: Table, ours: int, place: object) -> None:
    """Check each snapshot from the current one back to ``ours``, which others may have removed since."""
    current: int | None = table.metadata.current_snapshot_id
    while current != ours:
        snapshot = None if current is None else table.metadata.snapshot_by_id(current)
        if snapshot is None:
            raise TableForeignError(
                f"the current snapshot of {place} does not come after {ours}, our newest: the table was set back or "
                "replaced, or others have removed the snapshots between; set it to that one if it has it still and "
                f"resume the changefeed, or {RESYNC}"
            )
        if _operation(snapshot) is not Operation.REPLACE:
            raise TableForeignError(
                f"{place} was changed by another writer: snapshot {snapshot.snapshot_id} is none of ours; roll the "
                f"table back to snapshot {ours} and resume the changefeed, or {RESYNC}"
            )
        current = snapshot.parent_snapshot_id


def _operation(snapshot: Snapshot) -> Operation | None:
    return None if snapshot.summary is None else snapshot.summary.operation

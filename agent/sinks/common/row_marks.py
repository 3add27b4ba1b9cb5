"""Row marks: columns that a sink adds to upserted tables, by options of its URI.

=====================  ==============================================================================================
``_weir_deleted``      ``soft_delete=true``: a row that the source has deleted stays, with its last values, and true
                       here
``_weir_synced_at``    ``synced_at=true``: when the row was last written to the sink, by the clock of the executor
=====================  ==============================================================================================

In a table from before the option was set, NULL means "not deleted" and "not known". The names are reserved in every
upserted table of a lakehouse sink, so whoever reads one back knows what they mean.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from agent.errors import RESYNC, SinkUriError, TableHeldError
from agent.rows.changes import Changes
from agent.rows.fold import NetChanges
from agent.rows.unify import Mask
from agent.sinks.common.forms import Forms
from agent.sinks.common.history import columns as history
from reactor.ids import Ts
from reactor.records.changefeed import SinkMode

DELETED: Final = "_weir_deleted"
SYNCED_AT: Final = "_weir_synced_at"
NAMES: Final = frozenset({DELETED, SYNCED_AT})
_MOMENT: Final = pa.timestamp("us", "UTC")


class MarkOptions(Protocol):
    """The options of a sink's URI that ask for marks: ``"true"`` or ``"false"``."""

    @property
    def soft_delete(self) -> str: ...

    @property
    def synced_at(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Marks:
    """The columns that a sink adds. ``history``: those of history tables (``agent.sinks.common.history``)."""

    soft_delete: bool = False
    synced_at: bool = False
    history: bool = False

    @classmethod
    def of(cls, options: MarkOptions, mode: SinkMode) -> "Marks":
        """:raises SinkUriError: an option is not one of this mode."""
        wanted = cls(options.soft_delete == "true", options.synced_at == "true")
        wanted.refuse_unless_upsert(mode)
        return replace(wanted, history=mode is SinkMode.HISTORY)

    @property
    def fields(self) -> list[pa.Field]:
        if self.history:
            return list(history.FIELDS)
        deleted = [pa.field(DELETED, pa.bool_())] if self.soft_delete else []
        return [*deleted, *([pa.field(SYNCED_AT, _MOMENT)] if self.synced_at else [])]

    def refuse_unless_upsert(self, mode: SinkMode) -> None:
        """:raises SinkUriError: the tables are not upserted."""
        if self.fields and mode is not SinkMode.UPSERT:
            option = "soft_delete" if self.soft_delete else "synced_at"
            raise SinkUriError(f"option {option}=true is one of upserted tables; leave it out, or use sink mode upsert")

    def schema(self, stored: pa.Schema) -> pa.Schema:
        """Return a table's columns with ours; ``stored``: those of the source, as they are stored.

        :raises TableHeldError: a source column has the name of one of ours.
        """
        refuse_reserved(stored.names)
        if self.history:
            history.refuse_taken(stored.names)
        return pa.schema([*stored, *self.fields])

    def snapshot_rows(self, rows: pa.Table, ts: Ts) -> pa.Table:
        """Return rows of a snapshot at ``ts``, as they are stored, with our columns."""
        return history.snapshot_rows(rows, ts) if self.history else self.rows(rows)

    def appended_rows(self, part: Changes, forms: Forms) -> pa.Table:
        """Return the rows of a table without a key, all inserted, as they are stored, with our columns."""
        if self.history:
            return history.appended_rows(part, forms)
        return self.rows(forms.table(pa.Table.from_batches([part.after])))

    def rows(self, rows: pa.Table, deleted: Mask | None = None) -> pa.Table:
        """Return rows, as they are stored, with our columns. ``deleted``: the rows that are; None: none is."""
        refuse_reserved(rows.schema.names)
        if self.soft_delete:
            marks = np.zeros(rows.num_rows, np.bool_) if deleted is None else deleted
            rows = rows.append_column(DELETED, pa.array(marks, pa.bool_()))
        if self.synced_at:
            rows = rows.append_column(pa.field(SYNCED_AT, _MOMENT), _now(rows.num_rows))
        return rows

    def stored(self, net: NetChanges, *, forms: Forms) -> pa.Table:
        """Return the upserts of ``net`` as they are stored, with our columns."""
        assert (net.deleted is not None) == self.soft_delete or not net.upserts.num_rows, "folded by the same marks"
        return self.rows(forms.table(net.upserts), net.deleted)

    def deleted(self, rows: pa.Table) -> pa.Table:
        """Return stored rows, marked as deleted now."""
        assert self.soft_delete, "otherwise they are removed"
        values: dict[str, Any] = {DELETED: pa.array(np.ones(rows.num_rows, np.bool_))}
        if self.synced_at:
            values[SYNCED_AT] = _now(rows.num_rows)
        for item in self.fields:
            at = rows.schema.get_field_index(item.name)
            column = values[item.name]
            rows = rows.append_column(item, column) if at < 0 else rows.set_column(at, item, column)
        return rows

    def refuse_truncate(self, table: str) -> None:
        """:raises TableHeldError: a table without a key was truncated, and its rows would have to stay."""
        if self.soft_delete or self.history:
            what = "sink mode history" if self.history else "soft_delete=true"
            raise TableHeldError(
                f"{table} has no key and was truncated, which {what} cannot follow; give it a primary key, or {RESYNC}"
            )

    def refuse_left(self, stored: Sequence[str], *, table: str) -> None:
        """:raises TableHeldError: the table has deleted rows, and this sink does not know of them."""
        if DELETED in stored and not self.soft_delete:
            raise TableHeldError(
                f"{table} has rows that are marked as deleted; set soft_delete=true in the sink URI again, or {RESYNC}"
            )


NO_MARKS: Final = Marks()


def refuse_reserved(names: Sequence[str]) -> None:
    """:raises TableHeldError: a source column has the name of one of ours."""
    for name in names:
        if name.lower() in NAMES:
            raise TableHeldError(
                f"source column {name} has the name of a column that sinks add to upserted tables; rename it, or leave "
                "it out by a column selector"
            )


def without_deleted(rows: pa.Table) -> pa.Table:
    """Return the rows of an upserted table that its source has, without ``_weir_deleted``."""
    if DELETED not in rows.schema.names:
        return rows
    return rows.filter(is_live(rows)).drop_columns([DELETED])


#: columns that distinguish the rows that the source has from deleted and ended ones
FILTERED: Final = (DELETED, history.IS_CURRENT)


def is_of_source(rows: pa.Table | pa.RecordBatch) -> pa.Array | pa.ChunkedArray:
    """Return which rows the source has now; ``rows`` has one of ``FILTERED``."""
    return history.is_current(rows) if history.IS_CURRENT in rows.schema.names else is_live(rows)


def source_state(rows: pa.Table) -> pa.Table:
    """Return the rows that the source has now, without the columns that tell so."""
    if history.IS_CURRENT in rows.schema.names:
        rows = rows.filter(history.is_current(rows)).drop_columns([history.IS_CURRENT])
    return without_deleted(rows)


def source_rows(rows: pa.Table) -> pa.Table:
    """Return the rows and columns of an upserted table that its source has."""
    rows = without_deleted(rows)
    return rows.drop_columns([name for name in rows.schema.names if name in NAMES])


def source_names(names: Sequence[str], mode: SinkMode) -> tuple[str, ...]:
    """Return the columns of a table that are not ours."""
    return tuple(name for name in names if mode is not SinkMode.UPSERT or name not in NAMES)


def is_live(rows: pa.Table | pa.RecordBatch) -> pa.Array | pa.ChunkedArray:
    return pc.invert(pc.fill_null(rows.column(DELETED), False))


def _now(count: int) -> pa.Array:
    return pa.repeat(pa.scalar(datetime.now(UTC), _MOMENT), count)

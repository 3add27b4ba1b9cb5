"""Schema change records: what one transaction of the source changes of tables, for the owner and the sinks."""

from collections.abc import Collection, Iterable
from enum import StrEnum
from functools import cached_property
from typing import Self

from pydantic import Field

from reactor.ids import Ts
from reactor.records.base import CommitTs, Record, TableId, later
from reactor.records.tables.table import TableRecord


class SchemaChangeKind(StrEnum):
    """The kind of a schema change of one table. ``ALTER``: columns or key; also together with a new name. ``HOLD``:
    from here on the source cannot follow the table exactly; nothing of it is written, nor asked of the sink."""

    CREATE = "create"
    ALTER = "alter"
    RENAME = "rename"
    DROP = "drop"
    HOLD = "hold"


class TableChange(Record):
    """The effect of one schema change on one table.

    ``table``: the table afterwards, None if it is dropped. ``before`` and ``after``: JSON of
    ``agent.rows.schema.TableSchema``, empty if there is none. ``renames``: new name → old name of columns; ``added``:
    new columns, even if there was another one of that name. ``fills``: their values in existing rows (as text of the
    source); other new columns are NULL there. ``reason``: one line of a ``HOLD``, cause and cure; it has the table as
    it was, under its new name, without ``before`` and ``after``. ``context``: how values were converted.
    """

    kind: SchemaChangeKind
    table_id: TableId
    table: TableRecord | None = None
    before: str = ""
    after: str = ""
    renames: dict[str, str] = Field(default_factory=dict)
    added: tuple[str, ...] = ()
    fills: dict[str, str] = Field(default_factory=dict)
    reason: str = later("")
    #: of a ``HOLD`` with a cause of its own (``reactor.records.tables.held``)
    code: str = later("")
    context: dict[str, str] = later({})

    @property
    def is_hold(self) -> bool:
        return self.kind is SchemaChangeKind.HOLD


class DdlRecord(Record):
    """A schema change found in the log: the head is at ``ts`` or behind it exactly if this record exists.

    ``ts`` is the commit of the change. Everything below ``ts`` is written under the old schema, and must be in the sink
    before the sink is changed; the rest, and all of its own transaction, under the new one. It has all changes of that.
    """

    ELEMENTS = "changes"
    ts: CommitTs
    changes: tuple[TableChange, ...] = ()
    statement: str = ""
    #: the sink has it, and the tables' records say so
    done: bool = False
    #: when it is done: tables of it that were held then; for them it is not
    left: tuple[TableId, ...] = later(())
    #: tables of it whose spans were all at ``barrier_ts`` when the sink was asked to move them
    begun: tuple[TableId, ...] = later(())
    #: schema and name of tables that were to join, and are gone from the source; until the owner has taken note
    never_joined: tuple[tuple[str, str], ...] = later((), format=5)

    @cached_property
    def table_ids(self) -> frozenset[int]:
        return frozenset(change.table_id for change in self.changes)

    @cached_property
    def pending_ids(self) -> frozenset[int]:
        """The tables for which it is pending: they may not be written past it."""
        return frozenset(self.left) if self.done else self.table_ids

    @cached_property
    def dropped_ids(self) -> frozenset[int]:
        """The tables that do not exist behind it."""
        last = {change.table_id: change for change in self.changes}
        return frozenset(id for id, change in last.items() if change.kind is SchemaChangeKind.DROP)

    @cached_property
    def holds(self) -> tuple[TableChange, ...]:
        """The tables that the source cannot follow from here on."""
        return tuple(change for change in self.changes if change.is_hold)

    @cached_property
    def alterations(self) -> tuple[TableChange, ...]:
        """The changes to request from the sink."""
        return tuple(change for change in self.changes if not change.is_hold)

    @property
    def barrier_ts(self) -> Ts:
        """How far its tables' spans may be written before it is done, which is where all of them must be for it."""
        return Ts(self.ts - 1)

    def done_for(self, tables: Collection[int]) -> Self:
        """Return it as done for ``tables``, or without them if they are gone."""
        return self.with_(done=True, left=tuple(sorted(self.pending_ids.difference(tables))))


def pending_tables(changes: Iterable[DdlRecord]) -> dict[int, TableRecord | None]:
    """Return, by table id, what the pending changes make of the tables that they concern; None: it is dropped.
    ``changes``: in order."""
    return {
        change.table_id: change.table
        for record in changes
        for change in record.changes
        if change.table_id in record.pending_ids
    }

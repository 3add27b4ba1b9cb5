"""Findings: what has become of a stream's tables up to a position, from the stream and from the catalog. Pure.

The stream's own changes are taken in their order. What the catalog adds - a table that is lost from somewhere on, one
that is gone - is put at its place between them; a table that is held has no changes from there on but other names.
"""

from collections.abc import Collection, Mapping, Sequence

from agent.rows.schema import TableSchema
from agent.rows.schema_change import KnownTable
from agent.sources.common import schema_diff
from agent.sources.postgres.publication.published import Catalog
from agent.sources.postgres.server.sql import is_text, shown
from reactor.ids import Ts
from reactor.records.tables.schema_change import DdlRecord, SchemaChangeKind, TableChange
from reactor.records.tables.table import TableRecord


class Findings:
    """``old``: the tables as they were. ``known``: as they are in the end. ``held``: tables that are lost;
    ``newcomers``: names of those that the stream never had."""

    def __init__(
        self,
        ddl: Sequence[DdlRecord],
        known: Mapping[int, TableRecord],
        held: Collection[int],
        newcomers: Mapping[int, tuple[str, str]] | None = None,
    ) -> None:
        self.known = dict(known)
        self.held = set(held)
        self.newcomers = dict(newcomers or {})
        #: new tables, and where they begin
        self.created: dict[int, Ts] = {}
        #: new tables that the stream does not take in, where it named them, and why
        self.refused: list[tuple[TableRecord, Ts, str]] = []
        self._changes: dict[Ts, list[TableChange]] = {}
        self._never_joined: dict[Ts, tuple[tuple[str, str], ...]] = {}
        for record in ddl:
            for change in record.changes:
                if self._counts(change):
                    self._take(change, record.ts)
                elif change.is_hold and change.table is not None and change.table_id not in self.held:
                    self.refused.append((change.table, record.ts, change.reason))
        self.old = {table: record for table, record in known.items() if table in self.known}

    @property
    def flowing(self) -> dict[int, TableRecord]:
        """The tables, as they are in the end, that are not lost."""
        return {table: record for table, record in self.known.items() if table not in self.held}

    def records(self) -> tuple[DdlRecord, ...]:
        gone = self._never_joined
        all_changes = {**dict.fromkeys(gone, ()), **self._changes}
        return tuple(
            DdlRecord(ts=ts, changes=tuple(changes), never_joined=gone.get(ts, ()))
            for ts, changes in sorted(all_changes.items())
            if changes or ts in gone
        )

    def hold(self, record: TableRecord, ts: Ts, reason: str, *, code: str = "") -> None:
        """Hold the table: its changes from ``ts`` on are dropped."""
        table_id = record.table_id
        self.forget(table_id, since=ts)
        self.held.add(table_id)
        if table_id in self.created:
            del self.created[table_id], self.known[table_id]
        if table_id not in self.known:
            self.newcomers[table_id] = record.schema_name, record.name
        change = TableChange(
            kind=SchemaChangeKind.HOLD, table_id=table_id, table=record, reason=shown(reason), code=code
        )
        self._changes.setdefault(ts, []).append(change)

    def name_held(self, now: Catalog, ts: Ts) -> None:
        """Give held tables the names that they have at the source. The stream names a table only where it declares it
        again; a partitioned one not even then, if the row's partition is declared already."""
        for table in self.held.intersection(self.known, now.tables):
            schema_name, name = now.tables[table].schema_name, now.tables[table].name
            if is_text(schema_name, name):
                self._name(table, schema_name, name, ts)

    def _name(self, table_id: int, schema_name: str, name: str, ts: Ts) -> None:
        """Record at ``ts`` the name that a held table has, if it is another one."""
        known = self.known[table_id]
        renamed = known.named(schema_name, name)
        if renamed == known:
            return
        self.known[table_id] = renamed
        change = TableChange(
            kind=SchemaChangeKind.HOLD,
            table_id=table_id,
            table=renamed,
            reason=f"table {schema_name}.{name} was held already, as {known.schema_name}.{known.name}",
        )
        self._changes.setdefault(ts, []).append(change)

    def join(self, table: KnownTable, ts: Ts) -> None:
        """A table is replicated from here on, and copied."""
        self.known[table.record.table_id] = table.record
        self.held.discard(table.record.table_id)
        self.newcomers.pop(table.record.table_id, None)
        self._changes.setdefault(ts, []).append(schema_diff.created(table))

    def withdraw(self, table_id: int, ts: Ts) -> None:
        """A newcomer is not held any more."""
        self.held.discard(table_id)
        schema_name, name = self.newcomers.pop(table_id)
        schema = TableSchema(table_id, schema_name, name, ())
        change = TableChange(kind=SchemaChangeKind.DROP, table_id=table_id, before=schema.to_json())
        self._changes.setdefault(ts, []).append(change)

    def give_up(self, names: tuple[tuple[str, str], ...], ts: Ts) -> None:
        """Tables that were to join are gone from the source."""
        if names:
            self._never_joined[ts] = names

    def drop(self, table_id: int, ts: Ts) -> None:
        """Drop the table: it is gone from the source. Of a new one nothing is left to be shown."""
        self.held.discard(table_id)
        if table_id in self.created:
            self.forget(table_id, since=self.created.pop(table_id))
            del self.known[table_id]
            return
        change = schema_diff.dropped(KnownTable(self.known.pop(table_id), None))
        self._changes.setdefault(ts, []).append(change)

    def forget(self, table_id: int, *, since: Ts) -> None:
        """Its changes from ``since`` on are none."""
        for ts, changes in self._changes.items():
            if ts >= since:
                self._changes[ts] = [change for change in changes if change.table_id != table_id]

    def _counts(self, change: TableChange) -> bool:
        """Return whether the change counts: not if its table is already held, or was never replicated."""
        if change.table_id in self.held:
            return change.table is None and change.table_id in self.known
        return change.kind is SchemaChangeKind.CREATE or change.table_id in self.known

    def _take(self, change: TableChange, ts: Ts) -> None:
        self._changes.setdefault(ts, []).append(change)
        if change.table is None:
            del self.known[change.table_id]
            self.created.pop(change.table_id, None)
            self.held.discard(change.table_id)
            return
        if change.is_hold:
            self.held.add(change.table_id)
            return
        self.known[change.table_id] = change.table
        if change.kind is SchemaChangeKind.CREATE:
            self.created[change.table_id] = ts


def schemas_after(ddl: Sequence[DdlRecord], kind: SchemaChangeKind | None = None) -> dict[int, TableSchema]:
    """Return tables as the last changes of them, of this kind if given, have left them."""
    changes = (change for record in ddl for change in record.changes)
    wanted = (change for change in changes if change.after and kind in (None, change.kind))
    return {change.table_id: TableSchema.from_json(change.after) for change in wanted}

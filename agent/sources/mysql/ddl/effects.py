"""Effects of statements: begins, changes, holds and forgets replicated tables, and records that for one Ts.

Ids are permanent: a table keeps its id under every name; a new table gets another id while its name's is in use.
"""

from collections.abc import Collection
from dataclasses import replace

import structlog

from agent.rows.schema import TableSchema
from agent.rows.schema_change import KnownTable
from agent.sources.common.schema_diff import Columns
from agent.sources.mysql.ddl import reasons, shown
from agent.sources.mysql.ddl.changing import ChangingTables
from agent.sources.mysql.ddl.environment import Server, Shown
from agent.sources.mysql.ddl.event import DdlEvent
from agent.sources.mysql.ddl.likeness import key_of
from agent.sources.mysql.ddl.new_tables import NewTables
from agent.sources.mysql.ddl.parser.cursor import Name
from agent.sources.mysql.ddl.replicated_tables import KnownTables
from agent.sources.mysql.dialect import DIALECT
from agent.sources.mysql.retyping.terms import RetypeTerms
from reactor.ids import Ts
from reactor.records.tables.schema_change import DdlRecord
from reactor.records.tables.table import TableRecord

_log = structlog.get_logger()


class Effects:
    """Keeps ``known`` up to date. ``burnt``: see ``NewTables``; ``changes``: of the current statement."""

    def __init__(self, known: KnownTables, server: Server, burnt: Collection[int]) -> None:
        self.known = known
        self.server = server
        self.changes = ChangingTables(known)
        self._new = NewTables(known, {*burnt})

    @property
    def burnt(self) -> frozenset[int]:
        return frozenset(self._new.burnt)

    def begin_statement(self) -> None:
        self.changes = ChangingTables(self.known)

    def record(self, ts: Ts, statement: str) -> DdlRecord | None:
        """Return what the statement has changed; None if nothing."""
        changes = self.changes.taken()
        return DdlRecord(ts=ts, changes=changes, statement=statement) if changes else None

    def new_record(self, name: Name, schema: TableSchema | None, ts: Ts) -> TableRecord:
        return self._new.record(name, schema, ts, self.changes.before)

    def begin_held(self, name: Name, reason: str, event: DdlEvent, schema: TableSchema | None = None) -> None:
        record = self.new_record(name, schema, event.ts)
        self.changes.begin(KnownTable(record, None, reasons.line(name, reason)))

    def begin_empty(self, record: TableRecord, schema: TableSchema) -> None:
        table = KnownTable(record, self._ours(schema, record))
        self.changes.begin(table)
        self.known.put_new(table)

    def copy(self, record: TableRecord, found: Shown) -> None:
        """Add a table with rows that are in no log."""
        assert found.schema is not None, "the server has shown it"
        record = record.with_(to_copy=True, shown_ts=found.place, is_primary=found.is_primary)
        table = KnownTable(record, self._ours(found.schema, record))
        self.changes.begin(table)
        self.known.note_copied(table)

    def admit(self, record: TableRecord, found: Shown | TableSchema) -> None:
        """Add a table: an empty one, or one that is to be copied as the server has shown it."""
        if not self.server.takes(record):
            self.changes.begin(KnownTable(record, None, f"{record.schema_name}.{record.name}: {reasons.KEYLESS}"))
        elif isinstance(found, Shown):
            self.copy(record, found)
        else:
            self.begin_empty(record, found)

    def meet(self, name: Name, event: DdlEvent) -> None:
        """Handle a table that gets a selected name; it is unknown whether it has rows."""
        table, found = ".".join(name), self.server.show(name)
        if found.schema is None:
            _log.warning("a table that was renamed is gone again and is left out", table=table)
        elif self.server.ignores_rename(name, event.statement):
            _log.warning("a table that was renamed is left out", table=table)
        else:
            self.admit(self.new_record(name, found.schema, event.ts), found)

    def put(
        self, table: KnownTable, schema: TableSchema, columns: Columns, terms: RetypeTerms, *, is_shown: bool | None
    ) -> None:
        """Change a table. ``is_shown``: see ``shown.noted``."""
        self.changes.touch(table)
        record = table.record.with_(key=key_of(table.record.key, schema.key), collation=schema.collation)
        if is_shown is False:
            record = record.with_(is_primary=True)  # the statement makes it
        table = KnownTable(shown.noted(self.server, record, is_shown=is_shown), self._ours(schema, record))
        self.changes.put(table, columns, terms)
        self.known.note_defined(table)
        if is_shown:
            self.known.note_shown(table)

    def hold(self, name: Name, reason: str, cure: str = reasons.CURE) -> None:
        table = self.known.by_name.get(name)
        if table is not None and not table.is_held:
            self.changes.touch(table)
            self.known.put(replace(table, held=reasons.line(name, reason, cure)))
            _log.warning("a table cannot be followed any more and is held", table=".".join(name), reason=reason)

    def forget(self, name: Name) -> None:
        table = self.known.by_name.get(name)
        if table is not None:
            self.changes.touch(table)
            self.known.drop(*name)
            self._new.forget(table)

    def _ours(self, schema: TableSchema, record: TableRecord) -> TableSchema:
        named = replace(schema, schema_name=record.schema_name, name=record.name)
        return replace(named, table_id=record.table_id, dialect=DIALECT, zero_dates=self.server.zero_dates)

"""Changes of one statement: the tables that it affects, before and after. Pure."""

import traceback
from dataclasses import dataclass, field, replace

import structlog

from agent.errors import is_of_table
from agent.rows.schema_change import KnownTable
from agent.sources.common import schema_diff
from agent.sources.common.schema_diff import Columns
from agent.sources.mysql.ddl import reasons
from agent.sources.mysql.ddl.copies import shadows
from agent.sources.mysql.ddl.copies.shadows import NOTHING
from agent.sources.mysql.ddl.replicated_tables import KnownTables
from agent.sources.mysql.retyping.terms import RetypeTerms
from reactor.records.tables.schema_change import SchemaChangeKind, TableChange

_log = structlog.get_logger()


@dataclass(slots=True)
class ChangingTables:
    """``before``: tables by id, None if they were not replicated. ``columns``: how their columns correspond."""

    known: KnownTables
    before: dict[int, KnownTable | None] = field(default_factory=dict)
    columns: dict[int, Columns] = field(default_factory=dict)
    terms: dict[int, RetypeTerms] = field(default_factory=dict)

    def touch(self, table: KnownTable) -> None:
        """Note a table before it is changed."""
        self.before.setdefault(table.record.table_id, table)

    def begin(self, table: KnownTable) -> None:
        """Note a table that is replicated from now on."""
        self.before.setdefault(table.record.table_id, None)
        self.known.put(table)

    def put(self, table: KnownTable, columns: Columns, terms: RetypeTerms) -> None:
        """Note a changed table; ``terms``: the conditions under which its values were converted to other types."""
        number = table.record.table_id
        self.terms[number] = terms
        self.columns[number] = shadows.composed(self.columns.get(number, NOTHING), columns)
        self.known.put(table)

    def taken(self) -> tuple[TableChange, ...]:
        """Return the changes for the sink and the owner."""
        return tuple(change for number in self.before if (change := self._guarded(number)) is not None)

    def _guarded(self, number: int) -> TableChange | None:
        """Return the change of one table; a table whose change cannot be computed is held."""
        try:
            return self._change(number)
        except Exception as error:
            after = self.known.with_id(number)
            if after is None or not is_of_table(error):
                raise
            trace = "".join(traceback.format_exception(error, limit=-3))
            _log.error("a table's change cannot be computed, and it is held", table_id=number, trace=trace)
            before = self.before[number]
            # as it was, like its record; another table may have its name since
            is_as_before = before is not None and self.known.by_name.get(_name(before), after) in (after, before)
            table = before if before is not None and is_as_before else after
            held = replace(table, held=table.held or reasons.line(_name(table), reasons.uninterpreted("", error)))
            self.known.put(held)
            return _hold(before, held)

    def _change(self, number: int) -> TableChange | None:
        before = self.before[number]
        after = self.known.with_id(number)
        if after is None:
            return None if before is None or not _is_declared(before) else schema_diff.dropped(before)
        after = self._settled(before, after)
        if after.is_held:
            return None if before is not None and before == after else _hold(before, after)
        if before is None or before.schema is None:
            return schema_diff.created(after) if before is None else None
        if after.schema is None:
            return schema_diff.dropped(before)
        columns, terms = self.columns.get(number, NOTHING), self.terms.get(number)
        context = replace(terms, required=columns.required).to_context() if terms else {}
        return schema_diff.compare(before, after, columns, context, keeps_definition=True)

    def _settled(self, before: KnownTable | None, after: KnownTable) -> KnownTable:
        """Restore the location of a table that was moved away for its copy and has its name again."""
        if before is None or before.record.path == after.record.path or _name(before) != _name(after):
            return after
        settled = replace(after, record=after.record.with_(location=before.record.location))
        self.known.put(settled)
        return settled


def _name(table: KnownTable) -> tuple[str, str]:
    return table.record.schema_name, table.record.name


def _is_declared(table: KnownTable) -> bool:
    return table.schema is not None or table.is_held


def _hold(before: KnownTable | None, after: KnownTable) -> TableChange:
    """Return a hold of the table as it was, under the name that it has now: the statement may rename it, too."""
    record = after.record if before is None or before.is_held else before.record.named(*_name(after))
    return TableChange(
        kind=SchemaChangeKind.HOLD,
        table_id=after.record.table_id,
        table=record,
        reason=after.held,
        code=reasons.code(after.held),
    )

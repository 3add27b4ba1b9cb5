"""Changes of one statement: the tables that it touches as they were before, and what has become of each. Pure."""

from dataclasses import dataclass, field, replace

from agent.rows.schema_change import KnownTable
from agent.sources.common import schema_diff
from agent.sources.common.schema_diff import Columns
from agent.sources.mysql.ddl import shadows
from agent.sources.mysql.ddl.replicated_tables import KnownTables
from agent.sources.mysql.ddl.shadows import NOTHING
from agent.sources.mysql.retyping.terms import RetypeTerms
from reactor.records.changefeed import SchemaChangeKind, TableChange


@dataclass(slots=True)
class ChangingTables:
    """``before``: tables by id, None where they were none of ours. ``columns``: how theirs have moved since."""

    known: KnownTables
    before: dict[int, KnownTable | None] = field(default_factory=dict)
    columns: dict[int, Columns] = field(default_factory=dict)
    terms: dict[int, RetypeTerms] = field(default_factory=dict)

    def touch(self, table: KnownTable) -> None:
        """Before it is changed."""
        self.before.setdefault(table.record.table_id, table)

    def begin(self, table: KnownTable) -> None:
        """It is ours from here on."""
        self.before.setdefault(table.record.table_id, None)
        self.known.put(table)

    def put(self, table: KnownTable, columns: Columns, terms: RetypeTerms) -> None:
        """It is another than it was; ``terms``: on which its values became those of other types."""
        number = table.record.table_id
        self.terms[number] = terms
        self.columns[number] = shadows.composed(self.columns.get(number, NOTHING), columns)
        self.known.put(table)

    def taken(self) -> tuple[TableChange, ...]:
        """What a sink, or the owner, has to know."""
        return tuple(change for number in self.before if (change := self._change(number)) is not None)

    def _change(self, number: int) -> TableChange | None:
        before = self.before[number]
        after = next((table for table in self.known.by_name.values() if table.record.table_id == number), None)
        if after is None:
            return None if before is None or not _is_declared(before) else schema_diff.dropped(before)
        if after.is_held:
            return None if before is not None and before == after else _hold(before, after)
        if before is None or before.schema is None:
            return schema_diff.created(after) if before is None else None
        if after.schema is None:
            return schema_diff.dropped(before)
        columns, terms = self.columns.get(number, NOTHING), self.terms.get(number)
        context = replace(terms, required=columns.required).to_context() if terms else {}
        return schema_diff.compare(before, after, columns, context, keeps_definition=True)


def _is_declared(table: KnownTable) -> bool:
    return table.schema is not None or table.is_held


def _hold(before: KnownTable | None, after: KnownTable) -> TableChange:
    """As it was, or under its new name where it was held before."""
    is_new = before is None or before.is_held
    record = after.record if before is None or is_new else before.record
    return TableChange(kind=SchemaChangeKind.HOLD, table_id=after.record.table_id, table=record, reason=after.held)

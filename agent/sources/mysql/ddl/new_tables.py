"""New tables: the records that tables get when the log first names them; ids are permanent. Pure."""

from collections.abc import Collection
from dataclasses import dataclass

from agent.rows.schema import TableSchema
from agent.rows.schema_change import KnownTable
from agent.sources.mysql.ddl.parser.cursor import Name
from agent.sources.mysql.ddl.replicated_tables import KnownTables
from agent.sources.mysql.decode.table_ids import table_id
from reactor.ids import Ts
from reactor.records.tables.table import TableRecord


@dataclass(slots=True)
class NewTables:
    """``burnt``: ids of tables that were held when they were dropped; the hold ends later than the log has the drop."""

    known: KnownTables
    burnt: set[int]

    def record(self, name: Name, schema: TableSchema | None, ts: Ts, changing: Collection[int]) -> TableRecord:
        """Return the record of a table that begins with a statement at ``ts``. ``changing``: ids of tables that the
        statement has changed or dropped already."""
        return TableRecord.new(
            self._free_id(name, ts, changing),
            *name,
            key=schema.key if schema else (),
            start_ts=Ts(ts - 1),
            consistent_ts=Ts(ts - 1),
            collation=schema.collation if schema else 0,
        )

    def forget(self, table: KnownTable) -> None:
        """Note that a table is dropped."""
        if table.is_held:
            self.burnt.add(table.record.table_id)

    def _free_id(self, name: Name, ts: Ts, changing: Collection[int]) -> int:
        used = {table.record.table_id for table in self.known.by_name.values()} | self.burnt | {*changing}
        number = table_id(*name)
        return table_id(name[0], f"{name[1]}\0{ts}") if number in used else number

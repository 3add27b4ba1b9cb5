"""Layout: how the files of a Delta table lie: which columns divide its rows, and the names of its columns in them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Self

import pyarrow as pa

from agent.sinks.delta.table import partitions
from agent.sinks.delta.table.mapping import NO_MAPPING, ColumnNames
from agent.sinks.delta.table.partitions import Partition


@dataclass(frozen=True)
class Layout:
    """``partitions``: the columns by which the table divides rows."""

    partitions: tuple[str, ...] = ()
    names: ColumnNames = NO_MAPPING

    def file(self, values: Sequence[str | None] = ()) -> "FileLayout":
        """Return the layout of a file. ``values``: those of its partition."""
        return FileLayout(dict(zip(self.partitions, values, strict=True)), self.names)

    def after(self, origins: Sequence[tuple[str, str | None]], divided_by: Sequence[str]) -> Self:
        """See ``ColumnNames.after``."""
        return type(self)(tuple(divided_by), self.names.after(origins))


PLAIN: Final = Layout()


@dataclass(frozen=True)
class FileLayout:
    """``partition``: the values of the file's partition, by the names of the columns that divide the table."""

    partition: Partition = field(default_factory=dict)
    names: ColumnNames = NO_MAPPING

    def columns_in(self, stored: Sequence[str], wanted: Sequence[str]) -> list[str]:
        """Return the names in the file of the ``wanted`` columns that it has. ``stored``: all names in it."""
        there = {*stored}
        return [name for name in map(self.names.physical, wanted) if name in there]

    def column(self, rows: pa.RecordBatch | pa.Table, item: pa.Field) -> pa.Array | pa.ChunkedArray:
        """Return a column of the file's ``rows``: one that they lack is as in the partition, or NULL."""
        name = self.names.physical(item.name)
        if name in rows.schema.names:
            return rows.column(name).cast(item.type)
        return partitions.column(self.partition, item, rows.num_rows)

    @property
    def values(self) -> Mapping[str, str | None]:
        """The values of the partition as the table's log has them."""
        return {self.names.physical(name): value for name, value in self.partition.items()}

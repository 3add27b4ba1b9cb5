"""Files of an Iceberg table: data files and position deletes, written as Parquet, described, and named by no snapshot
until a commit does.

A file is described by the JSON of ``TableFile``, which is sent in ``FlushResult.files`` and ``StagedFile.stats`` from
the executor that wrote it to the capture that commits it.
"""

import base64
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from decimal import Decimal
from itertools import chain
from typing import Any, Final
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.conversions import to_bytes
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.typedef import TableVersion
from pyiceberg.types import DecimalType, NestedField, PrimitiveType, StringType

from agent.sinks.common import row_groups
from agent.sinks.iceberg.table import io as files_io
from agent.sinks.iceberg.table import schema as iceberg_schema
from agent.sinks.iceberg.table.errors import storage_errors
from agent.sinks.iceberg.table.layout import PLAIN, Layout, Values, record

#: the format version of tables that have deletion vectors and ids of rows
VECTORS_VERSION: Final = 3
#: bytes in memory of the rows of one file
FILE_BYTES: Final = 128 << 20
#: number of columns with bounds, and characters of a text's
_BOUNDS_MAX = 32
_BOUND_CHARS = 64
#: the columns of position deletes, with the ids that Iceberg gives them
PATH_ID: Final = 2147483546
POSITION_ID: Final = 2147483545
DELETES = pa.schema(
    [
        pa.field("file_path", pa.string(), nullable=False, metadata={"PARQUET:field_id": str(PATH_ID)}),
        pa.field("pos", pa.int64(), nullable=False, metadata={"PARQUET:field_id": str(POSITION_ID)}),
    ]
)


@dataclass(frozen=True, slots=True)
class Vector:
    """A deletion vector's place in its file. ``about``: the path of the data file whose rows it deletes."""

    about: str
    offset: int
    bytes: int


@dataclass(frozen=True, slots=True)
class TableFile:
    """``path``: a URL. ``columns``: the Iceberg schema that the file was written with, as JSON; empty for deletes.
    ``nulls`` and ``nans``: numbers by column id; ``lower`` and ``upper``: bounds in Iceberg's form, as base64.

    ``terms``: the partition spec it was written for (``Layout.terms``), and ``values``: those of its partition.
    ``spec_id``: of the table's spec that has it; None: the newest one. ``sorted_by``: the order that its rows are in
    (``Layout.order_terms``). ``is_truncate``: the table's earlier content is removed before this file; such a "file"
    has no path and no rows. ``vector``: of a deletion vector; ``path`` is the file that has it, perhaps with others."""

    path: str
    rows: int
    bytes: int
    columns: str = ""
    nulls: Mapping[str, int] = field(default_factory=dict)
    nans: Mapping[str, int] = field(default_factory=dict)
    lower: Mapping[str, str] = field(default_factory=dict)
    upper: Mapping[str, str] = field(default_factory=dict)
    is_truncate: bool = False
    terms: str = ""
    values: Sequence[Any] = ()
    spec_id: int | None = None
    sorted_by: str = ""
    vector: Vector | None = None

    def to_json(self) -> str:
        return json.dumps(asdict(self), default=str)  # decimals in a partition

    @classmethod
    def from_json(cls, text: str) -> "TableFile":
        return cls(**json.loads(text))

    @property
    def schema(self) -> Schema:
        return Schema.model_validate_json(self.columns)

    def data_file(
        self, content: DataFileContent, spec: PartitionSpec, schema: Schema, order_id: int, format_version: int
    ) -> DataFile:
        """``spec``: of its partition; ``schema`` has the columns of that. ``order_id``: of the order of its rows."""
        version: TableVersion = 3 if format_version == VECTORS_VERSION else 2
        about = {} if self.vector is None else _place(self.vector)
        made = DataFile.from_args(
            _table_format_version=version,
            content=content,
            file_path=self.path,
            file_format=FileFormat.PARQUET if self.vector is None else FileFormat.PUFFIN,
            partition=record(spec, schema, self.values),
            record_count=self.rows,
            file_size_in_bytes=self.bytes,
            value_counts={int(at): self.rows for at in self.nulls},
            null_value_counts=_by_id(self.nulls),
            nan_value_counts=_by_id(self.nans),
            lower_bounds={int(at): base64.b64decode(bound) for at, bound in self.lower.items()},
            upper_bounds={int(at): base64.b64decode(bound) for at, bound in self.upper.items()},
            sort_order_id=order_id if content == DataFileContent.DATA else None,
            **about,
        )
        made.spec_id = spec.spec_id
        return made


#: precedes a TRUNCATE's new rows
TRUNCATION = TableFile("", 0, 0, is_truncate=True)


def _place(vector: Vector) -> dict[str, Any]:
    return {
        "referenced_data_file": vector.about,
        "content_offset": vector.offset,
        "content_size_in_bytes": vector.bytes,
    }


def _by_id(numbers: Mapping[str, int]) -> dict[int, int]:
    return {int(at): number for at, number in numbers.items()}


class Statistics:
    """Nulls, NaNs and bounds of the columns of a file, gathered from its rows."""

    def __init__(self, schema: Schema) -> None:
        self._fields = [item for item in schema.fields if item.field_type.is_primitive][:_BOUNDS_MAX]
        self._nulls = dict.fromkeys((item.name for item in self._fields), 0)
        self._nans: dict[str, int] = {}
        self._least: dict[str, Any] = {}
        self._most: dict[str, Any] = {}

    def note(self, rows: pa.Table) -> None:
        for item in self._fields:
            column = rows.column(item.name)
            self._nulls[item.name] += column.null_count
            if pa.types.is_floating(column.type):
                found = pc.sum(pc.is_nan(column)).as_py() or 0
                self._nans[item.name] = self._nans.get(item.name, 0) + found
            elif _has_bounds(column.type):
                self._note_bounds(item.name, column)

    def _note_bounds(self, name: str, column: pa.ChunkedArray) -> None:
        # as numbers: Python has no dates before the year 1
        if pa.types.is_date(column.type):
            column = column.cast(pa.int32())
        elif pa.types.is_temporal(column.type):
            column = column.cast(pa.int64())
        found = pc.min_max(column).as_py()
        if found["min"] is not None:
            self._least[name] = min(found["min"], self._least.get(name, found["min"]))
            self._most[name] = max(found["max"], self._most.get(name, found["max"]))

    def described(self) -> dict[str, Any]:
        lower, upper = {}, {}
        for item in self._fields:
            if item.name in self._least:
                least, most = _bound(item, self._least[item.name]), _upper_bound(item, self._most[item.name])
                lower[str(item.field_id)] = least
                if most is not None:
                    upper[str(item.field_id)] = most
        return {
            "nulls": {str(item.field_id): self._nulls[item.name] for item in self._fields},
            "nans": {str(item.field_id): self._nans[item.name] for item in self._fields if item.name in self._nans},
            "lower": lower,
            "upper": upper,
        }


def _has_bounds(arrow: pa.DataType) -> bool:
    is_text = pa.types.is_string(arrow) or pa.types.is_large_string(arrow)
    is_number = pa.types.is_integer(arrow) or pa.types.is_decimal(arrow)
    return bool(is_text or is_number or pa.types.is_temporal(arrow))


def _bound(item: NestedField, value: int | str | Decimal) -> str:
    if isinstance(item.field_type, StringType):
        assert isinstance(value, str)
        value = value[:_BOUND_CHARS]
    elif isinstance(item.field_type, DecimalType):
        value = Decimal(value)
    assert isinstance(item.field_type, PrimitiveType), "only these have bounds"
    return base64.b64encode(to_bytes(item.field_type, value)).decode()


def _upper_bound(item: NestedField, value: int | str | Decimal) -> str | None:
    """None: no short text is greater."""
    if isinstance(value, str) and len(value) > _BOUND_CHARS:
        chars = list(value[:_BOUND_CHARS])
        while chars and ord(chars[-1]) >= 0xD7FF:  # what follows is not, or not everywhere, a character
            chars.pop()
        if not chars:
            return None
        value = "".join(chars[:-1]) + chr(ord(chars[-1]) + 1)
    return _bound(item, value)


def write_files(
    io: FileIO,
    directory: str,
    label: str,
    tables: Iterable[pa.Table],
    schema: Schema,
    *,
    layout: Layout = PLAIN,
    file_bytes: float = FILE_BYTES,
) -> Iterator[TableFile]:
    """Write rows as data files below ``directory``, each with about ``file_bytes`` in memory; none if there are no
    rows. With a ``layout`` that is not plain, the rows of the files that are still open take so much together.

    :raises SinkError: the storage fails.
    """
    rest = row_groups.row_groups(tables)
    if not layout.is_plain:
        for values, pieces in _divided(rest, schema, layout, file_bytes):
            yield _file(io, directory, label, iter(pieces), schema, layout, values)
            del pieces
        return
    for first in rest:
        yield _file(io, directory, label, _up_to(file_bytes, chain([first], rest)), schema)


def _file(
    io: FileIO,
    directory: str,
    label: str,
    tables: Iterator[pa.Table],
    schema: Schema,
    layout: Layout = PLAIN,
    values: Values = (),
) -> TableFile:
    path, arrow = f"{directory}/{label}-{uuid4().hex[:12]}.parquet", iceberg_schema.file_schema(schema)
    statistics = Statistics(schema)
    written = _Counted(tables, statistics)
    rows, size = write_parquet(io, path, (table.cast(arrow) for table in written), arrow)
    made = TableFile(path, rows, size, schema.model_dump_json(), **statistics.described())
    return replace(made, terms=layout.terms, values=values, sorted_by=layout.order_terms)


def _divided(
    tables: Iterable[pa.Table], schema: Schema, layout: Layout, file_bytes: float
) -> Iterator[tuple[Values, list[pa.Table]]]:
    """Yield the rows of one file after another, in the order of the table, as row groups."""
    pieces = (item for table in tables for item in layout.divided(table, schema))
    for values, found in row_groups.gathered(pieces, file_bytes):
        yield values, list(row_groups.parts(layout.sorted(pa.concat_tables(found), schema)))


def write_deletes(io: FileIO, directory: str, label: str, deletes: pa.Table, spec_id: int, values: Values) -> TableFile:
    """Write position deletes, which must be sorted (see ``DELETES``), of data files of one partition."""
    path = f"{directory}/{label}-{uuid4().hex[:12]}-deletes.parquet"
    rows, size = write_parquet(io, path, [deletes], DELETES)
    paths = pc.min_max(deletes.column("file_path")).as_py()
    lower, upper = ({str(PATH_ID): base64.b64encode(paths[which].encode()).decode()} for which in ("min", "max"))
    nulls = {str(PATH_ID): 0, str(POSITION_ID): 0}
    return TableFile(path, rows, size, nulls=nulls, lower=lower, upper=upper, spec_id=spec_id, values=values)


def write_parquet(io: FileIO, path: str, tables: Iterable[pa.Table], schema: pa.Schema) -> tuple[int, int]:
    """Write one Parquet file; return its rows and bytes."""
    rows = 0
    groups = iter(tables)
    first = next(groups)
    with storage_errors(path, "write"):
        stream = io.new_output(path).create()
        try:
            sink = pa.PythonFile(stream, "w") if not isinstance(stream, pa.NativeFile) else stream
            with pq.ParquetWriter(
                sink,
                schema,
                compression="zstd",
                compression_level=1,
                use_dictionary=row_groups.repetitive(first),
                store_schema=False,
            ) as writer:
                for table in chain([first], groups):
                    writer.write_table(table, row_group_size=row_groups.ROWS_MAX)
                    rows += table.num_rows
            size = stream.tell()
            stream.close()
        except BaseException:
            with suppress(OSError):
                files_io.discard(stream)
            raise
    return rows, size


class _Counted:
    """Rows, noted on their way."""

    def __init__(self, tables: Iterator[pa.Table], statistics: Statistics) -> None:
        self._tables = tables
        self._statistics = statistics

    def __iter__(self) -> Iterator[pa.Table]:
        for table in self._tables:
            self._statistics.note(table)
            yield table


def _up_to(size: float, tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    for table in tables:
        size -= table.nbytes
        yield table
        if size <= 0:
            return

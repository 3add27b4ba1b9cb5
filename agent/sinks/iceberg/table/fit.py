"""Fit: brings files that were written before their table had its columns, and the columns, together.

A data file names its columns by ids, which were chosen from the table as its writer saw it. The commit adopts them
where it can; a file whose ids mean something else by then is written again. That is rare: two writers saw a new column
at the same time, or a staged snapshot met a changed table.
"""

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
from pyiceberg.io import FileIO
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import ListType, NestedField

from agent.sinks.common.forms import missing_fields, plain_type
from agent.sinks.iceberg.table import compact, files, rows
from agent.sinks.iceberg.table import schema as iceberg_schema
from agent.sinks.iceberg.table.deletes.positions import NONE
from agent.sinks.iceberg.table.files import TableFile
from agent.sinks.iceberg.table.layout import Layout
from agent.sinks.iceberg.table.schema import Ids


def widened(table: Table, staged: Sequence[TableFile], *, name: str) -> pa.Schema:
    """Return the table's columns, and those that only the files have.

    :raises TableHeldError: a column's type differs from the table's, or two names differ only in case.
    """
    return joined(iceberg_schema.arrow_schema(table.schema()), staged, name=name)


def joined(columns: pa.Schema, staged: Sequence[TableFile], *, name: str) -> pa.Schema:
    """As ``widened``, for the columns of a table to be."""
    for text in dict.fromkeys(file.columns for file in staged if file.columns):
        found = iceberg_schema.arrow_schema(Schema.model_validate_json(text))
        columns = pa.schema([*columns, *missing_fields(columns, found, table=name)])
    iceberg_schema.refuse_alike(columns.names, table=name)
    return columns


def adopted(table: Table, columns: pa.Schema, staged: Sequence[TableFile]) -> Schema:
    """Return the table's next schema with these ``columns``: with the table's ids, then with those of the files."""
    types = {item.name: item.type for item in columns}
    last = table.metadata.last_column_id
    have = {item.name: item for item in table.schema().fields if _is(item, types)}
    taken = {item.field_id for item in table.schema().fields}
    for text in dict.fromkeys(file.columns for file in staged if file.columns):
        for item in Schema.model_validate_json(text).fields:
            ids = _ids(item)
            if item.name not in have and _is(item, types) and min(ids) > last and not ids & taken:
                have[item.name] = item
                taken |= ids
    new = Ids(max([last, *taken, *(max(_ids(item)) for item in have.values())]))
    return Schema(*(have.get(item.name) or new.field(item.name, item.type) for item in columns))


def fitted(io: FileIO, directory: str, staged: Sequence[TableFile], schema: Schema, layout: Layout) -> list[TableFile]:
    """Return files that have the ids of ``schema``, and are divided as ``layout`` says."""
    made: list[TableFile] = []
    have = {item.name: item for item in schema.fields}
    for file in staged:
        if file.is_truncate or (file.terms == layout.terms and _has_ids(file, have)):
            made.append(file)
        else:
            made += files.write_files(io, directory, "fitted", _rows(io, file, schema), schema, layout=layout)
    return made


def _has_ids(file: TableFile, have: Mapping[str, NestedField]) -> bool:
    return all(have.get(item.name) == item for item in file.schema.fields)


def _rows(io: FileIO, file: TableFile, schema: Schema) -> Iterator[pa.Table]:
    for piece in rows.live_rows(io, file.path, file.schema, NONE):
        yield compact.filled(piece, schema)


def _is(item: NestedField, types: dict[str, pa.DataType]) -> bool:
    return item.name in types and iceberg_schema.arrow_type(item) == plain_type(types[item.name])


def _ids(item: NestedField) -> set[int]:
    return {item.field_id, *([item.field_type.element_id] if isinstance(item.field_type, ListType) else [])}

"""Compaction: what a commit rewrites of a table beside its own changes, so that readers find few files.

It is a part of the commit that makes it due, and so never in another's way; what takes longer is done beside the
flushes (``upkeep``). Very small files are joined, files that have lost most rows are written again without them, and
many files of position deletes become one, with what is still needed. Each costs in proportion to what was written since
the last time.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Final

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.table import Table

from agent.sinks.iceberg.table import files, positions, rows
from agent.sinks.iceberg.table import schema as iceberg_schema
from agent.sinks.iceberg.table.files import TableFile
from agent.sinks.iceberg.table.manifests import Live, LiveFile
from agent.sinks.iceberg.table.positions import NONE, Positions

#: bytes of a small file, and how many are joined
_SMALL_BYTES: Final = 1 << 20
_SMALL_MAX: Final = 24
#: share of deleted rows with which a file is rewritten
_THIN: Final = 0.5
#: deleted rows for which a small file is not left until it is joined with others
_THIN_ROWS: Final = 50_000
_DELETES_MAX: Final = 12
#: bytes of files that one commit rewrites
_BUDGET: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class Rewritten:
    """``removed``: paths of data files and position deletes that go; ``files`` and ``deletes`` come for them."""

    removed: frozenset[str] = frozenset()
    files: Sequence[TableFile] = ()
    deletes: Sequence[TableFile] = field(default_factory=list)


def compacted(
    table: Table, schema: Schema, live: Live, gone: Mapping[str, Positions], added: Mapping[str, Positions]
) -> Rewritten:
    """Return what replaces files of ``live``, and the position deletes of this commit.

    ``gone``: positions that are deleted already; ``added``: those that this commit deletes. Files without a row left
    are removed.
    """
    after = _joined(gone, added)
    empty = {item.path for item in live.data if len(after.get(item.path, NONE)) >= item.file.record_count}
    chosen = _chosen([item for item in live.data if item.path not in empty], after)
    made = rewritten(table, schema, chosen, after)
    removed = empty | {item.path for item in chosen}
    if len(live.deletes) < _DELETES_MAX:  # what they say of files that are gone does no harm
        rest = {path: places for path, places in added.items() if path not in removed}
        return Rewritten(frozenset(removed), made, written_deletes(table, rest))
    rest = {path: places for path, places in positions.applied(live, after).items() if path not in removed}
    return Rewritten(frozenset(removed | {item.path for item in live.deletes}), made, written_deletes(table, rest))


def _joined(gone: Mapping[str, Positions], added: Mapping[str, Positions]) -> dict[str, Positions]:
    return {
        path: positions.union(gone.get(path, NONE), added.get(path, NONE)) for path in dict.fromkeys((*gone, *added))
    }


def _chosen(live: Sequence[LiveFile], after: Mapping[str, Positions]) -> list[LiveFile]:
    small = [item for item in live if item.file.file_size_in_bytes < _SMALL_BYTES]
    if len(small) < _SMALL_MAX:
        small = []
    thin = [item for item in live if _is_thin(item, len(after.get(item.path, NONE)))]
    chosen, size = list[LiveFile](), 0
    for item in {item.path: item for item in (*small, *thin)}.values():
        size += item.file.file_size_in_bytes
        if chosen and size > _BUDGET:
            break
        chosen.append(item)
    return chosen


def _is_thin(item: LiveFile, gone: int) -> bool:
    is_small = item.file.file_size_in_bytes < _SMALL_BYTES
    return gone >= _THIN * item.file.record_count and not (is_small and gone < _THIN_ROWS)


def rewritten(
    table: Table,
    schema: Schema,
    chosen: Sequence[LiveFile],
    after: Mapping[str, Positions],
    *,
    file_bytes: float = files.FILE_BYTES,
) -> list[TableFile]:
    """Write the rows of some files that are not deleted, in their order, as new files. ``after``: the deleted ones."""
    # the file has the ids of today's columns, and other columns are NULL
    stored = Schema(*(item for item in schema.fields if item.field_id in _ids(table)), schema_id=schema.schema_id)

    def all_rows() -> Iterator[pa.Table]:
        pieces = (rows.live_rows(table.io, item.path, stored, after.get(item.path, NONE)) for item in chosen)
        return (filled(piece, schema) for piece in chain.from_iterable(pieces))

    made = files.write_files(table.io, data_directory(table), "compacted", all_rows(), schema, file_bytes=file_bytes)
    return list(made) if chosen else []


def _ids(table: Table) -> set[int]:
    return {item.field_id for item in table.schema().fields}


def written_deletes(table: Table, added: Mapping[str, Positions]) -> list[TableFile]:
    """Write position deletes; no file if there are none."""
    rows_of = positions.table_of(added)
    if not rows_of.num_rows:
        return []
    return [files.write_deletes(table.io, data_directory(table), "rows", rows_of)]


def filled(rows: pa.Table, schema: Schema) -> pa.Table:
    """Return rows with all columns of ``schema``; those that they lack are NULL."""
    wanted = iceberg_schema.arrow_schema(schema)
    columns = [
        rows.column(item.name) if item.name in rows.schema.names else pa.nulls(rows.num_rows, item.type)
        for item in wanted
    ]
    return pa.table(columns, schema=wanted)


def data_directory(table: Table) -> str:
    return f"{table.metadata.location}/data"

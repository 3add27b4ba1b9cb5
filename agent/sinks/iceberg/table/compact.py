"""Compaction: what a commit rewrites of a table beside its own changes, so that readers find few files.

It is a part of the commit that makes it due, and so never in another's way; what takes longer is done beside the
flushes (``upkeep``). Very small files are joined, files that have lost most rows are written again without them, and
many files of position deletes become one, with what is still needed. Each costs in proportion to what was written since
the last time.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Final

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.table import Table

from agent.sinks.common import row_groups
from agent.sinks.iceberg.table import files, positions, rows
from agent.sinks.iceberg.table import schema as iceberg_schema
from agent.sinks.iceberg.table.files import TableFile
from agent.sinks.iceberg.table.layout import PLAIN, Layout
from agent.sinks.iceberg.table.manifests import Home, Live, LiveFile
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
    made = rewritten(table, schema, chosen, after, layout=Layout.of(table))
    removed = empty | {item.path for item in chosen}
    many = {home for home, count in Counter(item.home for item in live.deletes).items() if count >= _DELETES_MAX}
    # what deletes say of files that are gone does no harm
    rest = {
        item.path: after[item.path] if item.home in many else added[item.path]
        for item in live.data
        if item.path not in removed and item.path in (after if item.home in many else added)
    }
    merged = {item.path for item in live.deletes if item.home in many}
    return Rewritten(frozenset(removed | merged), made, written_deletes(table, homes(live.data), rest))


def _joined(gone: Mapping[str, Positions], added: Mapping[str, Positions]) -> dict[str, Positions]:
    return {
        path: positions.union(gone.get(path, NONE), added.get(path, NONE)) for path in dict.fromkeys((*gone, *added))
    }


def _chosen(live: Sequence[LiveFile], after: Mapping[str, Positions]) -> list[LiveFile]:
    small = [item for item in live if item.file.file_size_in_bytes < _SMALL_BYTES]
    counts = Counter(item.home for item in small)
    small = [item for item in small if counts[item.home] >= _SMALL_MAX]
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
    layout: Layout = PLAIN,
    file_bytes: float = files.FILE_BYTES,
) -> list[TableFile]:
    """Write the rows of some files that are not deleted as new files, in their order if the ``layout`` is plain.
    ``after``: the deleted ones."""
    # the file has the ids of today's columns, and other columns are NULL
    stored = Schema(*(item for item in schema.fields if item.field_id in _ids(table)), schema_id=schema.schema_id)

    def all_rows() -> Iterator[pa.Table]:
        pieces = (rows.live_rows(table.io, item.path, stored, after.get(item.path, NONE)) for item in chosen)
        return (filled(piece, schema) for piece in chain.from_iterable(pieces))

    place = table.io, data_directory(table), "compacted"
    made = files.write_files(*place, all_rows(), schema, layout=layout, file_bytes=file_bytes)
    return list(made) if chosen else []


def rewritten_in_order(
    table: Table, chosen: Sequence[LiveFile], after: Mapping[str, Positions], layout: Layout
) -> tuple[list[TableFile], Positions]:
    """As ``rewritten``, as one file in the table's order: sorted in memory. Return also where the rows come from."""
    schema = table.schema()
    pieces = (rows.live_rows(table.io, item.path, schema, after.get(item.path, NONE)) for item in chosen)
    found = pa.concat_tables([iceberg_schema.arrow_schema(schema).empty_table(), *chain.from_iterable(pieces)])
    places = layout.places(found, schema)
    if places is None:
        return [], NONE
    groups = row_groups.parts(found.take(pa.array(places)))
    made = files.write_files(table.io, data_directory(table), "compacted", groups, schema, file_bytes=float("inf"))
    return [replace(file, sorted_by=layout.order_terms) for file in made], places


def _ids(table: Table) -> set[int]:
    return {item.field_id for item in table.schema().fields}


def homes(found: Iterable[LiveFile]) -> dict[str, Home]:
    return {item.path: item.home for item in found}


def written_deletes(table: Table, homes: Mapping[str, Home], added: Mapping[str, Positions]) -> list[TableFile]:
    """Write position deletes, a file for each partition that has some. ``homes``: of the data files."""
    by_home: dict[Home, dict[str, Positions]] = {}
    for path, places in added.items():
        if len(places):
            by_home.setdefault(homes[path], {})[path] = places
    place = table.io, data_directory(table), "rows"
    return [files.write_deletes(*place, positions.table_of(mine), *home) for home, mine in by_home.items()]


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

"""Compaction: what a commit rewrites of a table beside its own changes, so that readers find few files.

It is a part of the commit that makes it due, and so never in another's way; what takes longer is done beside the
flushes (``upkeep``). Very small files are joined, files that have lost most rows are written again without them, and
many files of position deletes become one, with what is still needed; of deletion vectors a data file has one. Each
costs in proportion to what was written since the last time.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Final

import numpy as np
import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.table import Table

from agent.sinks.common import row_groups
from agent.sinks.iceberg.table import files, row_ids, rows
from agent.sinks.iceberg.table import schema as iceberg_schema
from agent.sinks.iceberg.table.deletes import positions, vectors
from agent.sinks.iceberg.table.deletes.positions import NONE, Positions
from agent.sinks.iceberg.table.files import TableFile
from agent.sinks.iceberg.table.layout import PLAIN, Layout
from agent.sinks.iceberg.table.metadata import manifests
from agent.sinks.iceberg.table.metadata.manifests import FileKey, Home, Live, LiveFile
from agent.sinks.iceberg.table.row_ids import LINEAGE

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
    """``removed``: data files and deletes that go; ``files`` and ``deletes`` come for them."""

    removed: frozenset[FileKey] = frozenset()
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
    data = manifests.keys(item for item in live.data if item.path in removed)
    if has_vectors(table):
        deletes, old = next_vectors(table, live, after, changed=added, gone=removed, homes=homes(live.data))
        return Rewritten(data | old, made, deletes)
    many = {home for home, count in Counter(item.home for item in live.deletes).items() if count >= _DELETES_MAX}
    # what deletes say of files that are gone does no harm
    rest = {
        item.path: after[item.path] if item.home in many else added[item.path]
        for item in live.data
        if item.path not in removed and item.path in (after if item.home in many else added)
    }
    merged = manifests.keys(item for item in live.deletes if item.home in many)
    return Rewritten(data | merged, made, written_deletes(table, homes(live.data), rest))


def has_vectors(table: Table) -> bool:
    """Return whether new deletes are deletion vectors, and not position deletes."""
    return table.metadata.format_version >= files.VECTORS_VERSION


def next_vectors(
    table: Table,
    live: Live,
    after: Mapping[str, Positions],
    *,
    changed: Collection[str],
    gone: Collection[str],
    homes: Mapping[str, Home],
) -> tuple[list[TableFile], frozenset[FileKey]]:
    """Write the vectors of data files whose deleted rows have changed; return them, and the deletes of the table that
    go: their old vectors, those of data files that are gone, and all position deletes, which the table has from when
    its format version was 2: what they delete goes into vectors.

    ``after``: all deleted positions; ``homes``: of all data files that stay, or come.
    """
    has_older = any(item.vector is None for item in live.deletes)
    wanted = {path: after[path] for path in (after if has_older else changed) if path in homes and path not in gone}

    def goes(item: LiveFile) -> bool:
        about = None if item.vector is None else item.vector.about
        return about is None or about in wanted or about in gone or about not in homes

    old = manifests.keys(item for item in live.deletes if goes(item))
    made = vectors.write(table.io, data_directory(table), "rows", wanted, homes)
    for file in made:
        assert file.vector is not None
        positions.keep(file, {file.vector.about: wanted[file.vector.about]})
    return made, old


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
    whole = _with_lineage(table, schema)

    def all_rows() -> Iterator[pa.Table]:
        pieces = (_moved(table, item, stored, after.get(item.path, NONE)) for item in chosen)
        return (filled(piece, whole) for piece in chain.from_iterable(pieces))

    place = table.io, data_directory(table), "compacted"
    made = files.write_files(*place, all_rows(), whole, layout=layout, file_bytes=file_bytes)
    return list(made) if chosen else []


def rewritten_in_order(
    table: Table, chosen: Sequence[LiveFile], after: Mapping[str, Positions], layout: Layout
) -> tuple[list[TableFile], Positions]:
    """As ``rewritten``, as one file in the table's order: sorted in memory. Return also where the rows come from."""
    schema = _with_lineage(table, table.schema())
    pieces = (_moved(table, item, table.schema(), after.get(item.path, NONE)) for item in chosen)
    found = pa.concat_tables([iceberg_schema.arrow_schema(schema).empty_table(), *chain.from_iterable(pieces)])
    places = layout.places(found, schema)
    if places is None:
        return [], NONE
    groups = row_groups.parts(found.take(pa.array(places)))
    made = files.write_files(table.io, data_directory(table), "compacted", groups, schema, file_bytes=float("inf"))
    return [replace(file, sorted_by=layout.order_terms) for file in made], places


def _with_lineage(table: Table, schema: Schema) -> Schema:
    """Return the columns of a file with rows of other files, which keep their ids where the table has ids."""
    if not has_vectors(table) or {item.name for item in LINEAGE} & {item.name for item in schema.fields}:
        return schema
    return Schema(*schema.fields, *LINEAGE, schema_id=schema.schema_id)


def _moved(table: Table, item: LiveFile, schema: Schema, gone: Positions) -> Iterator[pa.Table]:
    """Yield the rows of a data file that are not deleted, with their ids and when they changed, if the table has it."""
    whole = _with_lineage(table, schema)
    if whole is schema:
        yield from rows.live_rows(table.io, item.path, schema, gone)
        return
    with rows.opened(table.io, item.path, whole) as file:
        for begin, batch in file.batches():
            places = begin + np.arange(batch.num_rows)
            found = row_ids.with_own(batch, item.file, places, item.sequence)
            yield found.filter(pa.array(~positions.among(places, gone)))


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
    place, made = (table.io, data_directory(table), "rows"), list[TableFile]()
    for home, mine in by_home.items():
        made.append(files.write_deletes(*place, positions.table_of(mine), *home))
        positions.keep(made[-1], mine)
    return made


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

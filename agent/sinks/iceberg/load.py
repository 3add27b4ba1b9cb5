"""Load: stages a snapshot's rows beside a table, and makes them the table, with its first record, in one commit.

The catalog has the table, empty, from the first staged file on: a REST catalog chooses where it is stored. It belongs
to nobody's span until the commit.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from typing import Final

import pyarrow as pa
from pyarrow import fs
from pyiceberg.exceptions import TableAlreadyExistsError
from pyiceberg.table import Table

from agent.errors import TableForeignError, TableHeldError
from agent.ports.sink import StagedFile
from agent.rows.schema import TableSchema
from agent.sinks.common import changelog
from agent.sinks.common.history import columns as history
from agent.sinks.common.layouts import PartitionTerm, Wanted
from agent.sinks.common.span_records import RETIRED
from agent.sinks.iceberg.table import commit, compact, files, fit
from agent.sinks.iceberg.table import schema as iceberg_schema
from agent.sinks.iceberg.table.catalogs.lake import TablePlace
from agent.sinks.iceberg.table.commit import Step
from agent.sinks.iceberg.table.errors import storage_errors
from agent.sinks.iceberg.table.files import TableFile
from agent.sinks.iceberg.table.io import LakeFileIO
from agent.sinks.iceberg.table.layout import Layout
from agent.sinks.iceberg.table.schema import FORMS
from agent.sinks.iceberg.table.state import COMPACTED, OWNER, STATE, State, TableOwner
from reactor.ids import TableSpan, Ts
from reactor.records.tables.table import TableRecord

_STAGED: Final = "snapshot"
_VERSION: Final = "format-version"
#: small metadata, and no file of metadata that nobody needs; a refused commit is never repeated unasked
_PROPERTIES: Final = {
    "write.metadata.delete-after-commit.enabled": "true",  # as we do, see ``commit``
    "write.metadata.previous-versions-max": "20",
    "commit.retry.num-retries": "0",
}


def stage(
    place: TablePlace, owner: TableOwner, wanted: Wanted, chunk_id: str, batches: Iterator[pa.RecordBatch], ts: Ts
) -> list[StagedFile]:
    """See ``agent.ports.sink.Writer.stage``. No name is used twice, and what ``load`` does not take is removed."""
    tables = (
        changelog.snapshot_rows(batch, ts, forms=FORMS)
        if owner.is_changelog
        else owner.marks.snapshot_rows(FORMS.table(batch), ts)
        for batch in batches
    )
    first = next(tables, None)
    if first is None:
        return []
    name = f"{place.namespace}.{place.name}"
    iceberg_schema.refuse_alike(first.schema.names, table=name)
    table = opened_or_made(place, owner, wanted, first.schema, ts)
    last = table.metadata.last_column_id
    schema = iceberg_schema.new_schema(first.schema, known=table.schema(), last_id=last)
    label = f"{_label(ts)}{re.sub('[^A-Za-z0-9_-]', '_', chunk_id)}"
    directory, layout = compact.data_directory(table), Layout.made(wanted, schema, table=name)
    made = files.write_files(table.io, directory, label, chain([first], tables), schema, layout=layout)
    return [StagedFile(file.path, file.rows, file.bytes, file.to_json()) for file in made]


def wanted_of(owner: TableOwner, wanted: Wanted) -> Wanted:
    """Return the layout with what the mode adds: current versions of rows lie apart from ended ones."""
    if not owner.is_history:
        return wanted
    return replace(wanted, partitions=(PartitionTerm(history.IS_CURRENT), *wanted.partitions))


def check_layout(owner: TableOwner, wanted: Wanted, arrow: pa.Schema, *, table: str) -> None:
    """Check the layout that is wanted for a table with these columns of the source.

    :raises TableHeldError: it cannot have it.
    """
    columns = iceberg_schema.stored_schema(arrow, is_changelog=owner.is_changelog, marks=owner.marks)
    Layout.made(wanted, iceberg_schema.new_schema(columns), table=table)
    if own := sorted({*_PROPERTIES, _VERSION, OWNER, STATE, COMPACTED} & {*wanted.properties}):
        raise TableHeldError(f"the layout of {table} sets {own[0]}, which Weir itself sets; leave it out")


def opened_or_made(place: TablePlace, owner: TableOwner, wanted: Wanted, columns: pa.Schema, ts: Ts) -> Table:
    """Return the table; an empty one is made if there is none.

    :raises TableForeignError: the table is another's.
    :raises TableHeldError: it cannot have the layout that is wanted.
    """
    place.lake.make()
    table = place.open()
    if table is None:
        place.make_namespace()
        schema = iceberg_schema.new_schema(columns)
        layout = Layout.made(wanted, schema, table=f"{place.namespace}.{place.name}")
        version = {_VERSION: str(place.lake.format_version)}
        properties = {**wanted.properties, **_PROPERTIES, **version, OWNER: owner.to_json()}
        with storage_errors(place, "create"), suppress(TableAlreadyExistsError):
            place.lake.catalog().create_table(
                place.identifier,
                schema,
                location=place.location(f"{ts:x}"),
                partition_spec=layout.spec,
                sort_order=layout.order,
                properties=properties,
            )
        table = place.opened()
    owner.refuse_foreign(table, place)
    return table


def load(
    place: TablePlace,
    owner: TableOwner,
    wanted: Wanted,
    record: TableRecord,
    schema: TableSchema,
    arrow: pa.Schema,
    staged: Sequence[TableFile],
    *,
    ddl: int = 0,
) -> None:
    """Make staged files the table, and record ``record.start_ts`` for its whole key range.

    ``ddl``: the Ts of the schema change that creates it.
    """
    name = schema.qualified_name
    stored = iceberg_schema.stored_schema(arrow, is_changelog=owner.is_changelog, marks=owner.marks)
    columns = fit.joined(stored, staged, name=name)
    opened_or_made(place, owner, wanted, columns, record.start_ts)
    state = State({str(TableSpan(record.table_id)): int(record.start_ts)}, ddl=ddl, placed=int(record.start_ts))

    def attempt(table: Table) -> None:
        if not is_loaded(table, place, owner, record):
            final = fit.adopted(table, columns, staged)
            layout = Layout.made(wanted, final, table=name)
            made = fit.fitted(table.io, compact.data_directory(table), staged, final, layout)
            commit.commit(table, Step(state, made, schema=final, layout=layout))
            sweep(table, record.start_ts, [*staged, *made])

    commit.on_newest(place, attempt)


def is_loaded(table: Table, place: TablePlace, owner: TableOwner, record: TableRecord) -> bool:
    """:raises TableForeignError: the table is another one."""
    owner.refuse_foreign(table, place)
    state = State.of(table)
    if not state.snapshot:
        return False
    recorded = state.recorded_ts(TableSpan(record.table_id))
    if recorded is None:
        raise TableForeignError(
            f"{place} is another table of changefeed {owner.changefeed!r}, which has or had this name; this one begins "
            "when that one is renamed or dropped"
        )
    if recorded != record.start_ts:
        position = "is split" if recorded == RETIRED else f"is at {recorded}"
        raise TableForeignError(
            f"{place} is a table that an earlier changefeed {owner.changefeed!r} loaded (it {position}, this one "
            f"starts at {record.start_ts}); drop it from the catalog, or choose another catalog or warehouse"
        )
    return True


def sweep(table: Table, ts: Ts, kept: Sequence[TableFile]) -> None:
    """Remove the files of a snapshot that were staged in vain, as by an executor that was lost."""
    io = table.io
    if not isinstance(io, LakeFileIO):
        return
    names = {file.path.rsplit("/", 1)[-1] for file in kept}
    scheme, netloc, path = io.parse_location(compact.data_directory(table), io.properties)
    with suppress(OSError):
        found = io.fs_by_scheme(scheme, netloc).get_file_info(fs.FileSelector(path, allow_not_found=True))
        for item in found:
            if item.base_name.startswith(_label(ts)) and item.base_name not in names:
                io.fs_by_scheme(scheme, netloc).delete_file(item.path)


def _label(ts: Ts) -> str:
    return f"{_STAGED}-{ts:x}-"

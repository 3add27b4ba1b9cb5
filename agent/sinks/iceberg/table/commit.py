"""Iceberg commit: makes files visible together with the state of their table, in one step.

Each commit makes a snapshot, also one that changes no rows: it requires that the table's current snapshot is the one it
was made from, so of two commits made from one, the catalog refuses the second. pyiceberg's own transactions are not
used here, since they repeat a refused append unasked. A refused commit is decided again from what the table then
records: already written, another writer's, or still to do.
"""

import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar
from uuid import uuid4

import structlog
from pyiceberg.catalog import MetastoreCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata, TableMetadataV3
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot, Summary, update_snapshot_summaries
from pyiceberg.table.update import (
    AddSchemaUpdate,
    AddSnapshotUpdate,
    AssertCurrentSchemaId,
    AssertLastAssignedFieldId,
    AssertRefSnapshotId,
    AssertTableUUID,
    SetCurrentSchemaUpdate,
    SetPropertiesUpdate,
    SetSnapshotRefUpdate,
    TableRequirement,
    TableUpdate,
)

from agent.errors import SinkConflictError
from agent.sinks.iceberg.table import io as files_io
from agent.sinks.iceberg.table import row_ids, specs, state
from agent.sinks.iceberg.table import schema as iceberg_schema
from agent.sinks.iceberg.table.catalogs.lake import TablePlace
from agent.sinks.iceberg.table.errors import storage_errors
from agent.sinks.iceberg.table.files import TableFile
from agent.sinks.iceberg.table.layout import Layout
from agent.sinks.iceberg.table.metadata import manifests
from agent.sinks.iceberg.table.metadata.manifests import FileKey, Live
from agent.sinks.iceberg.table.row_ids import RowIds
from agent.sinks.iceberg.table.specs import Specs
from agent.sinks.iceberg.table.state import State, TableOwner

#: spans of one table on several captures: one wins each round, so a commit may lose several times
_ATTEMPTS: Final = 24

T = TypeVar("T")
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Step:
    """The changes of one commit to a table. ``files``: data files that come, ``deletes``: deletes that come,
    ``removed``: files of either kind that go; ``schema``: new columns. ``state``: the table's state
    afterwards, ``properties``: others that change. ``before``: the table's files, if they are known. ``is_same``: the
    rows are the same as before. ``layout``: another one, which the table has from then on."""

    state: State
    files: Sequence[TableFile] = ()
    deletes: Sequence[TableFile] = ()
    removed: Collection[FileKey] = ()
    schema: Schema | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    before: Live | None = None
    is_same: bool = False
    layout: Layout | None = None

    def added(self, of_table: Specs) -> list[DataFile]:
        data = [of_table.data_file(file, DataFileContent.DATA) for file in self.files if file.rows]
        return data + [of_table.data_file(file, DataFileContent.POSITION_DELETES) for file in self.deletes]


def on_newest(
    place: TablePlace, attempt: Callable[[Table], T], *, is_checked: bool = True, newest: Table | None = None
) -> T:
    """Run ``attempt`` on the newest version of the table, and again after a commit that was refused.

    ``is_checked``: the table is held if others have changed it. ``newest``: the table, if it was opened just now.

    :raises SinkConflictError: it lost against other commits every time.
    :raises SinkError: the table cannot be read or written.
    """
    for count in range(1, _ATTEMPTS + 1):
        table, newest = newest or place.opened(), None
        if is_checked:
            state.check_history(table, place)
        try:
            with storage_errors(place, "write to"):
                return attempt(table)
        except CommitFailedException as error:
            reason = str(error).splitlines()[0] if str(error) else ""
            _log.info("another commit was first", table=str(place), attempt=count, reason=reason)
    raise SinkConflictError(f"{_ATTEMPTS} commits to {place} lost against others; it is tried again")


def commit(table: Table, step: Step) -> None:
    """Commit on top of ``table``.

    :raises CommitFailedException: another commit was first.
    """
    with files_io.together():
        newest = _committed(table, step)
    _remove_old(table, newest)


def _committed(table: Table, step: Step) -> TableMetadata:
    metadata = table.metadata
    current = table.current_snapshot()
    snapshot_id = metadata.new_snapshot_id()
    requirements: list[TableRequirement] = [
        AssertTableUUID(uuid=metadata.table_uuid),
        AssertRefSnapshotId(ref=MAIN_BRANCH, snapshot_id=None if current is None else current.snapshot_id),
    ]
    updates: list[TableUpdate] = []
    schema, schema_id = table.schema(), metadata.current_schema_id
    if step.schema is not None and step.schema.as_struct() != schema.as_struct():
        requirements.append(AssertCurrentSchemaId(current_schema_id=schema_id))
        requirements.append(AssertLastAssignedFieldId(last_assigned_field_id=metadata.last_column_id))
        schema, made = _schema_updates(table, step.schema)
        schema_id = schema.schema_id
        updates += made
    of_table = Specs.of_table(table, schema)
    if step.layout is not None:
        laid_out = specs.changed(table, step.layout)
        of_table = of_table.with_newest(laid_out)
        requirements += laid_out.requirements
        updates += laid_out.updates
    snapshot = _snapshot(table, step, snapshot_id, schema_id, of_table)
    made_state = replace(step.state, snapshot=snapshot_id, columns=iceberg_schema.fingerprint(schema))
    updates += [
        SetPropertiesUpdate(updates={**step.properties, state.STATE: made_state.to_json()}),
        AddSnapshotUpdate(snapshot=snapshot),
        SetSnapshotRefUpdate.model_validate(
            {"ref-name": MAIN_BRANCH, "type": SnapshotRefType.BRANCH, "snapshot-id": snapshot_id}
        ),
    ]
    if not isinstance(table.catalog, MetastoreCatalog):  # else this process writes the metadata, and syncs all with it
        files_io.sync_waiting()
    return table.catalog.commit_table(table, tuple(requirements), tuple(updates)).metadata


def _remove_old(table: Table, newest: TableMetadata) -> None:
    """Remove the metadata files that the newest one does not list any more: each commit writes one."""
    kept = {item.metadata_file for item in newest.metadata_log}
    for item in table.metadata.metadata_log:
        if item.metadata_file not in kept:
            with suppress(OSError):
                table.io.delete(item.metadata_file)


def commit_or_remove(table: Table, step: Step, *, kept: Sequence[TableFile] = ()) -> None:
    """Commit; the files of a commit that was refused are removed. ``kept``: further files that come, and stay.

    :raises CommitFailedException: another commit was first.
    """
    made = {file.path for file in (*step.files, *step.deletes)}
    try:
        commit(table, replace(step, files=[*kept, *step.files]))
    except CommitFailedException:
        # a request that is sent twice, as proxies do whose answer is lost, is refused because it has succeeded
        newest = table.catalog.load_table(table.name())
        newest.io = table.io
        live = manifests.live(newest)
        if not any(item.path in made for item in (*live.data, *live.deletes)):
            for path in made:
                with suppress(OSError):
                    table.io.delete(path)
        raise


def _schema_updates(table: Table, schema: Schema) -> tuple[Schema, list[TableUpdate]]:
    for known in table.metadata.schemas:
        if known.as_struct() == schema.as_struct():
            return known, [SetCurrentSchemaUpdate(schema_id=known.schema_id)]
    last = max(known.schema_id for known in table.metadata.schemas)
    made = Schema(*schema.fields, schema_id=last + 1)
    return made, [AddSchemaUpdate(schema_=made), SetCurrentSchemaUpdate(schema_id=-1)]


def _snapshot(table: Table, step: Step, snapshot_id: int, schema_id: int, of_table: Specs) -> Snapshot:
    metadata, current = table.metadata, table.current_snapshot()
    before = manifests.live(table) if step.before is None else step.before
    added = step.added(of_table)
    ids = RowIds(metadata.next_row_id or 0) if isinstance(metadata, TableMetadataV3) else None
    found = manifests.next_manifests(table, before, snapshot_id, of_table, added=added, removed=step.removed, ids=ids)
    sequence = metadata.next_sequence_number()
    path = f"{metadata.location}/metadata/snap-{snapshot_id}-0-{uuid4()}.avro"
    parent = None if current is None else current.snapshot_id
    with row_ids.ListWriter(table.io.new_output(path), snapshot_id, parent, sequence, ids) as writer:
        writer.add_manifests(found)
    manifests.keep_list(table, path, found)
    return Snapshot(
        snapshot_id=snapshot_id,
        parent_snapshot_id=parent,
        sequence_number=sequence,
        timestamp_ms=max(int(time.time() * 1000), metadata.last_updated_ms),
        manifest_list=path,
        summary=_summary(table, step, before, added),
        schema_id=schema_id,
        first_row_id=None if ids is None else ids.first,
        added_rows=None if ids is None else ids.count,
    )


def _summary(table: Table, step: Step, before: Live, added: Sequence[DataFile]) -> Summary:
    data = [file for file in added if file.content == DataFileContent.DATA]
    deletes = [file for file in added if file.content != DataFileContent.DATA]
    gone = [item.file for item in before.data if item.key in step.removed]
    undone = [item.file for item in before.deletes if item.key in step.removed]
    vectors, old_vectors = _vectors(deletes), _vectors(undone)
    numbers = {
        "added-data-files": len(data),
        "added-records": _rows(data),
        "added-delete-files": len(deletes),
        "added-position-delete-files": len(deletes) - vectors,
        "added-dvs": vectors,
        "added-position-deletes": _rows(deletes),
        "added-files-size": _bytes(added),
        "deleted-data-files": len(gone),
        "deleted-records": _rows(gone),
        "removed-delete-files": len(undone),
        "removed-position-delete-files": len(undone) - old_vectors,
        "removed-dvs": old_vectors,
        "removed-position-deletes": _rows(undone),
        "removed-files-size": _bytes([*gone, *undone]),
    }
    operation = Operation.OVERWRITE if gone or undone or deletes else Operation.APPEND
    if operation is Operation.OVERWRITE and not data and not undone:
        operation = Operation.DELETE
    fields = {name: str(number) for name, number in numbers.items() if number}
    owner, was = TableOwner.of(table), State.of(table).records
    moved = {span: ts for span, ts in step.state.records.items() if was.get(span) != ts}
    fields |= {state.SUMMARY_OWNER: owner.changefeed if owner else "", state.SUMMARY_RECORDS: json.dumps(moved)}
    current = table.current_snapshot()
    summary = None if current is None or current.summary is None else current.summary.additional_properties
    made = update_snapshot_summaries(Summary(operation=operation, **fields), summary)
    return Summary(operation=Operation.REPLACE, **made.additional_properties) if step.is_same else made


def _vectors(files: Sequence[DataFile]) -> int:
    return sum(file.file_format == FileFormat.PUFFIN for file in files)


def _rows(files: Sequence[DataFile]) -> int:
    return sum(file.record_count for file in files)


def _bytes(files: Sequence[DataFile]) -> int:
    return sum(file.file_size_in_bytes for file in files)

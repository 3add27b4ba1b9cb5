"""Iceberg table reader: reads a table by its location, deleted rows left out (``agent.ports.table_reader``).

A version is a snapshot's id.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.table import Table

from agent.errors import SinkConfigError, TableForeignError
from agent.ports.sink import SinkUri
from agent.ports.table_reader import TableState
from agent.sinks.common.parts import parted
from agent.sinks.common.row_marks import source_names, source_rows
from agent.sinks.common.span_records import RETIRED
from agent.sinks.iceberg.table import rows
from agent.sinks.iceberg.table import schema as iceberg_schema
from agent.sinks.iceberg.table.catalogs.lake import Lake
from agent.sinks.iceberg.table.deletes import positions
from agent.sinks.iceberg.table.deletes.positions import NONE
from agent.sinks.iceberg.table.metadata import manifests
from agent.sinks.iceberg.table.state import SUMMARY_RECORDS, State, TableOwner, check_history
from reactor.ids import TableSpan, Ts


class IcebergTableReader:
    """See ``agent.ports.table_reader.TableReader``."""

    def __init__(self, uri: SinkUri, location: str) -> None:
        self._place = Lake.of(uri).place_at(location)

    @property
    def location(self) -> str:
        return str(self._place.opened().metadata.location)

    def version(self) -> int:
        return self._place.opened().metadata.current_snapshot_id or 0

    def scan(self, columns: Sequence[str] | None = None, *, version: int | None = None) -> pa.RecordBatchReader:
        table = self._place.opened()
        known = self._schema(table, version)
        names = [item.name for item in known.fields]
        if unknown := sorted({*(columns or ())} - {*names}):
            raise SinkConfigError(f"{self._place} has no column {unknown[0]}; it has {', '.join(names)}")
        schema = rows.chosen(known, names if columns is None else list(columns))
        return pa.RecordBatchReader.from_batches(
            iceberg_schema.arrow_schema(schema), self._batches(table, schema, version)
        )

    def _schema(self, table: Table, version: int | None) -> Schema:
        if version is None or version == (table.metadata.current_snapshot_id or 0):
            return table.schema()
        snapshot = table.metadata.snapshot_by_id(version)
        if snapshot is None:
            known = [item.snapshot_id for item in table.metadata.snapshots]
            raise SinkConfigError(
                f"{self._place} has no snapshot {version}; the newest of its {len(known)} is {known[-1:]}"
            )
        return table.schemas().get(snapshot.schema_id or 0, table.schema())

    def _batches(self, table: Table, schema: Schema, version: int | None) -> Iterator[pa.RecordBatch]:
        live = manifests.live(table, version)
        gone = positions.deleted(table, live.deletes)
        for item in live.data:
            for piece in rows.live_rows(table.io, item.path, schema, gone.get(item.path, NONE)):
                yield from piece.to_batches()

    def state(self, spans: Sequence[TableSpan], *, version: int | None = None) -> TableState:
        table = self._place.opened()
        owner = TableOwner.of(table)
        if owner is None:
            raise TableForeignError(f"{self._place} is not a table of Weir's; choose another one")
        newest = table.metadata.current_snapshot_id or 0
        if version is None:
            check_history(table, self._place)
        found = State.of(table).records if version in (None, newest) else _records_at(table, version or 0)
        records = {span: Ts(found[str(span)]) for span in spans if found.get(str(span), RETIRED) != RETIRED}
        names = source_names([item.name for item in self._schema(table, version).fields], owner.mode)
        return TableState(newest if version is None else version, owner.mode, records, names)

    def parts(self, version: int, *, bytes_max: int) -> list[tuple[str, ...]]:
        if version == 0:  # of a table that never had a row
            return []
        table = self._place.opened()
        self._schema(table, version)
        return parted(
            sorted((item.path, item.file.file_size_in_bytes) for item in manifests.live(table, version).data), bytes_max
        )

    def scan_part(self, version: int, files: Sequence[str]) -> Iterator[pa.Table]:
        table = self._place.opened()
        schema = self._schema(table, version)
        gone = positions.deleted(table, manifests.live(table, version).deletes)
        for path in files:
            yield from map(source_rows, rows.live_rows(table.io, path, schema, gone.get(path, NONE)))

    def history(self, limit: int) -> list[dict[str, Any]]:
        found = []
        for item in reversed(self._place.opened().metadata.snapshots[-limit:] if limit > 0 else []):
            summary = {} if item.summary is None else dict(item.summary.additional_properties)
            operation = None if item.summary is None else item.summary.operation.value
            found.append(
                {"version": item.snapshot_id, "timestamp": item.timestamp_ms, "operation": operation, **summary}
            )
        return found


def _records_at(table: Table, version: int) -> Mapping[str, int]:
    """Return the records of an earlier snapshot: each snapshot's summary has those that it moved."""
    found: dict[str, int] = {}
    snapshot = table.metadata.snapshot_by_id(version)
    while snapshot is not None:
        summary = {} if snapshot.summary is None else snapshot.summary.additional_properties
        found = json.loads(summary.get(SUMMARY_RECORDS, "{}")) | found
        parent = snapshot.parent_snapshot_id
        snapshot = None if parent is None else table.metadata.snapshot_by_id(parent)
    return found

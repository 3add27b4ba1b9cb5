"""Iceberg table reader: reads a table by its location, deleted rows left out (``agent.ports.table_reader``).

A version is a snapshot's id.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.table import Table

from agent.errors import SinkConfigError
from agent.ports.sink import SinkUri
from agent.sinks.iceberg.table import manifests, positions, rows
from agent.sinks.iceberg.table import schema as iceberg_schema
from agent.sinks.iceberg.table.lake import Lake
from agent.sinks.iceberg.table.positions import NONE


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
        if version is None or version == table.metadata.current_snapshot_id:
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

    def history(self, limit: int) -> list[dict[str, Any]]:
        found = []
        for item in reversed(self._place.opened().metadata.snapshots[-limit:] if limit > 0 else []):
            summary = {} if item.summary is None else dict(item.summary.additional_properties)
            operation = None if item.summary is None else item.summary.operation.value
            found.append(
                {"version": item.snapshot_id, "timestamp": item.timestamp_ms, "operation": operation, **summary}
            )
        return found

"""Delta table reader: reads a table by its location, deletion vectors included (``agent.ports.table_reader``)."""

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from agent.errors import SinkConfigError
from agent.ports.sink import SinkUri
from agent.sinks.delta.options import DeltaOptions
from agent.sinks.delta.table.errors import storage_errors
from agent.sinks.delta.table.place import TablePlace, arrow_schema


class DeltaTableReader:
    """See ``agent.ports.table_reader.TableReader``."""

    def __init__(self, uri: SinkUri, location: str) -> None:
        options = DeltaOptions.model_validate(uri.options).storage
        self._place = TablePlace(f"{uri.location}/{location}", uri.is_local, options, root=uri.location)

    @property
    def location(self) -> str:
        return self._place.location

    def version(self) -> int:
        return int(self._place.opened().version())

    def scan(self, columns: Sequence[str] | None = None, *, version: int | None = None) -> pa.RecordBatchReader:
        table = self._opened(version)
        stored = arrow_schema(table)
        names = stored.names if columns is None else list(columns)
        if unknown := sorted({*names} - {*stored.names}):
            raise SinkConfigError(f"{self._place} has no column {unknown[0]}; it has {', '.join(stored.names)}")
        schema = pa.schema([stored.field(name) for name in names])
        return pa.RecordBatchReader.from_batches(schema, self._batches(table, schema))

    def _batches(self, table: DeltaTable, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield batches in the types of ``schema``: the scan's own are views, for which Arrow lacks kernels."""
        with storage_errors(self._place, "read"):
            for batch in pa.RecordBatchReader.from_stream(table.scan(columns=schema.names)):
                yield batch.cast(schema)

    def history(self, limit: int) -> list[dict[str, Any]]:
        table = self._place.opened()
        with storage_errors(self._place, "read the history of"):
            return list(table.history(limit))

    def _opened(self, version: int | None) -> DeltaTable:
        table = self._place.opened()
        if version is None or version == table.version():
            return table
        if not 0 <= version < table.version():
            raise SinkConfigError(f"{self._place} has the versions 0 to {table.version()}, not {version}")
        with storage_errors(self._place, f"read version {version} of"):
            table.load_as_version(version)
        return table

"""Delta table reader: reads a table by its location, deletion vectors included (``agent.ports.table_reader``)."""

from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable

from agent.errors import SinkConfigError, TableForeignError
from agent.ports.sink import SinkUri
from agent.ports.table_reader import TableState
from agent.sinks.common.parts import parted
from agent.sinks.common.row_marks import source_names, source_rows
from agent.sinks.common.span_records import RETIRED
from agent.sinks.delta.options import DeltaOptions
from agent.sinks.delta.table import history, place
from agent.sinks.delta.table.errors import storage_errors
from agent.sinks.delta.table.files import read_file
from agent.sinks.delta.table.layout import FileLayout
from agent.sinks.delta.table.partitions import Partition, value_text
from agent.sinks.delta.table.place import TableOwner, TablePlace, arrow_schema, layout, partitions, plain_schema
from reactor.ids import TableSpan, Ts


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

    def state(self, spans: Sequence[TableSpan], *, version: int | None = None) -> TableState:
        table = self._opened(version)
        owner = TableOwner.of(table)
        if owner is None:
            raise TableForeignError(f"the Delta table at {self._place} is not Weir's; choose another table")
        if version is None:
            history.check(self._place, table)
        found = {span: place.committed_ts(table, owner.changefeed, span) for span in spans}
        records = {span: Ts(ts) for span, ts in found.items() if ts is not None and ts != RETIRED}
        return TableState(
            int(table.version()), owner.mode, records, source_names(arrow_schema(table).names, owner.mode)
        )

    def parts(self, version: int, *, bytes_max: int) -> list[tuple[str, ...]]:
        actions = pa.table(self._opened(version).get_add_actions())
        sizes = zip(actions.column("path").to_pylist(), actions.column("size_bytes").to_pylist(), strict=True)
        return parted(sorted(sizes), bytes_max)

    def scan_part(self, version: int, files: Sequence[str]) -> Iterator[pa.Table]:
        table = self._opened(version)
        schema = plain_schema(table.schema())
        with storage_errors(self._place, f"read version {version} of"):
            vectors = pa.RecordBatchReader.from_stream(table.deletion_vectors()).read_all()
            kept = dict(zip(map(_name, vectors.column(0).to_pylist()), vectors.column(1), strict=True))
            values, names = _partitions(table), layout(table).names
            for path in files:
                mask = kept.get(_name(path))
                gone = None if mask is None else np.flatnonzero(~np.asarray(mask.values, dtype=np.bool_))
                laid = FileLayout(values.get(_name(path), {}), names)
                rows = read_file(self._place, path, schema, layout=laid, without=gone)
                yield from map(source_rows, rows)

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


def _partitions(table: DeltaTable) -> dict[str, Partition]:
    """Return the values of the files' partitions by their names; none if the table divides no rows."""
    if not (names := partitions(table)):
        return {}
    found = pa.table(table.get_add_actions(flatten=True))
    columns = [[value_text(value) for value in found.column(f"partition.{name}").to_pylist()] for name in names]
    paths = map(_name, found.column("path").to_pylist())
    return {path: dict(zip(names, values, strict=True)) for path, *values in zip(paths, *columns, strict=True)}


def _name(path: str) -> str:
    """Return the name of a data file, which a table's log and delta-rs write with and without its directory."""
    return unquote(path).rpartition("/")[2]

"""Iceberg plugin: Iceberg tables of an embedded, an SQL or a REST catalog."""

from importlib.util import find_spec

from agent.ports.plugin import SinkPlugin
from agent.ports.sink import Sink, SinkScope, SinkUri
from agent.ports.table_reader import TableReader
from agent.sinks.iceberg.options import CAPABILITIES, IcebergOptions

if find_spec("pyiceberg") is None:
    raise ImportError("pyiceberg is not installed: pip install 'weir-cdc[iceberg]'")


def _open(uri: SinkUri, scope: SinkScope) -> Sink:
    from agent.sinks.iceberg.sink import IcebergSink

    return IcebergSink(uri, scope)


def _open_table(uri: SinkUri, location: str) -> TableReader:
    from agent.sinks.iceberg.table_reader import IcebergTableReader

    return IcebergTableReader(uri, location)


# Nothing is preloaded: every Spark daemon would pay for it, half a second and 37 MB, also where no sink is Iceberg's.
PLUGIN = SinkPlugin(
    summary="Iceberg tables, one for each source table",
    schemes=("iceberg+file", "iceberg+sql", "iceberg+rest", "iceberg+glue"),
    open=_open,
    open_table=_open_table,
    learned=(
        "agent.sinks.iceberg.sink",
        "agent.sinks.iceberg.table.catalogs.sql",
        "pyiceberg.catalog.rest",
        "agent.sinks.iceberg.table.catalogs.glue",
    ),
    capabilities=CAPABILITIES,
    options=IcebergOptions,
)

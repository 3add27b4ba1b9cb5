"""A sink's Iceberg tables, opened as others open them."""

from pyiceberg.table import Table

from agent.sinks.iceberg.table.lake import Lake, TablePlace
from agent.sinks.uri import parse_sink_uri
from reactor.records.changefeed import TableRecord
from tests.contracts.sink_bed import Bed


def table_of(bed: Bed, record: TableRecord) -> Table:
    return Lake.of(parse_sink_uri(bed.uri)).place(record).opened()


def place_of(bed: Bed, record: TableRecord) -> TablePlace:
    return Lake.of(parse_sink_uri(bed.uri)).place(record)

"""A sink's Iceberg tables, opened as others open them."""

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyiceberg.table import Table

from agent.sinks.iceberg.table.catalogs.lake import Lake, TablePlace
from agent.sinks.uri import parse_sink_uri
from reactor.records.tables.table import TableRecord
from tests.contracts.sink_bed import Bed


def table_of(bed: Bed, record: TableRecord) -> Table:
    return Lake.of(parse_sink_uri(bed.uri)).place(record).opened()


def place_of(bed: Bed, record: TableRecord) -> TablePlace:
    return Lake.of(parse_sink_uri(bed.uri)).place(record)


def edit_metadata(bed: Bed, record: TableRecord, edited: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Give the table another metadata file, as a commit of another engine does that writes what PyIceberg does not."""
    old = table_of(bed, record).metadata_location
    location = old.replace(".metadata.json", "-theirs.metadata.json")
    metadata = json.loads(Path(old.removeprefix("file://")).read_text())
    Path(location.removeprefix("file://")).write_text(json.dumps(edited(metadata)))
    catalog = bed.uri.removeprefix("iceberg+file://").partition("?")[0] + "/catalog.db"
    base = sqlite3.connect(catalog)
    with base:
        names = (*record.path.split("/"), location)
        base.execute(
            "UPDATE iceberg_tables SET metadata_location = ?3 WHERE table_namespace = ?1 AND table_name = ?2", names
        )
    base.close()

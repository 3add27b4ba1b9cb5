"""Column mapping: which name a column has in files, and what becomes of it."""

import json
from typing import Any

import pyarrow as pa
import pytest

from agent.errors import TableHeldError
from agent.sinks.delta.table.mapping import NO_MAPPING, Column, ColumnNames, names_of_file, supporting

COLUMNS = pa.schema([("a", pa.int64()), ("b", pa.string())])
MAPPED = {"minWriterVersion": 7, "writerFeatures": ["columnMapping"]}


def begun() -> ColumnNames:
    return NO_MAPPING.begun(COLUMNS.names)


def test_names_begin_as_they_are_and_stay_through_renames() -> None:
    swapped = begun().after([("b", "a"), ("a", "b")])
    assert swapped.columns == {"b": Column("a", 1), "a": Column("b", 2)}
    assert (swapped.physical("a"), swapped.logical("a"), swapped.last_id) == ("b", "b", 2)


def test_a_column_that_was_dropped_and_comes_again_is_another_one() -> None:
    again = begun().after([("a", "a")]).after([("a", "a"), ("b", None)])
    assert again.physical("b") not in ("a", "b")
    assert again.columns is not None
    assert (again.columns["b"].id, again.last_id) == (3, 3)


def test_a_columns_name_in_a_file_is_never_that_of_another() -> None:
    """A file may have a column that the table lacks."""
    renamed = begun().after([("c", "a"), ("b", "b")])
    assert len({renamed.physical(name) for name in ("a", "b", "c")}) == 3


def test_what_is_described_is_read_again() -> None:
    names = begun().after([("b", "a"), ("c", None)])
    columns = pa.schema([("b", pa.int64()), ("c", pa.string())])
    text = names.described(columns)
    configuration = names.configured({"other": "x"})
    assert configuration["other"] == "x"
    assert ColumnNames.of(MAPPED, configuration, text) == names
    assert names.has_file(text)
    assert names_of_file(text).physical("b") == "a"
    assert not names.has_file(NO_MAPPING.described(columns))
    assert not NO_MAPPING.has_file(text)


def test_what_others_say_of_a_column_stays_with_it() -> None:
    before = json.loads(NO_MAPPING.described(COLUMNS))
    before["fields"][0]["metadata"]["comment"] = "of others"
    names = begun().after([("x", "a"), ("b", "b")])
    text = names.described(pa.schema([("x", pa.int64()), ("b", pa.string())]), json.dumps(before))
    first = json.loads(text)["fields"][0]
    assert (first["name"], first["metadata"]["comment"]) == ("x", "of others")


@pytest.mark.parametrize(
    ("protocol", "configuration"),
    [
        (MAPPED, {}),
        (MAPPED, {"delta.columnMapping.mode": "none"}),
        ({"minWriterVersion": 4}, {"delta.columnMapping.mode": "name"}),
        ({"minWriterVersion": 7, "writerFeatures": []}, {"delta.columnMapping.mode": "name"}),
    ],
)
def test_a_mapping_counts_only_where_the_protocol_has_it(
    protocol: dict[str, Any], configuration: dict[str, str | None]
) -> None:
    assert ColumnNames.of(protocol, configuration, begun().described(COLUMNS)) == NO_MAPPING


def test_another_mode_and_a_damaged_mapping_hold_the_table() -> None:
    text = begun().described(COLUMNS)
    with pytest.raises(TableHeldError, match="of mode 'id', and Weir writes mode 'name' alone; move the table away"):
        ColumnNames.of(MAPPED, {"delta.columnMapping.mode": "id"}, text)
    with pytest.raises(TableHeldError, match="mapping of a Delta table is damaged"):
        ColumnNames.of({"minWriterVersion": 5}, {"delta.columnMapping.mode": "name"}, NO_MAPPING.described(COLUMNS))


def test_a_protocol_names_all_that_it_had() -> None:
    """delta-rs forgets what a version has without naming it."""
    assert supporting({"minReaderVersion": 2, "minWriterVersion": 5}, "timestampNtz") == {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": ["columnMapping", "timestampNtz"],
        "writerFeatures": [
            *("appendOnly", "changeDataFeed", "checkConstraints", "columnMapping", "generatedColumns", "invariants"),
            "timestampNtz",
        ],
    }
    vectors = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["v"], "writerFeatures": ["v"]}
    assert supporting(vectors, "columnMapping")["readerFeatures"] == ["columnMapping", "v"]
    assert supporting({"minReaderVersion": 1, "minWriterVersion": 2}, "columnMapping")["writerFeatures"] == [
        "appendOnly",
        "columnMapping",
        "invariants",
    ]

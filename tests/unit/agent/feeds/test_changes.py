"""Changes for a reader: of a table that has another key by now, and for one that knows other columns, where each value
is the same, or an error is reported."""

from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from agent.errors import DecodeError
from agent.feeds import changes
from agent.flush import task
from agent.rows.changes import BEFORE_KEY, UPDATE, Changes
from agent.rows.schema import Column, TableSchema
from reactor.ids import Ts
from reactor.records.changefeed import FilterConfig
from reactor.records.tables.table import TableRecord

_LOCAL, _MOMENT = pa.timestamp("us"), pa.timestamp("us", "UTC")


def read(values: list[Any], found: pa.DataType, wanted: pa.DataType) -> list[Any]:
    rows = pa.table({"a": pa.array(values, found)})
    conformed = changes.conformed(rows, pa.schema([("a", wanted)]), leaves_out=False)
    return list(conformed.column("a").to_pylist())


@pytest.mark.parametrize(
    ("values", "found", "wanted", "expected"),
    [
        ([1, None], pa.int32(), pa.int64(), [1, None]),
        ([1], pa.int64(), pa.int32(), [1]),
        ([1], pa.int32(), pa.decimal128(12, 2), [Decimal("1.00")]),
        ([1], pa.int32(), pa.float64(), [1.0]),
        ([0.5], pa.float32(), pa.float64(), [0.5]),
        ([2.0], pa.float64(), pa.int32(), [2]),
        ([Decimal("1.50")], pa.decimal128(12, 2), pa.decimal128(14, 4), [Decimal("1.5000")]),
        ([12], pa.int32(), pa.string(), ["12"]),
        ([["x"], None], pa.list_(pa.string()), pa.list_(pa.field("element", pa.string())), [["x"], None]),
        ([[1]], pa.list_(pa.int32()), pa.list_(pa.int64()), [[1]]),
        (["a"], pa.large_string(), pa.string(), ["a"]),
        ([b"a"], pa.large_binary(), pa.binary(), [b"a"]),
        ([["a"]], pa.large_list(pa.large_string()), pa.list_(pa.string()), [["a"]]),
        ([None], pa.null(), pa.binary(), [None]),
    ],
    ids=str,
)
def test_a_value_is_the_same_in_a_wider_type(
    values: list[Any], found: pa.DataType, wanted: pa.DataType, expected: list[Any]
) -> None:
    assert read(values, found, wanted) == expected


@pytest.mark.parametrize(
    ("values", "found", "wanted"),
    [
        ([2**40], pa.int64(), pa.int32()),
        ([2**60 + 1], pa.int64(), pa.float64()),
        (["012"], pa.string(), pa.int32()),
        (["true"], pa.string(), pa.bool_()),
        (["2026-01-01"], pa.string(), pa.date32()),
        ([5], pa.int64(), pa.bool_()),
        ([5], pa.int64(), _MOMENT),
        ([5], pa.int32(), pa.date32()),
        ([5], _LOCAL, _MOMENT),
        ([5], _MOMENT, _LOCAL),
        ([5], _LOCAL, pa.date32()),
        ([5], pa.date32(), _MOMENT),
        ([0.1], pa.float64(), pa.float32()),
        ([0.125], pa.float64(), pa.decimal128(12, 2)),
        ([Decimal("0.1")], pa.decimal128(12, 1), pa.float64()),
        ([Decimal("1.2501")], pa.decimal128(12, 4), pa.decimal128(12, 2)),
        ([b"a"], pa.binary(), pa.string()),
        (["a"], pa.string(), pa.binary()),
        ([["1"]], pa.list_(pa.string()), pa.list_(pa.int32())),
        (["a"], pa.string(), pa.list_(pa.string())),
    ],
    ids=str,
)
def test_a_value_is_never_bent_into_another_type(values: list[Any], found: pa.DataType, wanted: pa.DataType) -> None:
    with pytest.raises(DecodeError, match=r"column a is .* at the source, and .* to the reader"):
        read(values, found, wanted)


def test_a_column_that_the_reader_does_not_know_is_named_or_left_out() -> None:
    rows = pa.table({"id": pa.array([1], pa.int32()), "new": ["x"]})
    wanted = pa.schema([("id", pa.int32()), ("gone", pa.string())])
    with pytest.raises(DecodeError, match="a column that the reader does not know: new"):
        changes.conformed(rows, wanted, leaves_out=False)
    assert changes.conformed(rows, wanted, leaves_out=True).to_pylist() == [{"id": 1, "gone": None}]


@pytest.mark.parametrize("key", [("number",), ("region",), ()], ids=str)
def test_a_key_moves_by_the_columns_that_the_table_had_as_its_key_then(
    key: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was renamed since, or has other columns."""
    columns = (Column("id", 23, -1, is_key=True), Column("region", 23, -1, is_key=True), Column("v", 23, -1))
    images = [
        pa.record_batch([pa.array([value], pa.int32()) for value in row], names=["id", "region", "v"])
        for row in ((1, 5, None), (2, 5, 7))
    ]
    update = Changes(
        schema=TableSchema(1, "public", "t", columns),
        op=np.array([UPDATE], np.int8),
        commit_ts=np.array([9], np.int64),
        seq=np.array([0], np.int64),
        before=images[0],
        after=images[1],
        before_kind=np.array([BEFORE_KEY], np.int8),
    )
    monkeypatch.setattr(task, "read_changes", lambda _: iter([update]))
    table = TableRecord.new(1, "public", "t", key=key)
    [rows] = changes.read(changes.LogSlice(table, FilterConfig(), (), Ts(0), Ts(9)))
    assert rows.select(["_change_type", "id", "region", "v"]).to_pylist() == [
        {"_change_type": "delete", "id": 1, "region": 5, "v": None},
        {"_change_type": "insert", "id": 2, "region": 5, "v": 7},
    ]

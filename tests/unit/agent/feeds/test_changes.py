"""Rows for a reader that knows other columns: each value is the same, or the reader is told."""

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from agent.errors import DecodeError
from agent.feeds import changes

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

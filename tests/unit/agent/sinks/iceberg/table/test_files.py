"""Bounds of data files: never inside the values, whatever these are."""

import base64
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.conversions import from_bytes
from pyiceberg.types import PrimitiveType

from agent.sinks.iceberg.table import schema
from agent.sinks.iceberg.table.files import Statistics


def _bounds(column: pa.Array) -> tuple[Any, ...]:
    table = pa.table({"c": column})
    made = schema.new_schema(table.schema)
    statistics = Statistics(made)
    for at in range(len(table)):  # as many pieces as rows
        statistics.note(table.slice(at, 1))
    found, kind = statistics.described(), made.fields[0].field_type
    assert isinstance(kind, PrimitiveType)
    return tuple(
        from_bytes(kind, base64.b64decode(found[which]["1"])) if "1" in found[which] else None
        for which in ("lower", "upper")
    )


@pytest.mark.parametrize(
    "texts",
    [
        ["a" * 100, "b" * 100],
        ["a" * 64, "a" * 65],
        ["☃" * 64 + "a", "☃" * 63],
        ["", "x" * 63 + "\ud7ff" * 5],
        ["x" * 10 + "\U0010ffff" * 80],
        ["\U0010ffff" * 80],
    ],
)
def test_bounds_of_long_texts_are_outside_them(texts: list[str]) -> None:
    lower, upper = _bounds(pa.array(texts))
    assert lower <= min(texts)
    assert upper is None or upper >= max(texts)
    assert len(lower) <= 64
    assert upper is None or len(upper) <= 64


def test_bounds_of_numbers_and_moments_are_exact() -> None:
    assert _bounds(pa.array([3, None, -7])) == (-7, 3)
    assert _bounds(pa.array([-800_000, 5], pa.int32()).cast(pa.date32())) == (-800_000, 5)
    assert _bounds(pa.array([2**62, -1], pa.int64()).cast(pa.timestamp("us", "UTC"))) == (-1, 2**62)


def test_a_column_without_values_or_with_floats_has_none() -> None:
    assert _bounds(pa.array([None], pa.int64())) == (None, None)
    assert _bounds(pa.array([float("nan"), 1.0])) == (None, None)

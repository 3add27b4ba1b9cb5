"""SQL conditions over whole columns: SQL's logic, types that meet halfway, and refusals before any row flows."""

import datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from agent.errors import FilterError
from agent.filter.expressions import parse

ROWS = pa.RecordBatch.from_pydict(
    {
        "id": pa.array([1, 2, 3, None], pa.int64()),
        "price": pa.array([Decimal("9.99"), Decimal("10.00"), None, Decimal("-1.50")], pa.decimal128(10, 2)),
        "name": pa.array(["Ann", "bob", None, "Bo_b"], pa.string()),
        "day": pa.array([datetime.date(2026, 1, d) for d in (1, 2, 3, 4)], pa.date32()),
        "is_open": pa.array([True, False, None, True], pa.bool_()),
    }
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("id = 2", [0, 1, 0, 0]),
        ("id <> 2", [1, 0, 1, 0]),
        ("NOT id = 2", [1, 0, 1, 0]),
        ("id = 2 OR price < 0", [0, 1, 0, 1]),
        ("id = 2 OR name IS NULL", [0, 1, 1, 0]),
        ("NOT (id > 1 AND name LIKE 'b%')", [1, 0, 0, 1]),
        ("id IN (1, 3)", [1, 0, 1, 0]),
        ("id NOT IN (1, NULL)", [0, 0, 0, 0]),
        ("id BETWEEN 2 AND 3", [0, 1, 1, 0]),
        ("price >= 9.99", [1, 1, 0, 0]),
        ("price = -1.5", [0, 0, 0, 1]),
        ("day >= '2026-01-03'", [0, 0, 1, 1]),
        ("name = 'Ann'", [1, 0, 0, 0]),
        ("lower(name) LIKE 'bo%'", [0, 1, 0, 1]),
        ("name REGEXP '^[A-Z]'", [1, 0, 0, 1]),
        ("name IS NOT NULL", [1, 1, 0, 1]),
        ("is_open", [1, 0, 0, 1]),
        ("is_open IS NOT TRUE", [0, 1, 1, 0]),
        ("is_open = 1", [1, 0, 0, 1]),
        ("id <=> NULL", [0, 0, 0, 1]),
        ("id % 2 = 1", [1, 0, 1, 0]),
        ("-7 % 3 = -1", [1, 1, 1, 1]),
        ("id + 1 > 2 AND abs(price) > 9", [0, 1, 0, 0]),
        ("coalesce(id, 7) = 7", [0, 0, 0, 1]),
        ("ID = 1", [1, 0, 0, 0]),
        ("NULL", [0, 0, 0, 0]),
    ],
)
def test_rows_that_make_it_true(text: str, expected: list[int]) -> None:
    assert parse(text).matches(ROWS).tolist() == [bool(flag) for flag in expected]


def test_the_columns_that_it_reads() -> None:
    assert parse("a > 1 AND lower(b) = 'x' OR a IS NULL").columns == ("a", "b")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("price >", "cannot be read at character 7; write one condition in SQL"),
        ("price = 'a", "cannot be read; write one condition in SQL"),
        ("1; DROP TABLE x", "is not one condition"),
        ("", "is not one condition"),
        ("sleep(5)", "not supported"),
        ("id IN (SELECT 1)", "not supported"),
        ("t.id = 1", "write columns without a table's name"),
        ("DELETE FROM t", "not supported"),
    ],
)
def test_what_is_no_condition_is_refused_when_it_is_read(text: str, reason: str) -> None:
    with pytest.raises(FilterError, match=reason):
        parse(text)


@pytest.mark.parametrize("text", ["name + 1 > 0", "day = 'soon'", "missing = 1", "name LIKE name"])
def test_what_does_not_fit_the_columns_is_one_line(text: str) -> None:
    with pytest.raises(FilterError) as caught:
        parse(text).matches(ROWS)
    assert "\n" not in str(caught.value)
    assert repr(text) in str(caught.value)


LARGEST = pa.RecordBatch.from_pydict(
    {
        "u64": pa.array([1, 2**64 - 1], pa.uint64()),
        "u8": pa.array([200, 100], pa.uint8()),
        "i64": pa.array([-(2**63), 2**63 - 1], pa.int64()),
        "f64": pa.array([1e-9, 1.5e300], pa.float64()),
    }
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"u64 = {2**64 - 1}", [0, 1]),
        (f"u64 < {2**70}", [1, 1]),
        ("u64 + 1 > u64", [1, 1]),
        ("u8 + u8 > 255", [1, 0]),
        ("u8 - 150 < 0", [0, 1]),
        ("u8 * 2 = 400", [1, 0]),
        (f"i64 > {10**40}", [0, 0]),
        ("f64 > 1e300", [0, 1]),
        ("f64 < 1e-8", [1, 0]),
        ("u8 % 7 = 4", [1, 0]),
        ("u8 % (u8 - 200) = 0", [0, 1]),
    ],
)
def test_large_numbers_and_sums_of_narrow_columns(text: str, expected: list[int]) -> None:
    assert parse(text).matches(LARGEST).tolist() == [bool(one) for one in expected]


def test_a_sum_that_no_integer_holds_is_refused() -> None:
    with pytest.raises(FilterError, match="overflow"):
        parse("i64 + 1 > 0").matches(LARGEST)


@pytest.mark.parametrize("number", ["1e309", "1e99999999", "1e-400", "9" * 400])
def test_numbers_that_no_column_has_are_refused(number: str) -> None:
    with pytest.raises(FilterError, match="is no number up to 1e308"):
        parse(f"id = {number}")

"""Conversions that depend on more than the two types."""

import itertools
import re

import pyarrow as pa
import pytest

from agent.errors import DecodeError
from agent.rows.schema import Column, ZeroDates
from agent.rows.schema_change import Exact, Refused
from agent.sources.mysql.decode.types import FieldType, arrow_type
from agent.sources.mysql.retyping.retyping import conversion
from agent.sources.mysql.retyping.terms import RetypeTerms
from tests.architecture.render_conversions import COLUMNS


def test_a_timestamp_that_becomes_not_null_gets_the_time_of_the_statement_in_strict_mode_too() -> None:
    """Instead of NULL; which time that was, the conversion does not know."""
    strict = RetypeTerms(is_mariadb=True, sql_mode=1 << 22, time_zone="+00:00", required=frozenset({"v"}))
    moments = [Column("v", int(FieldType.TIMESTAMP2), digits) for digits in (0, 3)]
    for before in (moments[0], moments[1], Column("v", int(FieldType.LONGLONG), 0)):
        found = conversion(before, moments[1], strict)
        assert isinstance(found, Exact)
        with pytest.raises(DecodeError, match="NOT NULL"):
            found.convert(pa.nulls(1, arrow_type(before, zero_dates=ZeroDates.NULL)))


@pytest.mark.parametrize(
    ("sql_mode", "values", "is_known"),
    [(0, [1, 5], True), (0, [0, 5], False), (0, [None, 5], False), (1 << 19, [0, 5], True), (1 << 19, [None], False)],
)
@pytest.mark.parametrize("before", [FieldType.LONG, FieldType.LONGLONG])
def test_a_column_that_gets_auto_increment_has_new_numbers_for_null_and_zero(
    before: FieldType, sql_mode: int, values: list[int | None], is_known: bool
) -> None:
    sent = RetypeTerms(is_mariadb=True, sql_mode=sql_mode, numbered=frozenset({"v"}))
    terms = RetypeTerms.from_context(sent.to_context(), ZeroDates.NULL)
    assert terms == sent
    column = Column("v", int(before), 0)
    found = conversion(column, Column("v", int(FieldType.LONGLONG), 0), terms)
    assert isinstance(found, Exact)
    given = pa.array(values, arrow_type(column, zero_dates=ZeroDates.NULL))
    if is_known:
        assert found.convert(given).to_pylist() == values
        return
    with pytest.raises(DecodeError, match="AUTO_INCREMENT"):
        found.convert(given)


@pytest.mark.parametrize("is_mariadb", [True, False])
def test_every_refusal_names_both_types_and_its_cause(is_mariadb: bool) -> None:
    pads_chars = 1 << 31
    for sql_mode, (before, after) in itertools.product((0, pads_chars), itertools.product(COLUMNS, COLUMNS)):
        found = conversion(before, after, RetypeTerms(is_mariadb, sql_mode, "+00:00"))
        if isinstance(found, Refused):
            begin = f"Weir does not know what the server makes of {before.type_name} as {after.type_name} ("
            assert found.reason.startswith(begin)
            assert len(found.reason) > len(begin) + len("()")


@pytest.mark.parametrize(
    ("before", "after", "cause"),
    [
        ("float", "json", "JSON"),
        ("json", "int", "JSON"),
        ("int", "geometry", "geometries"),
        ("date", "geometry", "geometries"),
        ("uuid", "int", "uuid"),
        ("json", "date", "dates and times"),
        ("time(3)", "date", "the date of the day"),
    ],
)
def test_the_cause_is_that_of_the_types(before: str, after: str, cause: str) -> None:
    named = {column.type_name: column for column in COLUMNS}
    found = conversion(named[before], named[after], RetypeTerms(is_mariadb=True, sql_mode=0, time_zone="+00:00"))
    assert isinstance(found, Refused)
    assert re.search(cause, found.reason.split(" (", 1)[1])


def test_context_round_trips_the_start_of_the_statement() -> None:
    sent = RetypeTerms(is_mariadb=True, sql_mode=0, time_zone="+05:00", second=1_700_000_000)
    assert RetypeTerms.from_context(sent.to_context(), ZeroDates.NULL) == sent


@pytest.mark.parametrize(("second", "days"), [(1_700_000_000, 19_675), (1_700_000_000 + 7200, 19_676)])
def test_a_time_becomes_one_of_the_day_of_the_statement(second: int, days: int) -> None:
    """In the session's time zone, whose day has begun two hours later there."""
    terms = RetypeTerms(is_mariadb=True, sql_mode=0, time_zone="-00:13", second=second)
    before, after = (Column("v", int(FieldType.TIME2), 0), Column("v", int(FieldType.DATETIME2), 0))
    found = conversion(before, after, terms)
    assert isinstance(found, Exact)
    day_us = 86_400 * 1_000_000
    [one, other] = found.convert(pa.array(["01:00:00", "-00:00:01"])).cast(pa.int64()).to_pylist()
    assert (one, other) == (days * day_us + 3_600_000_000, days * day_us - 1_000_000)

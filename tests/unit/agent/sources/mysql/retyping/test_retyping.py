"""Conversions that depend on more than the two types."""

import pyarrow as pa
import pytest

from agent.errors import DecodeError
from agent.rows.schema import Column, ZeroDates
from agent.rows.schema_change import Exact
from agent.sources.mysql.decode.types import FieldType, arrow_type
from agent.sources.mysql.retyping.retyping import conversion
from agent.sources.mysql.retyping.terms import RetypeTerms


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

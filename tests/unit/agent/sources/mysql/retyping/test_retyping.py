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

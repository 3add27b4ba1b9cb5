"""Delta's columns for a source's columns."""

from datetime import time

import pyarrow as pa
import pytest

from agent.errors import TableHeldError
from agent.sinks.common.forms import missing_fields
from agent.sinks.delta.table.schema import COMMIT_VERSION, delta_column, delta_schema, delta_type

SAME = [
    pa.bool_(),
    pa.int16(),
    pa.int32(),
    pa.int64(),
    pa.float32(),
    pa.float64(),
    pa.decimal128(38, 10),
    pa.string(),
    pa.binary(),
    pa.date32(),
    pa.timestamp("us"),
    pa.timestamp("us", "UTC"),
]


@pytest.mark.parametrize("arrow", SAME, ids=str)
def test_types_that_delta_has_stay(arrow: pa.DataType) -> None:
    assert delta_type(arrow) == arrow
    assert delta_column(pa.nulls(2, arrow)).type == arrow


def test_a_time_of_day_is_text() -> None:
    values = [time(1, 2, 3), time(23, 59, 59, 120), time(0, 0, 0, 500000), None]
    written = delta_column(pa.array(values, pa.time64("us")))
    assert written.to_pylist() == ["01:02:03", "23:59:59.000120", "00:00:00.500000", None]


def test_a_changelog_has_columns_of_its_own() -> None:
    arrow = pa.schema([("id", pa.int64())])
    assert delta_schema(arrow, is_changelog=True).names[1:3] == ["_change_type", "_commit_version"]
    with pytest.raises(TableHeldError, match="source column _commit_version has the name of a changelog column"):
        delta_schema(pa.schema([(COMMIT_VERSION, pa.int64())]), is_changelog=True)


def test_layouts_of_one_type_are_the_same() -> None:
    stored = pa.schema([("a", pa.large_string()), ("b", pa.binary_view()), ("c", pa.large_list(pa.string_view()))])
    wanted = pa.schema([("a", pa.string()), ("b", pa.binary()), ("c", pa.list_(pa.string())), ("d", pa.int32())])
    assert [item.name for item in missing_fields(stored, wanted, table="t")] == ["d"]
    with pytest.raises(TableHeldError, match="column a of t is large_string in the sink and int32 in the source"):
        missing_fields(stored, pa.schema([("a", pa.int32())]), table="t")

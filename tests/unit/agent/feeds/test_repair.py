"""Rows that are repaired are named by what differs in them."""

import pyarrow as pa
import pytest

from agent.feeds.diff import _in_words
from agent.feeds.repair import _named
from agent.rows.changes import BEFORE_FULL
from tests.unit.agent.changes_build import changes, update

NAN = float("nan")


@pytest.mark.parametrize("arrow", [pa.float64(), pa.float32()])
def test_a_column_that_is_not_a_number_on_both_sides_is_the_same(arrow: pa.DataType) -> None:
    columns = pa.schema([("a", arrow), ("b", arrow), ("c", arrow), ("v", pa.string())])
    row = update(NAN, 0.0, None, "x", before=(NAN, -0.0, None, "y"), before_kind=BEFORE_FULL)
    [named] = _named(changes([row], arrow=columns), ["a"])
    assert named.columns == ("b", "v")


def test_a_key_that_is_cut_says_so() -> None:
    shown = [_in_words({"a": "x" * length, "b": 1}, pa.table({}), 1, 0) for length in (10, 300)]
    assert shown == ["a=xxxxxxxxxx, b=1: missing in the sink", f"a={'x' * 197}…: missing in the sink"]

"""Folded changelogs: whatever was changed, and by whichever key, the rows are those of the table."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.errors import TableHeldError
from agent.rows.changes import BEFORE_FULL, BEFORE_KEY, BEFORE_NONE
from agent.rows.schema_change import ColumnMove, SchemaChange
from agent.sinks.common.changelog import CHANGELOG_FIELDS, changelog_rows
from agent.sinks.common.folded import current_rows
from agent.sinks.common.keys.former_keys import FormerKeys
from agent.sinks.delta.table.schema import FORMS
from reactor.ids import TableSpan, Ts
from reactor.records.tables.schema_change import SchemaChangeKind
from reactor.records.tables.table import TableRecord
from tests.unit.agent.changes_build import ARROW, Change, changes, delete, insert, table_schema, truncate, update

Row = tuple[int, str, str]
_SPAN = TableSpan(16384)


@st.composite
def stories(draw: Callable[..., Any]) -> list[tuple[tuple[str, ...], list[tuple[str, Row, int]]]]:
    """Keys, each with what is done while it counts: an operation, new values, and which of the rows it is about."""
    row = st.tuples(st.integers(0, 5), st.sampled_from("abc"), st.sampled_from("xy"))
    step = st.tuples(
        st.sampled_from(["insert", "insert", "update", "update", "delete", "truncate"]), row, st.integers(0, 9)
    )
    keys = st.sampled_from([(), ("id",), ("name",), ("id", "name")])
    story: list[tuple[tuple[str, ...], list[tuple[str, Row, int]]]]
    story = draw(st.lists(st.tuples(keys, st.lists(step, max_size=8)), min_size=1, max_size=4))
    return story


@given(story=stories())
def test_the_rows_of_a_changelog_are_those_of_its_table(
    story: list[tuple[tuple[str, ...], list[tuple[str, Row, int]]]],
) -> None:
    """Without a key the source sends whole old rows. A key comes only where all rows differ in it."""
    there: list[Row] = []
    written = [pa.table({item.name: pa.array([], item.type) for item in [*ARROW, *CHANGELOG_FIELDS]})]
    former, key, ts = FormerKeys(), story[0][0], 100
    for wanted, steps in story:
        if len({_of(row, wanted) for row in there}) == len(there) or not wanted:
            ts += 10
            former, key = former.after(_moved(key, wanted, ts)), wanted
        done: list[Change] = []
        for operation, row, which in steps:
            ts += 1
            if change := _step(there, operation, row, which, key, ts):
                done.append(change)
        if done:
            written.append(changelog_rows(changes(done, key=key), _SPAN, key=key, forms=FORMS))
    log = pa.concat_tables([written[0].cast(pa.schema([*ARROW, *CHANGELOG_FIELDS])), *written[1:]])
    found = current_rows(log, table_schema(key=key), ARROW, key=key, former=former)
    assert Counter(tuple(row.values()) for row in found.to_pylist()) == Counter(there)


def _step(there: list[Row], operation: str, row: Row, which: int, key: tuple[str, ...], ts: int) -> Change | None:
    if operation == "truncate":
        there.clear()
        return truncate(ts=ts)
    if operation == "insert":
        if key and any(_of(row, key) == _of(other, key) for other in there):
            return None
        there.append(row)
        return insert(*row, ts=ts)
    if not there:
        return None
    old = there[which % len(there)]
    if operation == "delete":
        there.remove(old)
        return delete(*(old if not key else _key_of(old, key)), before_kind=BEFORE_KEY if key else BEFORE_FULL, ts=ts)
    if key and _of(row, key) != _of(old, key) and any(_of(row, key) == _of(other, key) for other in there):
        return None
    there[there.index(old)] = row
    if not key:
        return update(*row, before=old, before_kind=BEFORE_FULL, ts=ts)
    if _of(row, key) == _of(old, key):
        return update(*row, before_kind=BEFORE_NONE, ts=ts)
    return update(*row, before=_key_of(old, key), before_kind=BEFORE_KEY, ts=ts)


def _of(row: Row, key: tuple[str, ...]) -> tuple[Any, ...]:
    return tuple(value for name, value in zip(ARROW.names, row, strict=True) if name in key)


def _key_of(row: Row, key: tuple[str, ...]) -> tuple[Any, ...]:
    return tuple(value if name in key else None for name, value in zip(ARROW.names, row, strict=True))


def _moved(before: tuple[str, ...], after: tuple[str, ...], ts: int) -> SchemaChange:
    record = TableRecord(table_id=16384, schema_name="public", name="t", key=before)
    moves = tuple(ColumnMove(item.name, item.type, item.name) for item in ARROW)
    return SchemaChange(Ts(ts), SchemaChangeKind.ALTER, record, record.with_(key=after), moves, table_schema(), ARROW)


def test_rows_that_were_equal_in_a_key_before_it_was_one() -> None:
    done = [insert(1, "a", "x"), insert(1, "b", "y"), delete(1, "a", "x", before_kind=BEFORE_FULL, ts=2)]
    log = changelog_rows(changes(done, key=()), _SPAN, key=(), forms=FORMS)
    former = FormerKeys().after(_moved((), ("id",), 10))
    found = current_rows(log, table_schema(), ARROW, key=("id",), former=former)
    assert found.to_pylist() == [{"id": 1, "name": "b", "big": "y"}]


@pytest.mark.parametrize(
    "done", [[delete(1, None, None, before_kind=BEFORE_KEY)], [update(1, "b", "x")], [delete(2, "b", "y", ts=2)]]
)
def test_old_rows_that_are_not_whole_or_not_there_are_no_rows_to_compare(done: list[Change]) -> None:
    log = changelog_rows(changes([insert(1, "a", "x"), *done], key=()), _SPAN, key=(), forms=FORMS)
    with pytest.raises(TableHeldError, match=r"public\.t cannot be compared"):
        current_rows(log, table_schema(key=()), ARROW, key=())


def test_rows_of_a_table_that_has_lost_all_columns_are_counted() -> None:
    before = [insert(1, "a", "x"), truncate(ts=2), insert(2, "a", "x", ts=3), insert(3, "b", "y", ts=3)]
    after = [insert(4, "a", "x", ts=4), delete(2, "a", "x", before_kind=BEFORE_FULL, ts=5)]
    log = changelog_rows(changes([*before, *after], key=()), _SPAN, key=(), forms=FORMS)
    assert current_rows(log, table_schema(key=()), pa.schema([]), key=()).num_rows == 2

"""Rows that a transaction wrote before it changed their table go into the table as it then is."""

import numpy as np
import pyarrow as pa
import pytest

from agent.errors import TableHeldError
from agent.rows.changes import BEFORE_FULL, INSERT, UPDATE, Changes
from agent.rows.schema import Column, TableSchema
from agent.schema_changes.conform import conform
from agent.sources.postgres.decode.types import arrow_schema
from reactor.records.tables.schema_change import TableChange

INT4, INT8, TEXT = 23, 20, 25


def schema(**columns: tuple[int, int]) -> TableSchema:
    """``name=(type, place)``."""
    return TableSchema(
        1, "public", "t", tuple(Column(name, kind, -1, place=at) for name, (kind, at) in columns.items())
    )


BEFORE = schema(id=(INT4, 1), a=(TEXT, 2), gone=(TEXT, 3))
AFTER = schema(id=(INT8, 1), b=(TEXT, 2), n=(INT4, 4))


def change(after: TableSchema = AFTER, **fields: object) -> str:
    usual = {"kind": "alter", "before": BEFORE.to_json(), "renames": {"b": "a"}, "added": ("n",), "fills": {"n": "7"}}
    return TableChange.model_validate({"table_id": 1, "after": after.to_json()} | usual | fields).model_dump_json()


def rows(table: TableSchema = BEFORE) -> Changes:
    arrow = arrow_schema(table)
    values = {"id": [1, 2], "a": ["x", "y"], "b": ["x", "y"], "gone": ["g", "g"], "n": [1, 1]}
    image = pa.RecordBatch.from_arrays([pa.array(values[item.name], item.type) for item in arrow], schema=arrow)
    return Changes(
        table,
        np.array([INSERT, UPDATE], np.int8),
        np.array([5, 5]),
        np.array([0, 1]),
        image,
        image,
        np.array([0, BEFORE_FULL], np.int8),
        unchanged={"a": np.array([False, True])} if "a" in arrow.names else {},
    )


def test_columns_follow_by_number() -> None:
    found = conform(rows(), change(), keeps_gone=False)
    assert found.after.to_pylist() == [{"id": 1, "b": "x", "n": 7}, {"id": 2, "b": "y", "n": 7}]
    assert found.before is not None
    assert found.before.schema.equals(found.after.schema)
    assert found.schema == AFTER
    assert list(found.unchanged) == ["b"]


def test_what_is_of_the_new_schema_stays() -> None:
    after = rows(AFTER)
    assert conform(after, change(), keeps_gone=False) is after


def test_a_changelog_keeps_what_is_gone() -> None:
    found = conform(rows(), change(), keeps_gone=True)
    assert found.after.schema.names == ["id", "b", "n", "gone"]
    assert found.after.column("gone").to_pylist() == ["g", "g"]


def test_a_table_that_is_new_has_the_columns_that_it_was_left_with() -> None:
    made = change(kind="create", before="", renames={}, added=())
    found = conform(rows(), made, keeps_gone=True)
    assert found.after.to_pylist() == [{"id": 1, "b": "x", "n": 7}, {"id": 2, "b": "y", "n": 7}]


def test_without_numbers_names_and_renames_tell() -> None:
    plain = TableSchema(1, "public", "t", tuple(Column(c.name, c.type_id, -1) for c in AFTER.columns))
    found = conform(rows(), change(plain), keeps_gone=False)
    assert found.after.to_pylist() == [{"id": 1, "b": "x", "n": 7}, {"id": 2, "b": "y", "n": 7}]


def test_a_value_that_does_not_fit_is_refused() -> None:
    after = schema(id=(INT8, 1), b=(INT4, 2), n=(INT4, 4))
    with pytest.raises(TableHeldError, match=r"column b of public\.t has become int32"):
        conform(rows(), change(after), keeps_gone=False)

"""Columns are known again by their numbers, and where those are missing, by what else is known."""

import pytest

from agent.rows.schema import Column, TableSchema
from agent.sources.postgres.stream.column_numbers import matched, placed


def table(**columns: int) -> TableSchema:
    return TableSchema(1, "public", "t", tuple(Column(name, 25, -1, place=place) for name, place in columns.items()))


KNOWN = table(id=1, a=2, b=4)


def names(*columns: str) -> TableSchema:
    return table(**dict.fromkeys(columns, 0))


@pytest.mark.parametrize(
    ("declared", "catalog", "renames", "added"),
    [
        # as it was
        (names("id", "a", "b"), {}, {}, ()),
        # renamed, added, dropped, while the catalog still says so
        (names("id", "x", "b"), {"id": 1, "x": 2, "b": 4}, {"x": "a"}, ()),
        (names("id", "a", "b", "c"), {"id": 1, "a": 2, "b": 4, "c": 5}, {}, ("c",)),
        (names("id", "b", "c"), {"id": 1, "b": 4, "c": 5}, {}, ("c",)),
        # dropped and added again
        (names("id", "b", "a"), {"id": 1, "b": 4, "a": 5}, {}, ("a",)),
        # names that changed places
        (names("id", "b", "a"), {"id": 1, "b": 2, "a": 4}, {"b": "a", "a": "b"}, ()),
        # renamed once more since: known by place
        (names("id", "x", "b"), {"id": 1, "y": 2, "b": 4}, {"x": "a"}, ()),
        # names that changed places, and one of the columns is gone since
        (names("id", "b", "a"), {"id": 1, "b": 2}, {"b": "a", "a": "b"}, ()),
        # dropped since: a new one
        (names("id", "a", "b", "c"), {"id": 1, "a": 2, "b": 4}, {}, ("c",)),
        # the table is gone
        (names("id", "x", "b", "c"), {}, {"x": "a"}, ("c",)),
    ],
)
def test_columns_are_known_again(
    declared: TableSchema, catalog: dict[str, int], renames: dict[str, str], added: tuple[str, ...]
) -> None:
    found = matched(KNOWN, placed(KNOWN, declared, catalog), {"c": "5"})
    assert (dict(found.renames), found.added) == (renames, added)
    assert dict(found.fills) == ({"c": "5"} if "c" in added else {})

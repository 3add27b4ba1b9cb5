"""Columns are known again by their numbers, and where those are missing, by what else is known."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.rows.schema import Column, TableSchema
from agent.sources.postgres.stream.column_numbers import Numbers, matched, placed


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
    found = matched(KNOWN, placed(KNOWN, declared, Numbers(catalog)), {"c": "5"})
    assert (dict(found.renames), found.added) == (renames, added)
    assert dict(found.fills) == ({"c": "5"} if "c" in added else {})


@dataclass
class _Table:
    """A table whose columns are altered: numbers and names, in order; ``dropped``: what was dropped, and when."""

    columns: dict[int, str] = field(default_factory=lambda: {1: "id", 2: "a", 3: "b"})
    last: int = 3
    dropped: list[int] = field(default_factory=list)

    def alter(self, kind: int, name: str, at: int) -> None:
        numbers = sorted(self.columns)
        number = numbers[at % len(numbers)]
        other = next((one for one, its in self.columns.items() if its == name), 0)
        if kind == 0 and not other:
            self.last += 1
            self.columns[self.last] = name
        elif kind == 1 and len(numbers) > 1:
            del self.columns[number]
            self.dropped.append(number)
        elif kind == 2 and other:
            self.columns[other], self.columns[number] = self.columns[number], name
        elif kind == 2:
            self.columns[number] = name

    def declared(self) -> TableSchema:
        return table(**{name: 0 for _, name in sorted(self.columns.items())})

    def numbered(self) -> TableSchema:
        return table(**{name: number for number, name in sorted(self.columns.items())})


_ALTERATION = st.tuples(st.integers(0, 2), st.sampled_from("abcd"), st.integers(0, 5))


@given(st.lists(_ALTERATION, max_size=3), st.lists(_ALTERATION, max_size=2), st.booleans())
def test_numbers_are_right_however_late_the_catalog_is_read(
    before: list[tuple[int, str, int]], since: list[tuple[int, str, int]], is_known: bool
) -> None:
    """Or, of a known table, a column shows that has been dropped."""
    altered = _Table()
    known = altered.numbered() if is_known else None
    for alteration in before:
        altered.alter(*alteration)
    truth, declared, drops = altered.numbered(), altered.declared(), len(altered.dropped)
    for alteration in since:
        altered.alter(*alteration)
    gone = tuple(sorted(altered.dropped[drops:]))
    by_name = {name: number for number, name in altered.columns.items()}
    catalog = Numbers(by_name, tuple(sorted(altered.columns)), gone, gone)
    found = [column.place for column in placed(known, declared, catalog).columns]
    is_right = found == [column.place for column in truth.columns]
    assert is_right or (known is not None and not altered.columns.keys() >= set(found))


def test_a_column_that_was_added_again_behind_a_new_one_is_still_the_old_one_before_that() -> None:
    """Its number of today is higher than that of the column that the stream declares behind it."""
    today = Numbers({"id": 1, "a": 2, "c": 5, "b": 6}, (1, 2, 5, 6), gone=(4,))
    found = placed(KNOWN, names("id", "a", "b", "c"), today)
    assert [column.place for column in found.columns] == [1, 2, 4, 5]
    assert matched(found, placed(found, names("id", "a", "c", "b"), today), {}).added == ("b",)


def test_a_column_that_a_later_transaction_dropped_was_renamed_before_that() -> None:
    """A newer column has got its new name since."""
    today = Numbers({"id": 1, "a": 2, "c": 5}, (1, 2, 5), gone=(4,), gone_since=(4,))
    assert [column.place for column in placed(KNOWN, names("id", "a", "c"), today).columns] == [1, 2, 4]
    same_transaction = Numbers({"id": 1, "a": 2, "c": 5}, (1, 2, 5), gone=(4,))
    assert [column.place for column in placed(KNOWN, names("id", "a", "c"), same_transaction).columns] == [1, 2, 5]


@pytest.mark.parametrize("name", ["b", "d"])
def test_a_known_column_that_an_older_transaction_has_dropped_may_have_been_there_still(name: str) -> None:
    """Transactions do not end in the order of their numbers."""
    today = Numbers({"id": 1, "c": 2, name: 5}, (1, 2, 5))
    assert [column.place for column in placed(KNOWN, names("id", "c", "b"), today).columns] == [1, 2, 4]

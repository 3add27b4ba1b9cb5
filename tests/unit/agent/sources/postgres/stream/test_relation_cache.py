"""Names that tables exchange, as the stream shows it and the catalog confirms it: no two tables get one name."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import example, given, settings

from agent.errors import DecodeError, SourceUnreachableError
from agent.rows.schema import Column, TableSchema
from agent.rows.schema_change import KnownTable, known_tables
from agent.sources.common import schema_diff
from agent.sources.postgres.stream.catalog_lookup import CatalogTable, Guess
from agent.sources.postgres.stream.relation_cache import SchemaTracker
from reactor.ids import Ts
from reactor.records.tables.schema_change import DdlRecord, SchemaChangeKind, TableChange
from reactor.records.tables.table import TableRecord
from tests.example_counts import many

ALTER, CREATE, DROP, HOLD, RENAME = (
    SchemaChangeKind.ALTER,
    SchemaChangeKind.CREATE,
    SchemaChangeKind.DROP,
    SchemaChangeKind.HOLD,
    SchemaChangeKind.RENAME,
)
_INT, _TEXT = 23, 25
_XID = 1_000


def declared(number: int, name: str, *columns: str) -> TableSchema:
    """A Relation message: an integer key, and texts."""
    texts = tuple(Column(column, _TEXT, -1) for column in columns)
    return TableSchema(number, "public", name, (Column("id", _INT, -1, is_key=True), *texts))


def known(number: int, name: str, *columns: str) -> KnownTable:
    schema = declared(number, name, *columns)
    schema = replace(schema, columns=tuple(replace(one, place=at) for at, one in enumerate(schema.columns, start=1)))
    record = TableRecord(table_id=number, schema_name="public", name=name, key=("id",))
    return KnownTable(record, schema)


class Rig:
    """``names``, ``columns``, ``fills``, ``guesses``, ``key``, ``built_empty``: what the catalog has; ``verified`` and
    ``unknown``: what the rows say of the guesses."""

    def __init__(
        self,
        *tables: KnownTable,
        takes: bool = True,
        needs_columns: bool = False,
        verified: Mapping[str, str] = MappingProxyType({}),
        unknown: Sequence[str] = (),
    ) -> None:
        self.begun = {table.record.table_id: table for table in tables}
        self.names = {number: table.record.name for number, table in self.begun.items()}
        self.columns: dict[int, tuple[str, ...]] = {}
        self.fills: dict[str, str] = {}
        self.guesses: dict[str, Guess] = {}
        self.key: tuple[str, ...] = ()
        self.built_empty: dict[str, int] = {}
        self.tracker = SchemaTracker(
            dict(self.begun),
            wants=lambda _, name: not name.startswith("_"),
            takes=lambda _: takes,
            look_up=self._look_up,
            names_of=lambda ids: {id: ("public", self.names[id]) for id in ids if id in self.names},
            verified=lambda *_: (dict(verified), [*unknown]),
            needs_columns=needs_columns,
        )
        self.records: list[DdlRecord] = []

    def _look_up(self, number: int) -> CatalogTable:
        if number not in self.names:
            return CatalogTable()
        names = ("id", *self.columns.get(number, ()))
        return CatalogTable(
            True,
            "public",
            self.names[number],
            places={name: at for at, name in enumerate(names, start=1)},
            fills={name: value for name, value in self.fills.items() if name in names},
            guesses=self.guesses,
            key=self.key,
            built_empty=self.built_empty,
            types=dict(zip(names, (_INT, *[_TEXT] * (len(names) - 1)), strict=True)),
        )

    def show(self, schema: TableSchema, ts: int, *, is_first: bool = False) -> None:
        """A row of the table comes; ``is_first``: of its transaction."""
        if self.tracker.awaits(schema):
            self.tracker.meet(schema, Ts(ts))
        if self.tracker.is_wanted(schema.table_id):
            self.tracker.note(schema, Ts(ts), _XID, is_first=is_first)

    def taken(self, ts: int) -> list[TableChange]:
        found = self.tracker.take(Ts(ts))
        self.records += found
        return [change for record in found for change in record.changes]

    def again(self, ts: int) -> dict[int, KnownTable]:
        """What another stream would know."""
        schemas = {number: table.schema for number, table in self.begun.items() if table.schema}
        return known_tables([table.record for table in self.begun.values()], schemas, self.records, at=Ts(ts))


def named(tables: Mapping[int, KnownTable]) -> dict[int, str]:
    return {number: table.record.name for number, table in tables.items() if not table.is_held}


def kinds(changes: list[TableChange]) -> dict[int, SchemaChangeKind]:
    return {change.table_id: change.kind for change in changes}


def test_a_name_is_taken_from_the_table_that_has_another_one_by_now() -> None:
    rig = Rig(known(1, "a"), known(2, "b"))
    rig.names = {1: "b", 2: "a"}
    rig.show(declared(1, "b"), 10)
    changes = rig.taken(10)
    assert kinds(changes) == {1: RENAME, 2: RENAME}
    assert named(rig.tracker.known) == named(rig.again(10)) == {1: "b", 2: "a"}


def test_a_rotation_of_names_is_known_by_one_row() -> None:
    rig = Rig(known(1, "a"), known(2, "b"), known(3, "c"))
    rig.names = {1: "b", 2: "c", 3: "a"}
    rig.show(declared(1, "b"), 10)
    assert kinds(rig.taken(10)) == {1: RENAME, 2: RENAME, 3: RENAME}
    assert named(rig.tracker.known) == {1: "b", 2: "c", 3: "a"}


def test_a_name_is_taken_from_a_table_that_is_gone() -> None:
    rig = Rig(known(1, "a"), known(2, "b"))
    rig.names = {1: "b"}
    rig.show(declared(1, "b"), 10)
    assert kinds(rig.taken(10)) == {1: RENAME, 2: DROP}
    assert named(rig.tracker.known) == named(rig.again(10)) == {1: "b"}


def test_a_new_table_takes_the_name_of_one_that_is_gone_or_has_another() -> None:
    rig = Rig(known(1, "a"), known(2, "b"))
    rig.names = {1: "old", 8: "a", 9: "b"}
    rig.show(declared(8, "a"), 10)
    rig.show(declared(9, "b"), 10)
    assert kinds(rig.taken(10)) == {1: RENAME, 2: DROP, 8: CREATE, 9: CREATE}
    assert named(rig.tracker.known) == named(rig.again(10)) == {1: "old", 8: "a", 9: "b"}
    created = rig.again(10)[8].record
    assert (created.start_ts, created.consistent_ts, created.key) == (9, 9, ("id",))


def test_a_new_table_that_the_changefeed_does_not_take_leaves_the_others_their_names() -> None:
    rig = Rig(known(1, "a"), takes=False)
    rig.names = {1: "old", 8: "a"}
    rig.show(declared(8, "a"), 10)
    assert kinds(rig.taken(10)) == {8: HOLD}
    rig.show(declared(8, "a"), 20)  # it was refused once
    assert rig.taken(20) == []
    assert named(rig.tracker.known) == {1: "a"}


def test_names_that_were_exchanged_since_are_not_given_twice() -> None:
    """The rows are read late: the catalog is already past another exchange, so the first one is left out."""
    rig = Rig(known(1, "a"), known(2, "b"))
    rig.show(declared(1, "b"), 10)  # while both have their old names again
    assert rig.taken(10) == []
    assert named(rig.tracker.known) == {1: "a", 2: "b"}


def test_a_table_that_is_gone_since_keeps_its_name_while_another_has_the_new_one() -> None:
    rig = Rig(known(1, "a"), known(2, "b"))
    del rig.names[1]
    rig.show(declared(1, "b"), 10)
    assert rig.taken(10) == []
    assert named(rig.tracker.known) == {1: "a", 2: "b"}


def test_a_table_without_a_definition_yet_does_not_move() -> None:
    """Its columns come with its first row, and its name with them."""
    bare = replace(known(2, "b"), schema=None)
    rig = Rig(known(1, "a"), bare)
    rig.names = {1: "b", 2: "a"}
    rig.show(declared(1, "b"), 10)
    assert kinds(rig.taken(10)) == {1: RENAME}
    assert rig.tracker.known[2] == bare


def test_an_edit_that_cannot_be_interpreted_holds_its_table_and_no_other_of_an_exchange(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two tables swap names, and then one of them changes in a way that fails: the other one has its new name."""
    rig = Rig(known(1, "a", "v"), known(2, "b", "v"))
    rig.names, rig.columns = {1: "b", 2: "a"}, {1: ("w",), 2: ("v",)}
    compare = schema_diff.compare

    def failing(before: KnownTable, after: KnownTable, *rest: Any) -> TableChange | None:
        if after.schema is not None and "w" in {column.name for column in after.schema.columns}:
            raise DecodeError("unknown")
        return compare(before, after, *rest)

    monkeypatch.setattr(schema_diff, "compare", failing)
    rig.show(declared(1, "b", "v"), 10)
    rig.show(declared(1, "b", "w"), 10)
    changes = rig.taken(10)
    assert kinds(changes) == {1: HOLD, 2: RENAME}
    hold = next(change for change in changes if change.is_hold)
    assert (hold.table and hold.table.name, "cannot be interpreted (DecodeError: unknown)" in hold.reason) == (
        "a",
        True,
    )
    assert named(rig.again(10)) == {2: "a"}


def test_a_table_that_loses_its_name_keeps_what_old_rows_hold_in_its_new_column() -> None:
    """One transaction adds a column, and then another table takes the name: old rows had NULL in the column."""
    rig = Rig(known(1, "a"), known(2, "b"))
    rig.names, rig.columns, rig.fills = {1: "old", 2: "a"}, {1: ("w",)}, {"w": "q"}
    rig.show(declared(1, "a", "w"), 10)
    rig.show(declared(2, "a"), 10)
    changes = {change.table_id: change for change in rig.taken(10)}
    assert (changes[1].added, changes[1].fills) == (("w",), {"w": "q"})
    assert named(rig.tracker.known) == {1: "old", 2: "a"}


def test_a_table_that_was_taken_for_gone_was_only_renamed_if_its_transaction_still_writes_to_it() -> None:
    """The catalog has it dropped: that comes later."""
    rig = Rig(known(1, "a"), known(2, "b"))
    rig.names = {1: "b"}
    rig.show(declared(1, "b"), 10)
    rig.show(declared(2, "a"), 10)
    assert kinds(rig.taken(10)) == {1: RENAME, 2: RENAME}
    assert named(rig.tracker.known) == named(rig.again(10)) == {1: "b", 2: "a"}


@pytest.mark.parametrize("is_there", [True, False])
def test_a_new_table_with_a_name_that_another_one_has_again(is_there: bool) -> None:
    rig = Rig(known(1, "a"))
    rig.names = {1: "a", 8: "new"} if is_there else {1: "a"}
    rig.show(declared(8, "a"), 10)
    assert not rig.tracker.awaits(declared(8, "a"))
    rig.show(declared(8, "a"), 20)
    assert kinds(rig.taken(20)) == ({8: CREATE} if is_there else {})
    assert named(rig.tracker.known) == named(rig.again(20)) == rig.names
    schema = rig.tracker.known[8].schema if is_there else None
    assert (schema and schema.name) == ("new" if is_there else None)


@pytest.mark.parametrize("today", [{1: "a", 8: "later"}, {1: "a"}])
def test_a_new_table_begins_under_its_name_of_that_time(today: dict[int, str]) -> None:
    """The catalog is ahead: what it says comes later."""
    rig = Rig(known(1, "a"))
    rig.names = today
    rig.show(declared(8, "b"), 10)
    assert kinds(rig.taken(10)) == {8: CREATE}
    assert named(rig.tracker.known) == {1: "a", 8: "b"}


def test_a_new_table_under_its_name_of_today_takes_that_from_others() -> None:
    rig = Rig(known(1, "a"), known(2, "b"))
    rig.names = {1: "a", 2: "c", 8: "b"}
    rig.show(declared(8, "a"), 10)
    assert kinds(rig.taken(10)) == {2: RENAME, 8: CREATE}
    assert named(rig.tracker.known) == named(rig.again(10)) == {1: "a", 2: "c", 8: "b"}


def test_a_name_that_another_table_has_later_is_had_until_then() -> None:
    rig = Rig(known(1, "a"), known(2, "x"))
    rig.names = {1: "c", 2: "b"}
    rig.show(declared(1, "b"), 10)
    assert kinds(rig.taken(10)) == {1: RENAME}
    assert named(rig.tracker.known) == {1: "b", 2: "x"}
    rig.show(declared(2, "b"), 20)
    assert kinds(rig.taken(20)) == {1: RENAME, 2: RENAME}
    assert named(rig.tracker.known) == named(rig.again(20)) == {1: "c", 2: "b"}


def test_a_row_that_shows_no_change_of_a_table_that_was_renamed_in_its_transaction() -> None:
    rig = Rig(known(1, "a"), known(2, "b"))
    rig.names = {1: "b", 2: "a"}
    rig.show(declared(1, "b"), 10)
    rig.show(declared(2, "a"), 10)
    rig.show(declared(1, "b"), 10)
    assert kinds(rig.taken(10)) == {1: RENAME, 2: RENAME}
    assert rig.taken(10) == []
    assert rig.tracker.changed_ts == 0


def test_a_new_table_that_no_rule_matches_is_none_of_ours() -> None:
    rig = Rig(known(1, "a"))
    rig.names[8] = "_b"
    rig.show(declared(8, "_b"), 10)
    assert rig.taken(10) == []
    assert not rig.tracker.is_wanted(8)


def whole(number: int, name: str, *columns: str) -> TableSchema:
    """As declared under REPLICA IDENTITY FULL: every column counts as a key's."""
    schema = declared(number, name, *columns)
    marked = tuple(replace(column, is_key=True) for column in schema.columns)
    return replace(schema, columns=marked, replica_identity="f")


def test_the_key_of_whole_rows_is_the_catalogs_while_its_columns_are_there() -> None:
    rig = Rig(known(1, "a", "u"))
    rig.columns, rig.key = {1: ("u",)}, ("u",)
    rig.show(whole(1, "a", "u"), 10)
    assert rig.tracker.known[1].record.key == ("u",)
    rig.columns, rig.key = {1: ("w",)}, ("later",)  # a key of today
    rig.show(whole(1, "a", "w"), 20)
    assert not rig.tracker.known[1].record.key


def test_a_key_keeps_the_order_of_its_columns() -> None:
    begun = known(1, "a", "u")
    rig = Rig(replace(begun, record=begun.record.with_(key=("u", "id"))))
    rig.columns, rig.key = {1: ("u", "v")}, ("id", "u")
    rig.show(whole(1, "a", "u", "v"), 10)
    assert rig.tracker.known[1].record.key == ("u", "id")


def quiet(number: int, name: str, key: str, *columns: tuple[str, int]) -> TableSchema:
    """As the catalog has it, with the columns' numbers."""
    found = tuple(Column(one, _INT if one == "id" else _TEXT, -1, is_key=one == key, place=at) for one, at in columns)
    return TableSchema(number, "public", name, found)


@pytest.mark.parametrize(
    ("found", "key"),
    [
        (quiet(1, "b", "", ("id", 1), ("v", 2)), ("id",)),  # it may have one again by its next row
        (quiet(1, "b", "", ("v", 2)), ()),  # which its column cannot have
        (quiet(1, "b", "", ("n", 1), ("v", 2)), ("id",)),
        (quiet(1, "b", "", ("id", 1)), ("id",)),
        (quiet(1, "b", "v", ("id", 1), ("v", 2)), ("v",)),
        (quiet(1, "b", "", ("v", 0)), ("id",)),  # without numbers it is not known which column went
    ],
)
def test_a_table_without_a_key_is_noted_when_it_cannot_have_it_again(found: TableSchema, key: tuple[str, ...]) -> None:
    rig = Rig(known(1, "a", "v"))
    rig.names = {1: "b"}
    rig.columns = {1: ("v",)}
    rig.tracker.note_quiet(found, Ts(10), _XID)
    assert rig.tracker.known[1].record.key == key
    assert rig.tracker.known[1].record.name == ("a" if not found.key and key else "b")


def test_changes_are_taken_up_to_a_position_and_compared_with_what_was_before_their_own() -> None:
    rig = Rig(known(1, "a", "v"))
    rig.columns = {1: ("v", "w")}
    rig.show(declared(1, "a", "v", "w"), 10)
    rig.columns = {1: ("v", "w", "x")}
    rig.show(declared(1, "a", "v", "w", "x"), 20)
    assert rig.tracker.changed_ts == 20
    assert [change.added for change in rig.taken(15)] == [("w",)]
    rig.columns = {1: ("v", "w", "x", "y")}
    rig.show(declared(1, "a", "v", "w", "x", "y"), 20)
    assert [change.added for change in rig.taken(20)] == [("x", "y")]
    assert rig.again(20)[1].schema == rig.tracker.known[1].schema


def test_what_is_as_it_was_or_unknown_is_no_quiet_change() -> None:
    bare = replace(known(2, "b"), schema=None)
    rig = Rig(known(1, "a", "v"), bare)
    for found in (declared(1, "a", "v"), declared(2, "z"), declared(9, "new")):
        rig.tracker.note_quiet(found, Ts(10), _XID)
    assert rig.taken(10) == []
    assert (rig.tracker.known[2], 9 in rig.tracker.known) == (bare, False)


def test_an_error_that_is_of_no_table_ends_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object) -> None:
        raise SourceUnreachableError("gone")

    monkeypatch.setattr(schema_diff, "compare", failing)
    rig = Rig(known(1, "a"))
    rig.names = {1: "b"}
    with pytest.raises(SourceUnreachableError):
        rig.show(declared(1, "b"), 10)


def test_a_new_column_whose_values_are_unknown_holds_its_table() -> None:
    rig = Rig(known(1, "a"), unknown=["v"])
    rig.columns, rig.guesses = {1: ("v",)}, {"v": Guess(2, None, is_required=False)}
    rig.show(declared(1, "a", "v"), 10)
    [change] = rig.taken(10)
    assert (change.kind, "new column v is in no stream" in change.reason) == (HOLD, True)


def test_the_values_that_the_rows_confirm_are_those_of_a_new_column() -> None:
    rig = Rig(known(1, "a"), verified={"v": "7"})
    rig.columns, rig.guesses = {1: ("v",)}, {"v": Guess(2, "7", is_required=True)}
    rig.show(declared(1, "a", "v"), 10)
    [change] = rig.taken(10)
    assert (change.kind, change.fills) == (ALTER, {"v": "7"})


def test_a_table_that_loses_all_columns_is_held_where_the_sink_has_none() -> None:
    rig = Rig(known(1, "a", "v"), needs_columns=True)
    rig.show(TableSchema(1, "public", "a", ()), 10)
    [change] = rig.taken(10)
    assert (change.kind, "has no columns" in change.reason) == (HOLD, True)
    rig.show(TableSchema(8, "public", "b", ()), 20)
    [change] = rig.taken(20)
    assert (change.kind, "has no columns" in change.reason) == (HOLD, True)


def test_a_table_without_columns_is_one_where_the_sink_has_such() -> None:
    rig = Rig()
    rig.show(TableSchema(8, "public", "b", ()), 10)
    assert kinds(rig.taken(10)) == {8: CREATE}


_NAMES = ("a", "b", "c", "d", "e")


@st.composite
def stories(draw: st.DrawFn) -> tuple[list[dict[int, str]], list[list[tuple[int, str]]]]:
    """Names by table after each transaction, and which tables show rows in each, some of them before its end."""
    first = dict(enumerate(_NAMES[: draw(st.integers(2, 4))], start=1))
    names, shown = [first], []
    for _ in range(draw(st.integers(1, 4))):
        before = names[-1]
        gone = draw(st.sets(st.sampled_from(sorted(before)), max_size=1)) if len(before) > 1 else set()
        left = [number for number in before if number not in gone]
        new = [max(max(one) for one in names) + 1] if draw(st.booleans()) else []
        after = dict(zip([*left, *new], draw(st.permutations(_NAMES)), strict=False))
        names.append(after)
        rows = draw(st.lists(st.sampled_from(sorted(after)), max_size=5))
        shown.append([(number, after[number]) for number in rows])
    return names, shown


#: a new table has the name of the third one first, which is the second one's when the catalog is asked
_THROUGH_A_THIRD = (
    [{1: "a", 2: "b", 3: "c"}, {1: "a", 2: "b", 3: "d", 4: "c"}, {1: "a", 2: "c", 3: "b", 4: "d"}],
    [[(4, "c")], list[tuple[int, str]]()],
)


@pytest.mark.matrix
@settings(max_examples=many(300))
@given(stories(), st.integers(0, 3))
@example(story=_THROUGH_A_THIRD, ahead=1)
def test_whatever_tables_exchange_no_two_have_one_name(
    story: tuple[list[dict[int, str]], list[list[tuple[int, str]]]], ahead: int
) -> None:
    """``ahead``: how many transactions later the catalog is."""
    names, shown = story
    rig = Rig(*(known(number, name) for number, name in names[0].items()))
    for at, rows in enumerate(shown, start=1):
        rig.names = names[min(at + ahead, len(names) - 1)]
        for number, name in rows:
            rig.show(declared(number, name), at * 10)
        rig.taken(at * 10)
        found = named(rig.tracker.known)
        assert len({*found.values()}) == len(found)
        assert found == named(rig.again(at * 10))
    if not ahead:
        last = dict(shown[-1])
        assert {number: name for number, name in found.items() if number in last} == last


@pytest.mark.parametrize(
    ("built_empty", "is_first", "is_followed"),
    [
        ({"new": _XID - 1}, False, True),
        ({"new": _XID}, True, True),
        ({"new": _XID}, False, False),
        ({"new": _XID + 1}, True, False),
        ({"id": _XID - 1}, True, False),
        ({}, True, False),
    ],
)
def test_a_computed_key_is_followed_if_a_new_column_was_indexed_when_there_was_no_row(
    built_empty: dict[str, int], is_first: bool, is_followed: bool
) -> None:
    """An index of an older column may be from any time, one of a later transaction from behind the rows."""
    rig = computed_key(built_empty)
    rig.show(declared(1, "a", "new"), 10, is_first=is_first)
    assert [change.kind for change in rig.taken(10)] == [ALTER if is_followed else HOLD]


def test_rows_of_a_transaction_that_changes_a_table_twice_are_of_before_its_second_change() -> None:
    rig = computed_key({"new": _XID - 1})
    rig.show(declared(1, "a", "old"), 10, is_first=True)
    rig.show(declared(1, "a", "old", "new"), 10)
    assert [change.kind for change in rig.taken(10)] == [HOLD]


def computed_key(built_empty: dict[str, int]) -> Rig:
    """A table whose new column ``new`` was computed, and is a key by now."""
    rig = Rig(known(1, "a"))
    rig.columns[1], rig.key, rig.built_empty = ("new", "old"), ("new",), built_empty
    rig.guesses = {"new": Guess(2, None, is_required=True)}
    return rig


def test_a_partition_that_was_declared_in_front_of_rows_of_the_log_counts_as_it_was_last() -> None:
    """The stream is opened behind rows that it sends again; it declares no partition twice."""
    rig = Rig(known(1, "r", "o"))
    other = replace(declared(2, "p"), columns=(Column("id", _INT, -1), Column("o", _TEXT, -1, is_key=True)))
    rig.tracker.note_partition(1, other, Ts(50), is_in_log=True)
    assert rig.tracker.changed_ts == 50
    rig.tracker.note_partition(1, declared(2, "p", "o"), Ts(50), is_in_log=True)
    assert rig.tracker.take(Ts(60)) == ()
    rig.tracker.note_partition(1, other, Ts(70), is_in_log=False)
    rig.tracker.note_partition(1, declared(2, "p", "o"), Ts(70), is_in_log=False)
    [record] = rig.tracker.take(Ts(70))
    assert [(record.ts, change.kind) for change in record.changes] == [(70, HOLD)]


def test_a_partition_holds_its_root_when_the_stream_has_its_first_row() -> None:
    rig = Rig()
    other = replace(declared(2, "p"), columns=(Column("id", _INT, -1), Column("o", _TEXT, -1, is_key=True)))
    rig.tracker.note_partition(1, other, Ts(50), is_in_log=False)
    rig.tracker.meet(declared(1, "r", "o"), Ts(50))
    rig.tracker.note(declared(1, "r", "o"), Ts(50), _XID)
    [record] = rig.tracker.take(Ts(50))
    assert [change.kind for change in record.changes] == [HOLD]

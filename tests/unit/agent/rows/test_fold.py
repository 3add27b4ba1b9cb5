"""Net changes against a dictionary that applies the same changes one by one."""

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.errors import TableHeldError
from agent.rows.changes import BEFORE_FULL, BEFORE_KEY, BEFORE_NONE, Changes
from agent.rows.fold import NetChanges, net_changes
from tests.example_counts import many
from tests.unit.agent.changes_build import ARROW, UNCHANGED, Change, changes, delete, insert, truncate, update

Table = dict[int, tuple[Any, ...]]


def apply(net: NetChanges, stored: Table) -> Table:
    """What a sink does with net changes: the meaning of ``NetChanges`` in six lines."""
    result = {} if net.is_truncated else dict(stored)
    columns = net.upserts.schema.names
    rows = [tuple(row[name] for name in columns) for row in net.upserts.to_pylist()]
    origins = [row[0] for row in rows] if net.origin is None else net.origin.column("id").to_pylist()
    for row, origin, at in zip(rows, origins, range(len(rows)), strict=True):
        old = stored.get(origin, (None,) * len(columns))
        kept = [name in net.kept and net.kept[name][at] for name in columns]
        result[row[0]] = tuple(o if k else new for o, k, new in zip(old, kept, row, strict=True))
    for key in net.deletes.column("id").to_pylist() if net.deletes.num_columns else []:
        result.pop(key, None)
    return result


def test_the_last_change_of_a_key_wins() -> None:
    part = changes([insert(1, "a", "x"), update(1, "b", "y"), insert(2, "c", "z"), update(1, "d", "w")])
    net = net_changes([part], key=["id"])
    assert apply(net, {}) == {1: (1, "d", "w"), 2: (2, "c", "z")}
    assert net.is_insert_only
    assert len(net) == 2


def test_unchanged_keeps_an_earlier_value_of_the_same_range() -> None:
    rows = [insert(1, "a", "x"), update(1, "b", UNCHANGED), update(1, "c", UNCHANGED)]
    net = net_changes([changes(rows[:2]), changes(rows[2:])], key=["id"])
    assert net.kept == {}
    assert apply(net, {}) == {1: (1, "c", "x")}


def test_unchanged_without_an_earlier_value_keeps_what_the_sink_has() -> None:
    net = net_changes([changes([update(1, "b", UNCHANGED)])], key=["id"])
    assert net.kept["big"].tolist() == [True]
    assert net.origin is None
    assert not net.is_insert_only
    assert apply(net, {1: (1, "a", "x")}) == {1: (1, "b", "x")}


def test_unchanged_follows_the_row_to_its_new_key() -> None:
    moved = update(2, "b", UNCHANGED, before=(1, None, None), before_kind=BEFORE_KEY)
    net = net_changes([changes([moved, update(2, "c", UNCHANGED)])], key=["id"])
    assert net.origin is not None
    assert net.origin.column("id").to_pylist() == [1]
    assert apply(net, {1: (1, "a", "x")}) == {2: (2, "c", "x")}


def test_keys_that_swap_keep_their_own_values() -> None:
    def move(old: int, new: int) -> Change:
        return update(new, "n", UNCHANGED, before=(old, None, None), before_kind=BEFORE_KEY)

    net = net_changes([changes([move(1, 3), move(2, 1), move(3, 2)])], key=["id"])
    assert apply(net, {1: (1, "a", "x"), 2: (2, "b", "y")}) == {1: (1, "n", "y"), 2: (2, "n", "x")}


def test_a_full_before_image_tells_what_is_unchanged() -> None:
    part = changes([update(1, "b", UNCHANGED, before=(1, "a", "x"), before_kind=BEFORE_FULL)])
    net = net_changes([part], key=["id"])
    assert net.kept == {}
    assert apply(net, {}) == {1: (1, "b", "x")}


def test_truncate_makes_everything_before_it_void() -> None:
    part = changes([insert(1, "a", "x"), truncate(), insert(2, "b", "y"), truncate(), insert(3, "c", "z")])
    net = net_changes([part], key=["id"])
    assert net.is_truncated
    assert apply(net, {7: (7, "q", "q")}) == {3: (3, "c", "z")}
    nothing = net_changes([changes([insert(1, "a", "x"), truncate()])], key=["id"])
    assert apply(nothing, {7: (7, "q", "q")}) == {}


def test_insert_and_delete_of_one_key_is_a_delete() -> None:
    net = net_changes([changes([insert(1, "a", "x"), delete(1, None, None)])], key=["id"])
    assert net.upserts.num_rows == 0
    assert net.deletes.to_pylist() == [{"id": 1}]


def test_a_column_that_came_later_is_kept_in_rows_from_before() -> None:
    wider = pa.schema([*ARROW, ("extra", pa.int32())])
    old, new = changes([update(1, "b", "y"), update(2, "b", "y")]), changes([update(2, "c", "z", 5)], arrow=wider)
    net = net_changes([old, new], key=["id"])
    assert apply(net, {1: (1, "a", "x", 9), 2: (2, "a", "x", 9)}) == {1: (1, "b", "y", 9), 2: (2, "c", "z", 5)}


def test_a_column_whose_old_values_do_not_fit_is_refused() -> None:
    narrow = pa.schema([("id", pa.int64()), ("name", pa.int32()), ("big", pa.string())])
    with pytest.raises(TableHeldError, match=r"column name of public.t has become int32"):
        net_changes([changes([insert(1, "a", "x")]), changes([insert(2, 3, "y")], arrow=narrow)], key=["id"])


def test_composite_keys_with_strings() -> None:
    rows = [insert(1, "a", "x"), insert(1, "b", "y"), update(1, "a", "z"), delete(1, "b", None)]
    net = net_changes([changes(rows, key=("id", "name"))], key=["id", "name"])
    assert net.upserts.to_pylist() == [{"id": 1, "name": "a", "big": "z"}]
    assert net.deletes.to_pylist() == [{"id": 1, "name": "b"}]


@dataclass
class Source:
    """A table, and the changes that it sends: what PostgreSQL does, with a random replica identity per change."""

    rows: Table
    sent: list[Change] = field(default_factory=list)
    #: the last values of deleted keys
    gone: Table = field(default_factory=dict)

    def insert(self, key: int, name: str, big: str) -> None:
        if key not in self.rows:
            self.rows[key] = (key, name, big)
            self.gone.pop(key, None)
            self.sent.append(insert(key, name, big))

    def update(self, key: int, new_key: int, name: str, big: str | None, is_full: bool) -> None:
        if key not in self.rows or (new_key != key and new_key in self.rows):
            return
        self.gone[key] = old = self.rows.pop(key)
        self.gone.pop(new_key, None)
        self.rows[new_key] = (new_key, name, old[2] if big is None else big)
        kind = BEFORE_FULL if is_full else BEFORE_KEY if new_key != key else BEFORE_NONE
        before = {BEFORE_FULL: old, BEFORE_KEY: (key, None, None), BEFORE_NONE: None}[kind]
        after = (new_key, name, UNCHANGED if big is None else big)
        self.sent.append(update(*after, before=before, before_kind=kind))

    def delete(self, key: int, is_full: bool = False) -> None:
        if key in self.rows:
            self.gone[key] = old = self.rows.pop(key)
            sent = delete(*old, before_kind=BEFORE_FULL) if is_full else delete(key, None, None)
            self.sent.append(sent)

    def truncate(self) -> None:
        self.rows.clear()
        self.sent.append(truncate())


_keys = st.integers(0, 4)
_texts = st.sampled_from(["a", "b", "c"])
_steps = st.one_of(
    st.tuples(st.just("insert"), _keys, _texts, _texts),
    st.tuples(st.just("update"), _keys, _keys, _texts, st.one_of(st.none(), _texts), st.booleans()),
    st.tuples(st.just("update"), _keys, _keys, _texts, st.none(), st.just(False)),
    st.tuples(st.just("delete"), _keys, st.booleans()),
    st.tuples(st.just("truncate")),
)


def _split(sent: list[Change], cuts: list[int]) -> list[Changes]:
    edges = sorted({0, len(sent), *(cut for cut in cuts if cut < len(sent))})
    return [changes(sent[start:end]) for start, end in pairwise(edges)]


@pytest.mark.matrix
@settings(max_examples=many(400), deadline=None)
@given(
    stored=st.dictionaries(_keys, st.tuples(_texts, _texts), max_size=4),
    steps=st.lists(_steps, max_size=25),
    cuts=st.lists(st.integers(1, 25), max_size=3),
)
def test_net_changes_do_what_the_changes_did(
    stored: dict[int, tuple[str, str]], steps: list[tuple[Any, ...]], cuts: list[int]
) -> None:
    before: Table = {key: (key, *rest) for key, rest in stored.items()}
    source = Source(dict(before))
    for verb, *arguments in steps:
        getattr(source, verb)(*arguments)
    net = net_changes(_split(source.sent, cuts), key=["id"])
    assert apply(net, before) == source.rows
    if net.is_insert_only and not net.is_truncated:
        assert not set(net.upserts.column("id").to_pylist() if net.upserts.num_columns else []) & set(before)


@pytest.mark.matrix
@settings(max_examples=many(400), deadline=None)
@given(
    stored=st.dictionaries(_keys, st.tuples(_texts, _texts), max_size=4),
    gone=st.dictionaries(_keys, st.tuples(_texts, _texts), max_size=2),
    steps=st.lists(_steps.filter(lambda step: step[0] != "truncate"), max_size=25),
    cuts=st.lists(st.integers(1, 25), max_size=3),
)
def test_deleted_rows_are_kept_with_their_last_values(
    stored: dict[int, tuple[str, str]], gone: dict[int, tuple[str, str]], steps: list[tuple[Any, ...]], cuts: list[int]
) -> None:
    before: Table = {key: (key, *rest) for key, rest in stored.items()}
    deleted: Table = {key: (key, *rest) for key, rest in gone.items() if key not in stored}
    source = Source(dict(before), gone=dict(deleted))
    for verb, *arguments in steps:
        getattr(source, verb)(*arguments)
    net = net_changes(_split(source.sent, cuts), key=["id"], keeps_deleted=True)
    assert not net.deletes.num_rows
    assert apply(net, before | deleted) == source.rows | source.gone
    keys = net.upserts.column("id").to_pylist() if net.upserts.num_columns else []
    marks = [] if net.deleted is None else net.deleted.tolist()
    assert dict(zip(keys, marks, strict=True)) == {key: key in source.gone for key in keys}


def test_a_deleted_row_that_the_sink_lacks_has_what_the_source_sent() -> None:
    part = changes([delete(1, "a", "x", before_kind=BEFORE_FULL), delete(2, None, None)])
    net = net_changes([part], key=["id"], keeps_deleted=True)
    assert apply(net, {}) == {1: (1, "a", "x"), 2: (2, None, None)}
    assert net.needed is None

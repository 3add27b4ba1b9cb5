"""Rows of a later moment stand in for those that the sink lacks: replayed up to that moment, the table is the source.

A source of dictionaries sends its changes; inserts may be ignored, as by an event filter. The sink has the wanted rows
of the end before the first change, and takes one change after the other.
"""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agent.feeds.left_out_keys import key_log
from agent.rows.changes import BEFORE_FULL, BEFORE_KEY, BEFORE_NONE, DELETE, INSERT, UPDATE
from tests.example_counts import many
from tests.unit.agent.changes_build import UNCHANGED, Change, changes, delete, insert, truncate, update

Rows = dict[int, tuple[Any, ...]]


class Source:
    """Rows by their key, and the changes that were sent."""

    def __init__(self, rows: Rows) -> None:
        self.rows = dict(rows)
        self.sent: list[Change] = []

    def insert(self, key: int, name: str, big: str, is_seen: bool) -> None:
        if key not in self.rows:
            self.rows[key] = (name, big)
            if is_seen:
                self.sent.append(insert(key, name, big))

    def update(self, key: int, new_key: int, name: str, big: str | None, kind: int) -> None:
        if key not in self.rows or (new_key != key and new_key in self.rows):
            return
        old = self.rows.pop(key)
        self.rows[new_key] = (name, old[1] if big is None else big)
        if kind == BEFORE_NONE and new_key != key:
            kind = BEFORE_KEY
        before = {BEFORE_FULL: (key, *old), BEFORE_KEY: (key, None, None), BEFORE_NONE: None}[kind]
        self.sent.append(update(new_key, name, UNCHANGED if big is None else big, before=before, before_kind=kind))

    def delete(self, key: int) -> None:
        if key in self.rows:
            del self.rows[key]
            self.sent.append(delete(key, None, None))


_keys = st.integers(0, 2)
_texts = st.integers(0, 99).map(str)
_kinds = st.sampled_from([BEFORE_NONE, BEFORE_KEY, BEFORE_FULL])
_steps = st.one_of(
    st.tuples(st.just("insert"), _keys, _texts, _texts, st.booleans()),
    st.tuples(st.just("update"), _keys, _keys, _texts, st.one_of(st.none(), _texts), _kinds),
    _keys.flatmap(lambda key: st.tuples(st.just("update"), *map(st.just, (key, key)), _texts, st.none(), _kinds)),
    st.tuples(st.just("delete"), _keys),
)
_rows = st.dictionaries(_keys, st.tuples(_texts, _texts), max_size=4)


def wanted(sent: list[Change], cuts: list[int]) -> set[int] | None:
    """``cuts``: where the log is divided into batches."""
    edges = sorted({0, len(sent), *(cut for cut in cuts if cut < len(sent))})
    parts = [changes(sent[start:end]) for start, end in pairwise(edges)]
    found = key_log(parts, ["id"], changes_max=1_000)
    return None if found is None else set(found.wanted().column("id").to_pylist())


def replayed(sink: Rows, sent: list[Change], *, holds: bool = True) -> Rows | None:
    """The rows after all changes; None if the table is held because it lacks a row (``holds``)."""
    rows = dict(sink)
    for change in sent:
        before = change.before[0] if change.before else None
        if change.op == DELETE:
            rows.pop(before, None)  # type: ignore[arg-type]
            continue
        assert change.after is not None
        key, name, big = change.after
        if change.op == INSERT:
            assert key not in rows, "it would be there twice"
        if change.op == UPDATE:
            origin = key if before is None else before
            if big is UNCHANGED and change.before_kind == BEFORE_FULL:
                big = change.before[2]  # type: ignore[index]
            if big is UNCHANGED:
                if holds and origin not in rows:
                    return None
                big = rows[origin][1] if origin in rows else None
            rows.pop(origin, None)
        rows[key] = (name, big)
    return rows


#: a row is moved, and another one has its key in the end
_MOVED = [
    ("update", 1, 1, "0", None, BEFORE_NONE),
    ("update", 1, 2, "0", None, BEFORE_KEY),
    ("insert", 1, "1", "1", True),
]


@pytest.mark.matrix
@settings(max_examples=many(300), deadline=None)
@example(held={}, lacking={1: ("2", "2")}, steps=_MOVED, cuts=[])
@given(
    held=_rows,
    lacking=_rows,
    steps=st.lists(_steps, min_size=1, max_size=14),
    cuts=st.lists(st.integers(1, 13), max_size=3),
)
def test_the_table_is_the_source_or_held(
    held: Rows, lacking: Rows, steps: list[tuple[Any, ...]], cuts: list[int]
) -> None:
    lacking = {key: row for key, row in lacking.items() if key not in held}
    source = Source(held | lacking)
    for verb, *arguments in steps:
        getattr(source, verb)(*arguments)
    keys = wanted(source.sent, cuts) or set()
    stand_ins = {key: row for key, row in source.rows.items() if key in keys}
    rows = replayed(held | stand_ins, source.sent)
    assert rows is None or all(source.rows.get(key) == row for key, row in rows.items())
    anyhow = replayed(held, source.sent, holds=False)
    assert anyhow is not None
    assert rows is None or rows.keys() == anyhow.keys()


def test_a_row_that_is_updated_and_there_in_the_end_needs_no_copy() -> None:
    source = Source({1: ("a", "A"), 2: ("b", "B"), 3: ("c", "C")})
    source.update(1, 1, "x", None, BEFORE_NONE)
    source.update(2, 2, "y", None, BEFORE_KEY)
    source.delete(2)
    source.insert(2, "z", "Z", True)
    source.update(1, 1, "x", "new", BEFORE_NONE)
    assert wanted(source.sent, [2, 3]) == {1, 2}
    assert replayed(source.rows, source.sent) == source.rows


@pytest.mark.parametrize(
    "sent",
    [
        [insert(1, "a", "A"), update(1, "b", UNCHANGED)],
        [update(1, "b", UNCHANGED), update(2, "b", UNCHANGED, before=(1, None, None), before_kind=BEFORE_KEY)],
        [update(1, "b", UNCHANGED, before=(2, None, None), before_kind=BEFORE_KEY), update(1, "c", UNCHANGED)],
        [update(1, "b", UNCHANGED, before=(1, "a", "A"), before_kind=BEFORE_FULL)],
        [update(1, "b", "B")],
    ],
    ids=["inserted", "moved away", "moved here", "whole", "nothing left out"],
)
def test_rows_that_cannot_stand_in_are_not_read(sent: list[Change]) -> None:
    assert wanted(sent, []) == set()


def test_a_table_is_copied_where_the_log_does_not_tell() -> None:
    left_out = update(1, "b", UNCHANGED)
    assert wanted([left_out, truncate()], []) is None
    assert wanted([], []) is None
    assert key_log([changes([left_out, left_out])], ["id"], changes_max=1) is None

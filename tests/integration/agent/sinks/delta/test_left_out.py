"""Updates that leave values out of rows that the sink lacks: the table is held, and no NULL is made up.

A source whose changes are in part ignored (by a filter; or they came before mode ``incremental`` began) is followed by
a dictionary, change by change. Whatever the range of a flush is and whichever way it is written, the sink is equal to
it in the end, or the table is held where something really was unknown.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.errors import LeftOutValueError
from agent.rows.changes import BEFORE_FULL, BEFORE_KEY, BEFORE_NONE
from agent.rows.fold import net_changes
from agent.sinks import open_sink
from agent.sinks.common import left_out
from agent.sinks.delta.sink import DeltaSink
from agent.sinks.delta.table import log
from agent.sinks.delta.upsert import by_vectors, large
from reactor.errors import Scope
from reactor.ids import Ts
from reactor.records.changefeed import SinkMode
from tests.integration.agent.sinks.delta.test_large import heavy
from tests.integration.agent.sinks.delta.test_sink import KEYED, flush, loaded, rows, task
from tests.integration.agent.sinks.delta.test_vectors import rows as stored
from tests.unit.agent.changes_build import (
    ARROW,
    UNCHANGED,
    Change,
    changes,
    delete,
    insert,
    table_schema,
    truncate,
    update,
)

pytestmark = pytest.mark.sample(0.25)  # make matrix runs the others

#: a value that nobody has
UNKNOWN = object()
Rows = dict[int, tuple[Any, ...]]


@dataclass
class Followed:
    """A source, what it sent, and the table of a sink that has taken each change by itself."""

    source: Rows
    sink: Rows
    sent: list[Change] = field(default_factory=list)
    #: an update met a row that the sink lacks
    was_unknown: bool = False

    def insert(self, key: int, name: str, big: str, is_seen: bool) -> None:
        if key not in self.source:
            self.source[key] = (name, big)
            if is_seen:
                self.sink[key] = (name, big)
                self.sent.append(insert(key, name, big))

    def update(self, key: int, new_key: int, name: str, big: str | None, is_full: bool, is_seen: bool) -> None:
        if key not in self.source or (new_key != key and new_key in self.source):
            return
        old = self.source.pop(key)
        self.source[new_key] = (name, old[1] if big is None else big)
        if not is_seen:
            return
        kind = BEFORE_FULL if is_full else BEFORE_KEY if new_key != key else BEFORE_NONE
        before = {BEFORE_FULL: (key, *old), BEFORE_KEY: (key, None, None), BEFORE_NONE: None}[kind]
        self.sent.append(update(new_key, name, UNCHANGED if big is None else big, before=before, before_kind=kind))
        known = self.sink.pop(key, ("", UNKNOWN))[1] if big is None and not is_full else self.source[new_key][1]
        self.sink.pop(key, None)
        self.sink[new_key] = (name, known)
        self.was_unknown |= known is UNKNOWN

    def delete(self, key: int, is_seen: bool) -> None:
        if key in self.source:
            del self.source[key]
            if is_seen:
                self.sink.pop(key, None)
                self.sent.append(delete(key, None, None))

    def truncate(self) -> None:
        self.source.clear()
        self.sink.clear()
        self.sent.append(truncate())

    @property
    def is_unknown(self) -> bool:
        return any(row[1] is UNKNOWN for row in self.sink.values())


_keys = st.integers(0, 4)
_texts = st.sampled_from(["a", "b", "c"])
_seen = st.sampled_from([True, True, False])
_insert = st.tuples(st.just("insert"), _keys, _texts, _texts, _seen)
_steps = st.one_of(
    _insert,
    _insert,
    st.tuples(st.just("update"), _keys, _keys, _texts, st.one_of(st.none(), _texts), st.booleans(), _seen),
    _keys.flatmap(
        lambda key: st.tuples(*map(st.just, ("update", key, key)), _texts, *map(st.just, (None, False, True)))
    ),
    st.tuples(st.just("delete"), _keys, _seen),
    st.just(("truncate",)),
)
_stories = {
    "held": st.dictionaries(_keys, st.tuples(_texts, _texts), max_size=3),
    "lacking": st.sets(_keys, max_size=3),
    "ranges": st.lists(st.lists(_steps, min_size=1, max_size=10), min_size=1, max_size=3),
}


def begun(held: Rows, lacking: set[int]) -> Followed:
    """The sink lacks rows that the source has."""
    return Followed(source=dict.fromkeys(lacking, ("l", "L")) | held, sink=dict(held))


def take(followed: Followed, steps: Sequence[tuple[Any, ...]]) -> list[Change]:
    followed.sent.clear()
    followed.was_unknown = followed.is_unknown
    for verb, *arguments in steps:
        getattr(followed, verb)(*arguments)
    return list(followed.sent)


@settings(max_examples=100, deadline=None)
@given(**_stories, cuts=st.lists(st.integers(1, 10), max_size=2))
def test_a_fold_knows_what_it_does_not_know(
    held: Rows, lacking: set[int], ranges: list[list[tuple[Any, ...]]], cuts: list[int]
) -> None:
    followed = begun(held, lacking)
    before = dict(followed.sink)
    sent = take(followed, ranges[0])
    edges = sorted({0, len(sent), *(cut for cut in cuts if cut < len(sent))})
    net = net_changes([changes(sent[start:end]) for start, end in pairwise(edges)], key=["id"])
    keys = net.upserts.column("id").to_pylist() if net.upserts.num_columns else []
    origins = keys if net.origin is None else net.origin.column("id").to_pylist()
    kept = {} if net.is_truncated else before
    unknown = set()
    for at, (key, origin) in enumerate(zip(keys, origins, strict=True)):
        if net.needed is not None and net.needed[at]:
            is_lost = net.lost is not None and bool(net.lost[at])
            if is_lost or origin not in kept:
                unknown.add(key)
    assert unknown == {key for key, row in followed.sink.items() if row[1] is UNKNOWN}


WAYS = ["small", "vectors", "merged", "large", "large with vectors", "large and merged"]


@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(**_stories)
def test_the_sink_is_right_or_held(
    monkeypatch: pytest.MonkeyPatch, way: str, held: Rows, lacking: set[int], ranges: list[list[tuple[Any, ...]]]
) -> None:
    with monkeypatch.context() as patch, TemporaryDirectory() as directory:
        sink = written(patch, way, Path(directory), held)
        followed, at = begun(held, lacking), 100
        for steps in ranges:
            part = take(followed, steps)
            if not part:
                continue
            order = task(sink, at, at + 100)
            order = replace(order, feed=replace(order.feed, was_filtered=True))
            order = heavy(order) if "large" in way else order
            is_held, is_written = False, False
            try:
                is_written = flush(sink, order, changes(part)).committed
            except LeftOutValueError:
                is_held = True
            assert is_held or not followed.is_unknown, "a value was made up"
            assert followed.was_unknown or not is_held, "held without need"
            at = at + 100 if is_written else at
            assert sink.committed_ts(KEYED, order.span) == at
            if is_held:
                return
            assert stored(sink) == followed.sink


def written(patch: pytest.MonkeyPatch, way: str, directory: Path, held: Rows) -> DeltaSink:
    """A sink that is written in this way, and holds these rows."""
    if "large" in way:
        patch.setattr(large, "_WHOLE_BYTES", 0)
    if "merged" in way:
        patch.setattr(log, "_taken", lambda place: None)
    vectors = str("vectors" in way).lower()
    sink = open_sink(f"delta+file://{directory}?deletion_vectors={vectors}", changefeed="feed", mode=SinkMode.UPSERT)
    assert isinstance(sink, DeltaSink)
    batch = changes([insert(key, *row) for key, row in held.items()]).after
    staged = sink.stage(KEYED, "0", iter([batch]), Ts(100)) if held else []
    sink.load(KEYED, table_schema(), ARROW, staged)
    return sink


@pytest.mark.parametrize("way", WAYS)
def test_a_row_that_was_never_seen_holds_the_table_and_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    sink = written(monkeypatch, way, tmp_path, {1: ("a", "x")})
    order = task(sink, 100, 200)
    order = heavy(order) if "large" in way else order
    part = changes([update(1, "b", UNCHANGED), update(7, "c", UNCHANGED)])
    with pytest.raises(LeftOutValueError) as caught:
        flush(sink, order, part)
    assert str(caught.value).startswith("an update of public.t left out big, and the sink has no row of id=7 ")
    assert (caught.value.scope, caught.value.retryable) == (Scope.TABLE, False)
    assert stored(sink) == {1: ("a", "x")}
    assert flush(
        sink, order, changes([update(1, "b", UNCHANGED), update(7, "c", "y"), delete(9, None, None)])
    ).committed
    assert stored(sink) == {1: ("b", "x"), 7: ("c", "y")}


def test_a_later_row_of_the_same_key_gives_nothing_to_an_earlier_one(tmp_path: Path) -> None:
    """Its insert was ignored, the delete of the row before it was not."""
    sink = loaded(tmp_path, rows=[(1, "a", "x")])
    with pytest.raises(LeftOutValueError, match="id=1"):
        flush(sink, task(sink, 100, 200), changes([delete(1, None, None), update(1, "b", UNCHANGED)]))
    assert rows(sink) == [(1, "a", "x")]


@pytest.mark.parametrize("way", WAYS)
def test_a_whole_old_row_tells_what_its_new_key_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """Also where the two keys are folded apart."""
    sink = written(monkeypatch, way, tmp_path, {at: ("a", str(at)) for at in range(20)})
    moves = [update(at + 100, "b", UNCHANGED, before=(at, "a", str(at)), before_kind=BEFORE_FULL) for at in range(20)]
    order = task(sink, 100, 200)
    assert flush(sink, heavy(order) if "large" in way else order, changes(moves)).committed
    assert stored(sink) == {at + 100: ("b", str(at)) for at in range(20)}


def test_nothing_is_taken_from_before_a_truncate(tmp_path: Path) -> None:
    sink = loaded(tmp_path, rows=[(1, "a", "x")])
    with pytest.raises(LeftOutValueError, match="id=1"):
        flush(sink, task(sink, 100, 200), changes([truncate(), update(1, "b", UNCHANGED)]))


def test_a_key_that_was_two_rows_while_the_snapshot_was_read_is_not_guessed(tmp_path: Path) -> None:
    sink = loaded(tmp_path, rows=[(1, "new", "other"), (2, "a", "x")])
    moved = update(2, "b", UNCHANGED, before=(1, None, None), before_kind=BEFORE_KEY)
    part = changes([moved, insert(1, "new", "other")])
    order = task(sink, 100, 200)
    with pytest.raises(LeftOutValueError, match="id=2"):
        flush(sink, replace(order, table=KEYED.with_(consistent_ts=Ts(150))), part)


def test_a_changelog_says_what_it_does_not_know(tmp_path: Path) -> None:
    sink = loaded(tmp_path, SinkMode.CHANGELOG)
    assert flush(sink, task(sink, 100, 200), changes([update(7, "c", UNCHANGED)])).committed
    assert rows(sink, "id", "big", "_unchanged") == [(7, None, ["big"])]


def test_keys_of_several_columns_are_named_whole() -> None:
    upserts = changes([update(1, "k", UNCHANGED)], key=("id", "name"))
    net = net_changes([upserts], key=["id", "name"])
    assert net.needed is not None
    with pytest.raises(LeftOutValueError, match=r"no row of id=1, name='k' to take it from"):
        left_out.refuse_missing(net.upserts, net.kept, net.needed, KEYED.with_(key=("id", "name")))


def test_the_ways_are_different_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``merged`` really is delta-rs's MERGE, the others are not."""
    for way in WAYS:
        with monkeypatch.context() as patch:
            sink = written(patch, way, tmp_path / way.replace(" ", "-"), {1: ("a", "x"), 2: ("b", "y")})
            taken = {name: Mock(wraps=getattr(by_vectors, name)) for name in ("apply", "replace")}
            for name, call in taken.items():
                patch.setattr(by_vectors, name, call)
            order = task(sink, 100, 200)
            flush(sink, heavy(order) if "large" in way else order, changes([update(1, "b", UNCHANGED)]))
        called = [name for name, call in taken.items() if call.called]
        assert called == ([] if "merged" in way else ["replace"] if "large" in way else ["apply"])

"""The roster's answers against what a look at every set finds, over random histories; the least of many positions."""

from functools import partial
from itertools import product
from random import Random

import pytest

from owner.errors import SpanError
from owner.scheduler.lowest import LowestPosition
from owner.scheduler.replication import Orders, ReplicationSet, Role, SetState
from owner.scheduler.span_index import SpanIndex
from reactor.ids import CaptureId, TableSpan, Ts
from reactor.messages import SpanState
from tests.unit.owner.owner_build import A, B, C, index_of, status, tables

SPANS = tables(6)
CAPTURES = (A, B, C)


def _check(span_index: SpanIndex) -> None:
    """Every question, answered by looking at everything."""
    sets, wanted = span_index.sets, list(span_index.wanted)
    absent = {span for span, known in sets.items() if known.state is SetState.ABSENT}
    unsettled = {span for span, known in sets.items() if known.state is not SetState.REPLICATING}
    known = [sets[span] for span in wanted if span in sets]
    assert set(span_index.missing) == {span for span in wanted if span not in sets or span in absent}
    assert set(span_index.surplus) == sets.keys() - set(wanted)
    assert span_index.is_settled == (not unsettled and not span_index.missing)
    assert span_index.is_whole == (sets.keys() >= set(wanted))
    for capture in CAPTURES:
        assert set(span_index.held_by(capture)) == {span for span, at in sets.items() if capture in at.captures}
        assert span_index.written_by(capture) == sorted(span for span, at in sets.items() if at.primary == capture)
    assert span_index.lowest.ts == min((at.checkpoint.checkpoint_ts for at in known), default=None)


class _History:
    """Random changes of a roster."""

    def __init__(self, random: Random) -> None:
        self.span_index = SpanIndex()
        self._random = random

    def step(self) -> None:
        random = self._random
        match random.randrange(8):
            case 0:
                self.span_index.want(sorted(random.sample(SPANS, random.randrange(len(SPANS) + 1))))
            case 1:
                self._add(random.choice(SPANS))
            case 2:
                self._forget(random.choice(SPANS))
            case _:
                self._change(random.choice(SPANS))

    def _add(self, span: TableSpan) -> None:
        if span in self.span_index.sets:
            return
        ts = Ts(self._random.randrange(5))
        replication = ReplicationSet(span, ts)
        if self._random.random() < 0.5:
            capture = self._random.choice(CAPTURES)
            replication = ReplicationSet.rebuild(span, ts, {capture: status(self._state(), ts, span=span)})
        if not replication.is_removed:
            self.span_index.add(replication)

    def _forget(self, span: TableSpan) -> None:
        known = self.span_index.sets.get(span)
        if known is not None and not known.captures:
            self.span_index.discard(span)

    def _change(self, span: TableSpan) -> None:
        known = self.span_index.sets.get(span)
        if known is None:
            return
        capture, random = self._random.choice(CAPTURES), self._random
        report = status(self._state(), random.randrange(20), span=span, time=random.random())
        if not self.span_index.note(capture, [report]):
            return
        acts: list[partial[Orders]] = [
            partial(known.handle_add, capture),
            partial(known.handle_move, capture),
            partial(known.handle_capture_gone, capture),
            partial(known.handle_remove),
            *[partial(known.handle_status, capture, report)] * 4,
        ]
        self.span_index.change(known, partial(_attempt, random.choice(acts)))

    def _state(self) -> SpanState:
        return self._random.choice(list(SpanState)[1:])


def _attempt(act: partial[Orders]) -> Orders:
    """What contradicts itself ends a run; here it changes nothing that is kept."""
    try:
        return act()
    except SpanError:
        return []


@pytest.mark.parametrize("seed", range(60))
def test_indexes_say_what_the_sets_say(seed: int) -> None:
    history = _History(Random(seed))
    for _ in range(120):
        history.step()
        _check(history.span_index)


@pytest.mark.parametrize(("state", "role", "said"), list(product(SetState, Role, SpanState)))
@pytest.mark.parametrize("ts", [0, 3, 9])
def test_what_is_noted_is_what_the_machine_would_make_of_it(
    state: SetState, role: Role, said: SpanState, ts: int
) -> None:
    short, long = ReplicationSet(SPANS[0], Ts(3)), ReplicationSet(SPANS[0], Ts(3))
    for known in (short, long):
        known.state, known.captures = state, {A: role}
    report = status(said, ts, time=4.0)
    if index_of({SPANS[0]: short}, [SPANS[0]]).note(A, [report]):
        assert (short.state, short.checkpoint.checkpoint_ts) == (state, 3), "nothing is done then"
        return
    assert long.handle_status(A, report) == []
    for name in ("captures", "checkpoint", "checkpoint_time", "span", "state", "steps"):
        assert getattr(short, name) == getattr(long, name)


def test_two_writers_are_not_passed_over() -> None:
    known = ReplicationSet(SPANS[0], Ts(3))
    known.state, known.captures = SetState.REPLICATING, {A: Role.PRIMARY, B: Role.PRIMARY}
    report = status(SpanState.REPLICATING, 9, time=1.0)
    assert index_of({SPANS[0]: known}, [SPANS[0]]).note(A, [report]) == [report]


def test_the_least_of_positions_over_random_moves() -> None:
    random, lowest = Random(1), LowestPosition()
    positions = [Ts(random.randrange(50)) for _ in range(40)]
    for ts in positions:
        lowest.add(ts, float(ts))
    for _ in range(3_000):
        number, ts = random.randrange(len(positions)), Ts(random.randrange(10_000))
        lowest.move(positions[number], ts, float(ts))
        positions[number] = ts
        assert lowest.ts == min(positions)
        assert lowest.time == min(positions)
    assert len(lowest._heap) <= 2 * len(set(positions)) + 65, "positions of nobody are not kept"
    for ts in positions:
        lowest.remove(ts)
    assert (lowest.ts, lowest.time) == (None, 0.0)


def test_spans_that_nobody_has_come_in_the_order_in_which_they_are_wanted() -> None:
    span_index = SpanIndex()
    span_index.want(SPANS)
    lost = ReplicationSet.rebuild(SPANS[0], Ts(1), {CaptureId("a"): status(SpanState.REPLICATING, 1, span=SPANS[0])})
    span_index.add(lost)
    assert list(span_index.missing) == SPANS[1:]
    span_index.change(lost, partial(lost.handle_capture_gone, A))
    assert list(span_index.missing) == [*SPANS[1:], SPANS[0]]

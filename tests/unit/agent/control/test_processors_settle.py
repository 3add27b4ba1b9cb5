"""Ticks of the processor set: only changefeeds with news are looked at, and that makes no difference but in
time."""

from dataclasses import dataclass
from unittest import mock

from hypothesis import given
from hypothesis import strategies as st

from agent.control import processors
from agent.control.processors import Observe, ProcessorEnded, ProcessorReported, Processors
from reactor import keys
from reactor.ids import CaptureId, ChangefeedId
from reactor.records.capture import Assignment
from reactor.records.changefeed import ChangefeedInfo, ChangefeedStatus, FeedState, RunningError, SealedUri
from reactor.records.formats import ClusterFormat, Feature
from reactor.state import ClusterState

FEEDS = [ChangefeedId(name) for name in "abc"]
URI = SealedUri(masked="x", sealed="y")
ERROR = RunningError(code="Sink", message="disk full; free some", time=1.0)


@dataclass(frozen=True)
class Written:
    """``value`` None: deleted."""

    key: str
    value: bytes | None


def _written(feed: ChangefeedId) -> st.SearchStrategy[Written]:
    place = ("c", "default", feed)
    states = st.sampled_from([FeedState.NORMAL, FeedState.STOPPED, FeedState.WARNING])
    infos = st.builds(
        lambda state, epoch: ChangefeedInfo(id=feed, source=URI, sink=URI, state=state, epoch=epoch).encode(),
        states,
        st.integers(1, 3),
    )
    values = {
        keys.InfoKey(*place): st.one_of(infos, st.just(b"unreadable")),
        keys.StatusKey(*place): st.just(ChangefeedStatus().encode()),
        keys.AssignmentKey(*place): st.sampled_from([Assignment(capture=CaptureId(name)).encode() for name in "xy"]),
    }
    return st.one_of(
        *(st.builds(Written, st.just(str(key)), st.none() | value) for key, value in values.items()),
    )


_OF_ALL = st.one_of(
    st.builds(
        Written,
        st.just(str(keys.FormatKey("c"))),
        st.sampled_from([ClusterFormat(number=number).encode() for number in (1, Feature.OWNERS)]),
    ),
    st.builds(
        Written,
        st.sampled_from(["/weir/c/__meta__/owner/1", "/weir/c/__meta__/owner/2"]),
        st.sampled_from([None, b"x", b"y"]),
    ),
)
_EVENTS = st.one_of(
    st.builds(ProcessorEnded, st.sampled_from(FEEDS)),
    st.builds(ProcessorReported, st.sampled_from(FEEDS), st.integers(1, 3), st.just(ERROR), st.booleans()),
)
_STEPS = st.lists(st.one_of(st.sampled_from(FEEDS).flatmap(_written), _OF_ALL, _EVENTS, st.none()), max_size=40)


def _shown(effects: list[object]) -> list[object]:
    """Compare the number of commits, since they are functions; a changefeed's state continues to change."""
    return [
        type(one) if type(one).__name__ == "Commit" else (one.changefeed if isinstance(one, Observe) else one)
        for one in effects
    ]


def _played(steps: list[object], *, all_s: float) -> list[object]:
    state, manager, found = ClusterState("c"), Processors(CaptureId("here"), cluster="c"), list[object]()
    with mock.patch.object(processors, "_ALL_S", all_s):
        for number, step in enumerate(steps, 1):
            inbox = [step] if isinstance(step, (ProcessorEnded, ProcessorReported)) else []
            if isinstance(step, Written):
                state.update(step.key, step.value, mod_revision=number, create_revision=number)
            found.append(_shown(list(manager.tick(state, inbox, number / 1000))))
            manager.validate()
    return found


_RUNNING = [
    Written(str(key), value)
    for feed in FEEDS
    for key, value in (
        (keys.InfoKey("c", "default", feed), ChangefeedInfo(id=feed, source=URI, sink=URI).encode()),
        (keys.StatusKey("c", "default", feed), ChangefeedStatus().encode()),
    )
]


@given(steps=_STEPS)
def test_looking_at_those_with_news_decides_the_same_as_looking_at_all(steps: list[object]) -> None:
    steps = [*_RUNNING, *steps]
    assert _played(steps, all_s=1e9) == _played(steps, all_s=-1.0)


def test_a_tick_does_not_look_at_changefeeds_without_news() -> None:
    state, manager, looked = ClusterState("c"), Processors(CaptureId("here"), cluster="c"), list[str]()
    for feed in FEEDS:
        state.update(
            str(keys.InfoKey("c", "default", feed)),
            ChangefeedInfo(id=feed, source=URI, sink=URI).encode(),
            mod_revision=1,
        )
    original = Processors._settle

    def settle(self: Processors, changefeed: ChangefeedId, *given: object) -> object:
        looked.append(changefeed)
        return original(self, changefeed, *given)  # type: ignore[arg-type]

    with mock.patch.object(Processors, "_settle", settle):
        manager.tick(state, [], 0.0)
        assert looked == FEEDS
        looked.clear()
        state.update(str(keys.StatusKey("c", "default", FEEDS[1])), ChangefeedStatus().encode(), mod_revision=2)
        manager.tick(state, [], 0.1)
        assert looked == [FEEDS[1]]
        looked.clear()
        manager.tick(state, [], 0.5)
        assert looked == FEEDS, "at intervals, all of them"

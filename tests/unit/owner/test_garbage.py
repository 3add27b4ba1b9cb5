"""Garbage under any key: no tick fails, the owner answers, and only the changefeed concerned is affected."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.control.processors import Processors
from capture.member.creation import view_of as _view
from capture.messaging import frames
from owner import jobs, views
from owner.feed.changefeed import Changefeed
from owner.settings import BackoffSettings, OwnerSettings
from reactor import keys
from reactor.effects import Answer, Send
from reactor.ids import MAX_TS, ChangefeedId
from reactor.records.changefeed import FeedState
from reactor.views import ChangefeedView
from tests.example_counts import many
from tests.unit.owner.owner_build import FEED, A, B, info
from tests.unit.owner.small_cluster import CLUSTER, NAMESPACE, TABLES, SmallCluster

OTHER = ChangefeedId("other")
RUNNING = (FeedState.NORMAL, FeedState.WARNING)
SETTINGS = OwnerSettings(backoff=BackoffSettings(jitter=0.0))

#: every kind of key that holds something of the changefeed
PLACES = (
    keys.InfoKey(CLUSTER, NAMESPACE, FEED),
    keys.StatusKey(CLUSTER, NAMESPACE, FEED),
    keys.PositionKey(CLUSTER, NAMESPACE, A, FEED),
    keys.UnitKey(CLUSTER, NAMESPACE, FEED, "main"),
    keys.LogKey(CLUSTER, NAMESPACE, FEED, "main"),
    keys.DdlKey(CLUSTER, NAMESPACE, FEED, 150),
    keys.SyncPointKey(CLUSTER, NAMESPACE, FEED, 150),
    keys.PartitioningKey(CLUSTER, NAMESPACE, FEED, 1),
    keys.HeldKey(CLUSTER, NAMESPACE, FEED, 1),
    keys.AttemptKey(CLUSTER, NAMESPACE, FEED, B),
    keys.SuspectsKey(CLUSTER, NAMESPACE, FEED),
    keys.StreamAttemptKey(CLUSTER, NAMESPACE, FEED, "main"),
    keys.LastDiffKey(CLUSTER, NAMESPACE, FEED),
    keys.SubscriptionKey(CLUSTER, NAMESPACE, FEED, "reader"),
)
#: and those of the whole cluster
SHARED = (
    keys.CaptureKey(CLUSTER, B),
    keys.FormatKey(CLUSTER),
    keys.UpstreamKey(CLUSTER, NAMESPACE, "main"),
    keys.DeleteCountKey(CLUSTER),
    keys.LogStorageKey(CLUSTER),
    keys.SecretKeyKey(CLUSTER),
    keys.ReaderKey(CLUSTER, 7),
)
#: what a tick might choke on, and some of what it takes
VALUES = st.one_of(
    st.sampled_from([None, True, "", "x" * 3000, "\u0000", [], {}, [1], 0, 1, -1, 1 << 31, 1 << 62, int(MAX_TS)]),
    st.sampled_from([1 << 63, 1 << 64, 1 << 70, -(1 << 70), 1e308, -0.0, float("nan"), float("inf"), "normal", "sync"]),
    st.sampled_from(["dump", "hold", "removed", "pending", "failed", "finished", "://[", "postgresql://h:99999/"]),
    st.integers(90, 300),
)


def examples(cluster: SmallCluster) -> dict[str, Any]:
    """What is stored under each place now, or what might be."""
    table = json.loads(TABLES[0].encode())
    made: dict[str, Any] = {
        str(PLACES[2]): {"error": {"code": "X", "message": "y", "table_id": 1, "scope": "table"}},
        str(PLACES[5]): {"ts": 150, "changes": [{"kind": "alter", "table_id": 1, "table": table}]},
        str(PLACES[6]): {"ts": 150, "time": 1.0, "versions": {"public.t1": "3"}},
        str(PLACES[7]): {"table_id": 1, "spans": 1, "wanted": 2, "under_way": {"spans": 2, "ts": 120}},
        str(PLACES[8]): {"table_id": 1, "ts": 120, "error": {"code": "X", "message": "y"}},
        str(PLACES[9]): {"tables": [1], "is_trial": True},
        str(PLACES[10]): {"tables": [1, 2], "ts": 120, "capture": "b"},
        str(PLACES[11]): {"capture": "b", "process": "x", "epoch": 1, "ts": 120, "ended": ["a"]},
        str(PLACES[12]): {"time": 1.0, "ts": 120, "compared": 2, "differ": 1, "differing": ["public.t1"]},
        str(PLACES[13]): {
            "name": "reader",
            "table_id": 1,
            "table": "public.t1",
            "ts": 120,
            "session": "x",
            "expires_seconds": 60.0,
            "expires_at": 100.0,
        },
        str(SHARED[2]): {"source": "main", "kind": "postgresql", "system_id": "1"},
        str(SHARED[1]): {"number": 1},
    }
    for place in (*PLACES, *SHARED):
        stored = cluster.state.raw.get(str(place))
        if stored is not None:
            made[str(place)] = json.loads(stored.value)
    return made


@st.composite
def changed(draw: st.DrawFn, example: Any) -> Any:
    """``example`` with one to three of its fields replaced, at any depth."""
    value = json.loads(json.dumps(example))
    for _ in range(draw(st.integers(1, 3))):
        place = value
        while isinstance(place, dict) and place:
            name = draw(st.sampled_from(sorted(place)))
            inner = place[name][0] if isinstance(place[name], list) and place[name] else place[name]
            if isinstance(inner, dict) and inner and draw(st.booleans()):
                place = inner
                continue
            place[name] = draw(VALUES)
            break
    return value


def healthy() -> SmallCluster:
    """Two changefeeds in sync on two captures."""
    cluster = SmallCluster(A, B, settings=SETTINGS)
    for feed in (FEED, OTHER):
        cluster.create(info().with_(id=feed))
        for _ in range(2):
            cluster.step(4)
            cluster.finish_unit(feed=feed)
        cluster.step(4)
        cluster.advance_log(200, feed=feed)
        cluster.step(8)
        assert cluster.checkpoint_ts(feed) == 200
    return cluster


def check_alive(cluster: SmallCluster, hurt: set[ChangefeedId]) -> None:
    """The owner answers, the processors' reactor ticks, and the other changefeed comes further."""
    cluster.jobs.append(jobs.List("all"))
    cluster.advance_log(400, feed=OTHER)
    for _ in range(20):
        cluster.step()
        check_messages(cluster)
        Processors(A, cluster=CLUSTER).tick(cluster.state, (), cluster.now)
    answer = cluster.answers["all"]
    assert isinstance(answer, Answer)
    assert answer.error == ""
    listed = {view.id: _view(view) for view in answer.value}  # type: ignore[attr-defined]  # as the door shows them
    assert OTHER in listed
    assert listed[OTHER].state in RUNNING, "at most a warning, while nothing comes from its source"
    if OTHER not in hurt:
        assert cluster.checkpoint_ts(OTHER) == 400


def check_messages(cluster: SmallCluster) -> None:
    """A frame that a peer cannot read would close the connection that all changefeeds share."""
    for message in cluster.sent:
        [frame] = frames.Decoder().feed(frames.encode(frames.Data("topic", 1, message)))
        assert isinstance(frame, frames.Data), Send(message)


@pytest.mark.matrix
@settings(
    max_examples=many(40), deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@given(data=st.data())
def test_values_under_a_changefeeds_keys_hurts_that_changefeed_alone(data: st.DataObject) -> None:
    cluster = healthy()
    found = examples(cluster)
    for _ in range(data.draw(st.integers(1, 2))):
        place = data.draw(st.sampled_from(PLACES))
        garbage = changed(found[str(place)]).map(json.dumps).map(str.encode)
        cluster.put_raw(str(place), data.draw(garbage | st.binary(max_size=30)))
    if data.draw(st.booleans()):
        cluster.elect(B)
    check_alive(cluster, hurt={FEED})


@settings(
    max_examples=many(20), deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@given(data=st.data())
def test_values_under_the_clusters_own_keys_ends_nobodys_tick(data: st.DataObject) -> None:
    cluster = healthy()
    found = examples(cluster)
    place = data.draw(st.sampled_from(SHARED))
    garbage = changed(found.get(str(place), {"number": 1})).map(json.dumps).map(str.encode)
    cluster.put_raw(str(place), data.draw(garbage | st.binary(max_size=30)))
    cluster.put_raw(f"/weir/{CLUSTER}/__meta__/owner/1", data.draw(st.binary(max_size=10)))
    check_alive(cluster, hurt={OTHER} if isinstance(place, keys.CaptureKey | keys.FormatKey) else set())


#: for every field, whatever it holds
NASTY: tuple[object, ...] = (None, -1, 1 << 62, int(MAX_TS), 1 << 63, 1 << 70, 1e300, float("nan"), "x", "hold", [], {})


def paths(value: Any, at: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Where something stands in it."""
    items = value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ()
    for name, inner in items:
        yield (*at, name)
        yield from paths(inner, (*at, name))


def with_value(example: Any, path: tuple[str | int, ...], value: object) -> bytes:
    changed = json.loads(json.dumps(example))
    place = changed
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    return json.dumps(changed).encode()


@pytest.mark.sample(0.2)
@pytest.mark.parametrize("place", PLACES, ids=lambda place: type(place).__name__)
def test_no_value_of_any_field_ends_a_tick_or_makes_a_message_that_nobody_can_read(place: keys.Key) -> None:
    cluster = healthy()
    example = examples(cluster)[str(place)]
    for path in paths(example):
        for value in NASTY:
            cluster.put_raw(str(place), with_value(example, path, value))
            for _ in range(3):
                cluster.step()
                check_messages(cluster)
            cluster.jobs.append(jobs.List("all"))
            cluster.step()
            assert cluster.answers["all"].error == ""
            assert not [log for log in cluster.logs if dict(log.fields).get("changefeed") == OTHER]
            feed = cluster.state.changefeeds.get(FEED)
            if feed is None or feed.info is None or feed.info.state not in RUNNING:
                check_alive(cluster, hurt={FEED})
                cluster = healthy()
            else:
                cluster.put_raw(str(place), json.dumps(example).encode())
                cluster.step()
    check_alive(cluster, hurt={FEED})


def test_a_changefeed_that_cannot_be_read_is_listed_with_the_reason() -> None:
    cluster = healthy()
    cluster.put_raw(str(PLACES[0]), b'{"start_ts": 1180591620717411303424}')
    cluster.elect(B)
    cluster.state.changefeeds[FEED].info = None  # as a new owner's own state has it
    cluster.jobs.append(jobs.List("all"))
    cluster.step(2)
    [other, broken] = sorted(cluster.answers["all"].value, key=lambda view: view.id == FEED)  # type: ignore[call-overload]
    assert (other.id, broken.id) == (OTHER, FEED)
    assert broken.state is FeedState.FAILED
    assert "does not hold a ChangefeedInfo (wrong:" in broken.blocked_by
    assert "repair or delete its keys" in broken.blocked_by


def test_one_view_that_fails_takes_no_other_away(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, shown = healthy(), views.view

    def fail(changefeed: Changefeed, *given: Any, **named: Any) -> ChangefeedView:
        if changefeed.id == FEED:
            raise ZeroDivisionError("a bug")
        return shown(changefeed, *given, **named)

    monkeypatch.setattr(views, "view", fail)
    cluster.jobs.append(jobs.List("all"))
    cluster.step()
    found = {view.id: view for view in cluster.answers["all"].value}  # type: ignore[attr-defined]
    assert found[OTHER].error is None
    assert found[FEED].blocked_by == "it cannot be shown (ZeroDivisionError: a bug); see the owner's log"
    assert found[FEED].checkpoint_ts == 200

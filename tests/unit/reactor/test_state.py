"""The typed snapshot: what each key becomes, and what a broken one does not."""

import pytest

from reactor import keys
from reactor.errors import Scope
from reactor.ids import MAX_TS, CaptureId, ChangefeedId, Ts
from reactor.records.attempts import Attempt, Suspects
from reactor.records.base import Record
from reactor.records.capture import CaptureInfo
from reactor.records.changefeed import (
    ChangefeedInfo,
    ChangefeedStatus,
    RunningError,
    SealedUri,
    Unit,
    UnitRecord,
    UnitStage,
)
from reactor.records.log_head import LogHead
from reactor.records.schedules import LastDiff
from reactor.records.subscription import Subscription, needed_ts
from reactor.records.sync_point import SyncPoint
from reactor.records.tables.change_index import ChangeIndex
from reactor.records.tables.held import HeldTable, HoldOrigin
from reactor.records.tables.partitioning import RepartitionUnderWay, TablePartitioning
from reactor.records.tables.schema_change import DdlRecord
from reactor.records.task_position import TaskPosition
from reactor.records.upstream import UpstreamInfo
from reactor.state import ClusterState, Owner
from reactor.store.port import Event, KeyValue, Snapshot

FEED = ChangefeedId("feed")
URI = SealedUri(masked="x://", sealed="")
INFO = ChangefeedInfo(id=FEED, source=URI, sink=URI)
STATUS = ChangefeedStatus(checkpoint_ts=Ts(7))
INFO_KEY = str(keys.InfoKey("c", "default", FEED))
STATUS_KEY = str(keys.StatusKey("c", "default", FEED))


def capture_info(name: str) -> CaptureInfo:
    return CaptureInfo(
        id=CaptureId(name), address="h:1", peer_address="h:2", version="1", cluster_id="c", started_at=0.0
    )


def capture_key(name: str) -> str:
    return str(keys.CaptureKey("c", CaptureId(name)))


@pytest.fixture
def state() -> ClusterState:
    return ClusterState("c")


def put(state: ClusterState, key: keys.Key, record: Record) -> None:
    state.update(str(key), record.encode(), mod_revision=1)


def test_every_record_of_a_changefeed_finds_its_place(state: ClusterState) -> None:
    unit = UnitRecord(unit=Unit.DUMP, stage=UnitStage.RUNNING)
    ddl = DdlRecord(ts=Ts(9), statement="alter")
    point = SyncPoint(ts=Ts(8), time=1.0, versions={"public.t": "3"})
    put(state, keys.InfoKey("c", "default", FEED), INFO)
    put(state, keys.StatusKey("c", "default", FEED), STATUS)
    put(state, keys.PositionKey("c", "default", CaptureId("a"), FEED), TaskPosition())
    put(state, keys.UnitKey("c", "default", FEED, "s"), unit)
    put(state, keys.LogKey("c", "default", FEED, "s"), LogHead(epoch=3))
    put(state, keys.DdlKey("c", "default", FEED, 9), ddl)
    put(state, keys.SyncPointKey("c", "default", FEED, 8), point)
    feed = state.changefeeds[FEED]
    assert (feed.info, feed.status) == (INFO, STATUS)
    assert feed.positions == {"a": TaskPosition()}
    assert (feed.units, feed.heads, feed.ddl) == ({"s": unit}, {"s": LogHead(epoch=3)}, ChangeIndex({9: ddl}))
    assert feed.sync_points == {8: point}
    assert not state.broken


def test_a_cut_is_found_by_its_table_and_says_what_is_under_way(state: ClusterState) -> None:
    partitioning = TablePartitioning(
        table_id=7, spans=1, wanted=4, number=2, under_way=RepartitionUnderWay(spans=4, ts=Ts(9))
    )
    key = keys.PartitioningKey("c", "default", FEED, 7)
    put(state, key, partitioning)
    assert keys.parse(str(key)) == key
    assert state.changefeeds[FEED].partitionings == {7: partitioning}
    state.update(str(key), None, mod_revision=2)
    assert state.changefeeds == {}


def test_a_held_table_is_found_by_its_number_and_keeps_its_changefeed(state: ClusterState) -> None:
    error = RunningError(code="TableHeld", message="no room; make some", table_id=7, scope=Scope.TABLE)
    held = HeldTable(table_id=7, name="public.t", ts=Ts(9), since=4.0, error=error, origin=HoldOrigin.WRITE)
    key = keys.HeldKey("c", "default", FEED, 7)
    put(state, key, held)
    assert keys.parse(str(key)) == key
    assert state.changefeeds[FEED].held == {7: held}
    state.update(str(key), None, mod_revision=2)
    assert state.changefeeds == {}


def test_what_is_under_way_and_what_is_suspected_belong_to_their_changefeed(state: ClusterState) -> None:
    attempt, suspects = Attempt(tables=(7,)), Suspects(tables=(7,), ts=Ts(9), capture=CaptureId("a"))
    attempt_key = keys.AttemptKey("c", "default", FEED, CaptureId("a"))
    suspects_key = keys.SuspectsKey("c", "default", FEED)
    put(state, attempt_key, attempt)
    put(state, suspects_key, suspects)
    assert [keys.parse(str(key)) for key in (attempt_key, suspects_key)] == [attempt_key, suspects_key]
    assert state.changefeeds[FEED].attempts == {"a": attempt}
    assert state.changefeeds[FEED].suspects == suspects
    last, last_key = LastDiff(time=1.0), keys.LastDiffKey("c", "default", FEED)
    put(state, last_key, last)
    assert keys.parse(str(last_key)) == last_key
    assert state.changefeeds[FEED].last_diff == last
    state.update(str(attempt_key), None, mod_revision=2)
    assert state.changefeeds[FEED].attempts == {}
    state.update(str(suspects_key), None, mod_revision=3)
    state.update(str(last_key), None, mod_revision=4)
    assert state.changefeeds == {}


def test_a_subscription_keeps_its_changefeed_and_the_log_until_it_expires(state: ClusterState) -> None:
    reader = Subscription(
        name="reader", table_id=7, table="public.t", ts=Ts(9), session="s", expires_seconds=60.0, expires_at=100.0
    )
    key = keys.SubscriptionKey("c", "default", FEED, "reader")
    put(state, key, reader)
    assert keys.parse(str(key)) == key
    found = state.changefeeds[FEED].subscriptions
    assert found == {"reader": reader}
    assert (needed_ts(found.values(), 99.0), needed_ts(found.values(), 100.0)) == (9, MAX_TS)
    state.update(str(key), None, mod_revision=2)
    assert state.changefeeds == {}


def test_an_error_of_before_scopes_was_of_its_changefeed() -> None:
    old = RunningError.decode(b'{"code": "Sink", "message": "no room", "table_id": 7}', key="k")
    assert (old.scope, old.is_of_table) == (Scope.CHANGEFEED, False)


def test_a_changefeed_is_gone_with_its_last_key(state: ClusterState) -> None:
    state.update(INFO_KEY, INFO.encode())
    state.update(STATUS_KEY, STATUS.encode())
    state.update(INFO_KEY, None)
    assert state.changefeeds[FEED].info is None
    state.update(STATUS_KEY, None)
    assert FEED not in state.changefeeds


def test_deleting_what_was_never_there_makes_no_changefeed(state: ClusterState) -> None:
    state.update(STATUS_KEY, None)
    assert not state.changefeeds


def test_upstreams_are_known(state: ClusterState) -> None:
    record = UpstreamInfo(source="s", kind="postgresql", system_id="1")
    put(state, keys.UpstreamKey("c", "default", "s"), record)
    assert state.upstreams == {"s": record}


def test_a_broken_record_is_reported_and_the_last_good_one_stays(state: ClusterState) -> None:
    state.update(STATUS_KEY, STATUS.encode())
    state.update(STATUS_KEY, b"{")
    feed = state.changefeeds[FEED]
    assert feed.status == STATUS
    assert list(feed.broken) == list(state.broken) == [STATUS_KEY]
    state.update(STATUS_KEY, STATUS.with_(checkpoint_ts=Ts(8)).encode())
    assert not feed.broken
    assert not state.broken


def test_a_broken_record_does_not_touch_other_changefeeds(state: ClusterState) -> None:
    other = ChangefeedId("other")
    put(state, keys.InfoKey("c", "default", other), INFO.with_(id=other))
    state.update(INFO_KEY, b'{"id": 5}')
    assert state.changefeeds[FEED].info is None
    assert INFO_KEY in state.changefeeds[FEED].broken
    assert not state.changefeeds[other].broken


def test_deleting_a_broken_record_mends_it(state: ClusterState) -> None:
    state.update(INFO_KEY, b"{")
    state.update(INFO_KEY, None)
    assert not state.changefeeds
    assert not state.broken


@pytest.mark.parametrize(
    "key",
    ["/weir/c/strange", "/weir/c/other/upstream/s", str(keys.InfoKey("c", "elsewhere", FEED))],
)
def test_foreign_keys_are_kept_raw(state: ClusterState, key: str) -> None:
    state.update(key, b"?")
    assert not state.changefeeds
    assert state.raw[key].value == b"?"


def test_the_delete_counter_is_kept_raw(state: ClusterState) -> None:
    key = str(keys.DeleteCountKey("c"))
    state.update(key, b"4", mod_revision=3)
    assert state.raw[key] == KeyValue(key, b"4", 0, 3)


def test_the_first_candidate_is_the_owner(state: ClusterState) -> None:
    first, second = str(keys.OwnerKey("c", "1a")), str(keys.OwnerKey("c", "0b"))
    state.update(second, b"late", mod_revision=9, create_revision=9)
    state.update(first, b"early", mod_revision=5, create_revision=5)
    assert state.owner == Owner(CaptureId("early"), 5)
    state.update(first, None, mod_revision=10)
    assert state.owner == Owner(CaptureId("late"), 9)
    state.update(second, None, mod_revision=11)
    assert state.owner is None


def test_captures_come_sorted(state: ClusterState) -> None:
    for name in ("b", "a"):
        state.update(capture_key(name), capture_info(name).encode())
    state.begin_tick(0.0)
    assert list(state.captures) == ["a", "b"]


def test_a_capture_that_left_is_shown_for_the_grace_period(state: ClusterState) -> None:
    state.update(capture_key("a"), capture_info("a").encode())
    state.begin_tick(0.0)
    state.update(capture_key("a"), None)
    state.begin_tick(10.0)
    state.begin_tick(14.9)
    assert list(state.captures) == ["a"]
    state.begin_tick(15.0)
    assert not state.captures


def test_a_capture_that_comes_back_in_time_never_left(state: ClusterState) -> None:
    state.update(capture_key("a"), capture_info("a").encode())
    state.begin_tick(0.0)
    state.update(capture_key("a"), None)
    state.begin_tick(1.0)
    state.update(capture_key("a"), capture_info("a").encode())
    state.begin_tick(20.0)
    assert list(state.captures) == ["a"]


def test_without_grace_a_capture_is_gone_at_once() -> None:
    state = ClusterState("c", removal_grace_s=0)
    state.update(capture_key("a"), capture_info("a").encode())
    state.begin_tick(0.0)
    state.update(capture_key("a"), None)
    state.begin_tick(0.0)
    assert not state.captures


def test_a_snapshot_replaces_everything(state: ClusterState) -> None:
    other = ChangefeedId("other")
    state.update(INFO_KEY, INFO.encode(), mod_revision=1)
    key = str(keys.InfoKey("c", "default", other))
    state.load(Snapshot((KeyValue(key, INFO.with_(id=other).encode(), 2, 2),), 8))
    assert list(state.changefeeds) == [other]
    assert list(state.raw) == [key]
    assert state.revision == 8


def test_events_are_applied_in_order(state: ClusterState) -> None:
    state.apply([Event(INFO_KEY, b"{", 3, 3), Event(INFO_KEY, INFO.encode(), 4, 3)])
    assert state.changefeeds[FEED].info == INFO
    assert state.raw[INFO_KEY].mod_revision == 4
    assert state.revision == 4

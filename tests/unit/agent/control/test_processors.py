"""Processor set: started, informed of moves, stopped before the next epoch, and not started after a failure."""

from agent.control.processors import (
    FaultOver,
    Observe,
    ProcessorEnded,
    ProcessorReported,
    Processors,
    StartProcessor,
    StopProcessor,
)
from reactor import keys
from reactor.effects import Commit
from reactor.errors import Scope
from reactor.ids import CaptureId, ChangefeedId
from reactor.records.changefeed import ChangefeedInfo, ChangefeedStatus, FeedState, RunningError, SealedUri
from reactor.records.formats import ClusterFormat
from reactor.records.task_position import TaskPosition
from reactor.state import ClusterState

FEED = ChangefeedId("feed")
HERE = CaptureId("here")
ERROR = RunningError(code="Sink", message="disk full; free some", time=1.0)


def state_of(info: ChangefeedInfo | None) -> ClusterState:
    state = ClusterState("c")
    if info is not None:
        put(state, info)
        state.update(str(keys.StatusKey("c", "default", FEED)), ChangefeedStatus().encode(), mod_revision=1)
    return state


def put(state: ClusterState, info: ChangefeedInfo) -> None:
    state.update(str(keys.InfoKey("c", "default", FEED)), info.encode(), mod_revision=2)


def feed(state: FeedState = FeedState.NORMAL, epoch: int = 1) -> ChangefeedInfo:
    uri = SealedUri(masked="x", sealed="y")
    return ChangefeedInfo(id=FEED, source=uri, sink=uri, state=state, epoch=epoch)


def kinds(effects: list[object]) -> list[type]:
    return [type(effect) for effect in effects]


def processors() -> Processors:
    return Processors(HERE, cluster="c")


def test_a_running_changefeed_is_started_and_then_only_observed() -> None:
    manager, state = processors(), state_of(feed())
    assert kinds([*manager.tick(state, [], 0.0)]) == [StartProcessor, Observe]
    put(state, feed())
    assert kinds([*manager.tick(state, [], 0.1)]) == [Observe]


def test_what_has_not_changed_is_shown_again_now_and_then_only() -> None:
    manager, state = processors(), state_of(feed())
    manager.tick(state, [], 0.0)
    ticks = {second: kinds([*manager.tick(state, [], float(second))]) for second in range(1, 12)}
    assert [second for second, done in ticks.items() if done] == [5, 10], "a processor may have missed it"


def test_one_without_status_or_stopped_is_not_started() -> None:
    state = ClusterState("c")
    put(state, feed())
    assert processors().tick(state, [], 0.0) == []
    assert processors().tick(state_of(feed(FeedState.STOPPED)), [], 0.0) == []


def test_a_new_epoch_starts_only_after_the_old_processor_has_ended() -> None:
    manager, state = processors(), state_of(feed())
    manager.tick(state, [], 0.0)
    put(state, feed(epoch=2))
    assert kinds([*manager.tick(state, [], 0.1)]) == [StopProcessor]
    assert manager.tick(state, [], 0.2) == []
    assert kinds([*manager.tick(state, [ProcessorEnded(FEED)], 0.3)]) == [StartProcessor, Observe]


def test_an_error_is_committed_under_the_captures_lease_and_waits_for_another_epoch() -> None:
    manager, state = processors(), state_of(feed())
    manager.tick(state, [], 0.0)
    commit, stop = manager.tick(state, [ProcessorReported(FEED, 1, ERROR)], 0.1)
    assert isinstance(commit, Commit)
    assert isinstance(stop, StopProcessor)
    assert commit.group.requires == (str(keys.CaptureKey("c", HERE)),)
    value = commit.group.patches[0].function(None)
    assert value is not None
    assert TaskPosition.decode(value, key="k").error == ERROR.with_(capture=HERE)
    assert manager.tick(state, [ProcessorEnded(FEED)], 0.2) == []
    put(state, feed(epoch=2))
    assert kinds([*manager.tick(state, [], 0.3)]) == [StartProcessor, Observe]


def test_a_warning_is_committed_and_the_processor_continues() -> None:
    manager, state = processors(), state_of(feed())
    manager.tick(state, [], 0.0)
    effects = manager.tick(state, [ProcessorReported(FEED, 1, ERROR, is_warning=True)], 0.1)
    assert kinds([*effects]) == [Commit]


def test_a_fault_of_the_capture_is_shown_as_its_own_and_another_run_follows() -> None:
    manager, state = processors(), state_of(feed())
    manager.tick(state, [], 0.0)
    fault = ERROR.with_(scope=Scope.CAPTURE)
    commit, stop = manager.tick(state, [ProcessorReported(FEED, 1, fault)], 0.1)
    assert isinstance(commit, Commit)
    assert isinstance(stop, StopProcessor)
    value = commit.group.patches[0].function(None)
    assert value is not None
    position = TaskPosition.decode(value, key="k")
    assert (position.error, position.fault) == (None, fault.with_(capture=HERE))
    assert kinds([*manager.tick(state, [ProcessorEnded(FEED)], 0.2)]) == [StartProcessor, Observe]
    [over] = manager.tick(state, [FaultOver(FEED)], 0.3)
    assert isinstance(over, Commit)
    value = over.group.patches[0].function(value)
    assert value is not None
    assert TaskPosition.decode(value, key="k").fault is None


def test_reports_of_an_older_epoch_are_dropped() -> None:
    manager, state = processors(), state_of(feed(epoch=2))
    manager.tick(state, [], 0.0)
    assert manager.tick(state, [ProcessorReported(FEED, 1, ERROR)], 0.1) == []


def test_a_removed_changefeed_is_stopped() -> None:
    manager, state = processors(), state_of(feed())
    manager.tick(state, [], 0.0)
    state.update(str(keys.InfoKey("c", "default", FEED)), None, mod_revision=3)
    assert kinds([*manager.tick(state, [], 0.1)]) == [StopProcessor]


def test_a_changefeed_that_is_gone_with_all_its_keys_is_stopped() -> None:
    manager, state = processors(), state_of(feed())
    manager.tick(state, [], 0.0)
    state.update(str(keys.InfoKey("c", "default", FEED)), None, mod_revision=3)
    state.update(str(keys.StatusKey("c", "default", FEED)), None, mod_revision=3)
    assert state.changefeeds == {}
    assert kinds([*manager.tick(state, [], 0.1)]) == [StopProcessor]


def test_an_error_of_one_table_is_the_changefeeds_while_captures_of_v0_1_0_are_there() -> None:
    """Their owner would not look for it: the table would stand still, and nobody say so."""
    error = ERROR.with_(table_id=7, scope=Scope.TABLE)
    for number, is_held in ((1, False), (2, True)):
        manager, state = processors(), state_of(feed())
        state.update(str(keys.FormatKey("c")), ClusterFormat(number=number).encode(), mod_revision=3)
        manager.tick(state, [], 0.0)
        done = [*manager.tick(state, [ProcessorReported(FEED, 1, error)], 0.1)]
        [commit] = [effect for effect in done if isinstance(effect, Commit)]
        stored = TaskPosition.decode(commit.group.patches[0].function(None) or b"", key="k")
        assert (stored.error is None, bool(stored.tables)) == (is_held, is_held)
        assert (StopProcessor(FEED) in done) is not is_held

"""Captures with a fault of their own: what they had goes to others, and nothing fails; not even if all have one."""

from agent.control import effects
from agent.control.agent import Agent
from agent.control.gate import Gate
from owner.settings import OwnerSettings
from reactor import keys
from reactor.errors import Scope
from reactor.ids import CaptureId
from reactor.records.changefeed import FeedState, RunningError
from reactor.records.formats import NEWEST
from reactor.records.tables.held import WORKER_LOST, HoldStage, tried_after_end
from reactor.records.task_position import TaskPosition
from tests.unit.owner.feed.holds.test_held import held
from tests.unit.owner.feed.holds.test_suspects import suspects
from tests.unit.owner.owner_build import FEED, S1, A, B, C
from tests.unit.owner.small_cluster import CLUSTER, NAMESPACE, Processor, SmallCluster


class Cluster(SmallCluster):
    """A synced changefeed on three captures, whose processors end and start again."""

    def __init__(self) -> None:
        super().__init__(A, B, C, known=NEWEST, settings=OwnerSettings(standstill_s=1e9))
        self._runs = 0
        self.create()
        self.step(8)
        for _ in range(2):
            self.finish_unit()
            self.step(6)
        self.advance_log(200)
        self.step(12)
        assert self.checkpoint_ts() == 200

    def begin(self, capture: CaptureId, *, fault: str = "", table: int | None = None) -> None:
        """Another run of its processor, which has nothing yet."""
        self._runs += 1
        epoch = self.info().epoch
        processor = self.processors[capture, FEED] = Processor(self, capture, FEED, epoch)
        processor.agent = Agent(capture, FEED, gate=Gate(f"{capture}-run-{self._runs}", epoch, version="0.1.0"))
        error = None
        if fault:
            processor.agent.stop_serving()
            error = RunningError(
                code="CaptureFault", message=fault, capture=capture, scope=Scope.CAPTURE, table_id=table
            )
        position = TaskPosition(warning=error, fault=error)
        self.put(keys.PositionKey(CLUSTER, NAMESPACE, capture, FEED), position)

    def holders(self) -> set[CaptureId]:
        assert all(len(captures) == 1 for captures in self.writers().values())
        return {captures[0] for captures in self.writers().values()} | {capture for capture, _ in self.workers()}


def test_its_spans_and_its_worker_go_to_others_and_come_back_when_it_is_well() -> None:
    cluster = Cluster()
    for ts, capture in ((300, A), (400, B)):
        cluster.begin(capture, fault="disk full")
        cluster.advance_log(ts)
        cluster.step(20)
        assert capture not in cluster.holders()
        assert cluster.checkpoint_ts() == ts
        assert cluster.info().state in (FeedState.NORMAL, FeedState.WARNING)
        cluster.begin(capture)
        cluster.step(20)
    cluster.advance_log(500)
    cluster.step(20, after_s=5.0)
    assert cluster.info().state is FeedState.NORMAL
    assert len(cluster.holders()) > 1, "the work is shared again"


def test_if_every_capture_has_one_it_waits_and_goes_on_by_itself() -> None:
    cluster = Cluster()
    for capture in (A, B, C):
        cluster.begin(capture, fault="no Java")
    cluster.advance_log(300)
    cluster.step(20)
    cluster.step(100, after_s=60.0)
    assert (cluster.info().state, cluster.holders()) == (FeedState.WARNING, set())
    warning = cluster.info().warning
    assert warning is not None
    assert (warning.code, "no capture can work for it: no Java" in warning.message) == ("CaptureFault", True)
    assert cluster.checkpoint_ts() == 200
    epoch = cluster.info().epoch
    cluster.begin(B)
    cluster.step(40)
    assert (cluster.info().state, cluster.holders()) == (FeedState.NORMAL, {B})
    assert (cluster.checkpoint_ts(), cluster.info().epoch) == (300, epoch)


def test_a_table_that_lost_processes_on_a_capture_is_a_suspect_elsewhere_until_it_is_written() -> None:
    cluster = Cluster()
    kept = dict(cluster.processors)
    for processor in kept.values():
        processor.flush = lambda *_: None  # type: ignore[method-assign]
    cluster.advance_log(300)
    cluster.begin(A, fault="a worker was killed", table=1)
    cluster.step(20)
    assert A not in cluster.holders()
    assert suspects(cluster) == (1,)
    for processor in cluster.processors.values():
        vars(processor).pop("flush", None)
    cluster.step(20)
    assert cluster.checkpoint_ts() == 300
    assert suspects(cluster) == (), "it was the capture's fault, which is still shown"
    assert held(cluster) == {}
    cluster.begin(A)
    cluster.step(20)
    assert cluster.info().state is FeedState.NORMAL


def test_a_loss_on_another_capture_holds_the_table() -> None:
    cluster = Cluster()
    for processor in cluster.processors.values():
        processor.flush = lambda *_: None  # type: ignore[method-assign]
    cluster.advance_log(300)
    cluster.begin(A, fault="a worker was killed", table=1)
    cluster.step(20)
    assert suspects(cluster) == (1,)
    at = cluster.writers()[S1][0]
    assert at != A
    error = RunningError(code=WORKER_LOST, message="killed", capture=at, scope=Scope.TABLE, table_id=1)
    cluster.processors[at, FEED].happened(effects.SpanFailed(S1, error))
    cluster.put(keys.PositionKey(CLUSTER, NAMESPACE, at, FEED), TaskPosition(tables=(error,)))
    cluster.step(6)
    assert held(cluster).keys() == {1}
    assert suspects(cluster) == ()
    assert (held(cluster)[1].error.code, held(cluster)[1].retry_at > 0) == (WORKER_LOST, True)
    tried = held(cluster)[1].with_(stage=HoldStage.TRIED)
    assert tried_after_end([tried]) == {1}, "a retry counts at once, wherever it is"

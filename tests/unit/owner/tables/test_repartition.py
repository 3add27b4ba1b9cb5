"""Tables that get other spans: the way there, every crash on it, who is asked, and what is refused.

The sink here is a model that knows what must hold when it is asked: nobody writes the table, and every old span has
reached the Ts.
"""

from collections.abc import Callable
from itertools import pairwise

import pytest

from owner import jobs
from owner.errors import JobRefusedError
from owner.progress.facts import Facts
from owner.questions import RepartitionTable, TableRead
from owner.scheduler.spans import even_spans
from owner.tables import repartition
from owner.tables.repartition import ROW_MOVED
from reactor import keys
from reactor.ids import TableSpan, Ts
from reactor.questions import Answered
from reactor.records.changefeed import ChangefeedConfig, FeedState, RunningError
from reactor.records.tables.partitioning import TablePartitioning
from tests.unit.owner.owner_build import FEED, S1, S2, A, B, C
from tests.unit.owner.small_cluster import CLUSTER, NAMESPACE, TABLES, SmallCluster, failure, released
from tests.unit.owner.test_owner import running

T1 = S1.table_id


def question(number: int, ts: Ts) -> RepartitionTable:
    return RepartitionTable(TABLES[0], (), (), ts, number)


class CutSinkModel:
    """Answers what it is asked, after having looked. ``records``: of table 1, as the last repartition left them."""

    def __init__(self, cluster: SmallCluster) -> None:
        self.cluster = cluster
        self.spans: tuple[TableSpan, ...] = (S1,)
        self.number = 0
        self.ts = Ts(0)
        self.recorded: dict[TableSpan, Ts] = {}
        self.is_silent = False

    def answer(self) -> None:
        orders, self.cluster.repartitions = self.cluster.repartitions, []
        for order in orders:
            if not self.is_silent:
                self.cluster.jobs.append(self._answer(order))

    def _answer(self, order: RepartitionTable) -> Answered[Ts]:
        said = Answered(FEED, order, order.ts)
        if order.number == self.number:
            return said
        assert (order.old, order.number) == (self.spans, self.number + 1)
        assert not [span for span in self.cluster.writers() if span.table_id == T1], "somebody writes the table"
        furthest = max((self.recorded.get(span, Ts(0)) for span in order.old), default=Ts(0))
        if furthest > order.ts:
            return Answered(FEED, order, furthest)
        assert order.ts >= self.cluster.checkpoint_ts(), "the changefeed claims more than the table will have"
        self.spans, self.number, self.ts = order.new, order.number, order.ts
        return said


def go(cluster: SmallCluster, sink: CutSinkModel, count: int = 1) -> None:
    """Steps, while the log continues; nothing that is claimed is taken back, and no range of keys has two writers."""
    for _ in range(count):
        before = cluster.checkpoint_ts()
        sink.answer()
        cluster.step()
        assert cluster.checkpoint_ts() >= before
        spans = sorted(span for span in cluster.writers() if span.table_id == T1)
        assert all(left.end <= right.start for left, right in pairwise(spans)), "an overlap"
        assert all(span in sink.spans for span in spans), "a span that the sink has no record of"
        head = cluster.state.changefeeds[FEED].heads.get("main")
        if head is not None:
            cluster.advance_log(head.resolved_ts + 1)


def partitioning_of(cluster: SmallCluster) -> TablePartitioning | None:
    return cluster.state.changefeeds[FEED].partitionings.get(T1)


def written(cluster: SmallCluster) -> set[TableSpan]:
    return {span for span in cluster.writers() if span.table_id == T1}


def split(cluster: SmallCluster, spans: int, *, job: str = "split") -> None:
    cluster.ask(jobs.Repartition(job, FEED, T1, spans))
    assert cluster.answers[job].error == ""


def test_a_table_is_split_and_joined_again() -> None:
    cluster = running("a", "b")
    sink = CutSinkModel(cluster)
    split(cluster, 4)
    assert cluster.answers["split"].value == 1
    go(cluster, sink, 30)
    assert partitioning_of(cluster) == TablePartitioning(table_id=T1, spans=4, wanted=4, number=1)
    assert written(cluster) == set(even_spans(T1, 4))
    assert S2 in cluster.writers(), "the other table went on"
    assert [len(table.spans) for table in cluster.view().tables] == [4, 1]
    split(cluster, 1, job="join")
    go(cluster, sink, 30)
    assert partitioning_of(cluster) == TablePartitioning(table_id=T1, spans=1, wanted=1, number=2)
    assert written(cluster) == {S1}
    before = cluster.checkpoint_ts()
    go(cluster, sink, 4)
    assert cluster.checkpoint_ts() > before, "nothing holds it any more"


def test_the_other_tables_continue_and_people_see_why_this_one_does_not() -> None:
    cluster = running("a", "b")
    sink = CutSinkModel(cluster)
    sink.is_silent = True
    split(cluster, 2)
    go(cluster, sink, 12)
    partitioning = partitioning_of(cluster)
    assert partitioning is not None
    assert partitioning.under_way is not None
    assert cluster.view().blocked_by == "public.t1: getting other spans"
    table, other = cluster.view().tables
    assert [(span.state, span.checkpoint_ts) for span in table.spans] == [
        ("repartitioning", partitioning.under_way.ts)
    ] * 2
    assert other.checkpoint_ts > partitioning.under_way.ts
    assert cluster.checkpoint_ts() == partitioning.under_way.ts, "known for the table that nobody writes, too"
    cluster.ask(Answered(FEED, question(1, partitioning.under_way.ts), error=failure("bucket is gone")))
    assert cluster.view().blocked_by.endswith("bucket is gone")
    causes = [table.waiting_for for table in cluster.view().tables]
    assert causes == ["public.t1: getting other spans: bucket is gone", ""]
    sink.is_silent = False
    go(cluster, sink, 40)
    assert written(cluster) == set(even_spans(T1, 2))


def test_the_checkpoint_counts_the_table_that_nobody_writes() -> None:
    cluster = running("a", "b")
    sink = CutSinkModel(cluster)
    sink.is_silent = True
    other = next(processor for processor in cluster.processors.values() if S2 in processor.writing)
    other.writing.discard(S2)
    go(cluster, sink, 4)
    split(cluster, 2)
    go(cluster, sink, 12)
    partitioning = partitioning_of(cluster)
    assert partitioning is not None
    assert partitioning.under_way is not None
    assert cluster.checkpoint_ts() == 200 < partitioning.under_way.ts
    other.writing.add(S2)
    go(cluster, sink, 4)
    assert cluster.checkpoint_ts() == partitioning.under_way.ts


def test_the_sink_is_asked_when_the_last_span_has_stopped() -> None:
    cluster = running("a", "b")
    sink = CutSinkModel(cluster)
    writer = next(processor for processor in cluster.processors.values() if S1 in processor.writing)
    writer.is_slow = True
    split(cluster, 2)
    go(cluster, sink, 12)
    partitioning = partitioning_of(cluster)
    assert partitioning is not None
    assert (writer.stopping, partitioning.under_way) == ([S1], None)
    writer.is_slow = False
    writer.stop()
    go(cluster, sink, 20)
    assert written(cluster) == set(even_spans(T1, 2))


def lose_owner(cluster: SmallCluster) -> None:
    cluster.elect(B if cluster.owner.capture == A else A)


def lose_capture(cluster: SmallCluster) -> None:
    cluster.leave(C)


def lose_owner_and_capture(cluster: SmallCluster) -> None:
    """All that it had is gone in the same moment."""
    if cluster.owner.capture == A:
        cluster.elect(B)
        cluster.leave(A)


def fail_a_run(cluster: SmallCluster) -> None:
    cluster.report(B, RunningError(code="SinkConflict", message="it broke", time=1.0))


def pause_and_resume(cluster: SmallCluster) -> None:
    cluster.ask(jobs.Pause("p", FEED))
    cluster.step(2)
    cluster.ask(jobs.Resume("r", FEED))


def lose_the_answer(cluster: SmallCluster) -> None:
    """The sink has done it, and nobody hears of it; it is asked again."""
    cluster.jobs = [job for job in cluster.jobs if not isinstance(job, Answered)]


FAULTS = [lose_owner, lose_capture, lose_owner_and_capture, fail_a_run, pause_and_resume, lose_the_answer]


@pytest.mark.sample(0.25)
@pytest.mark.parametrize("after", range(1, 16))
@pytest.mark.parametrize("fault", FAULTS)
def test_whatever_is_lost_wherever_it_continues(fault: Callable[[SmallCluster], None], after: int) -> None:
    cluster = running("a", "b", "c")
    sink = CutSinkModel(cluster)
    split(cluster, 3)
    go(cluster, sink, after)
    sink.answer()
    fault(cluster)
    go(cluster, sink, 4)
    for _ in range(12):
        cluster.step(after_s=5.0)  # deadline with the sink, and backoff
        sink.answer()
    go(cluster, sink, 12)
    assert partitioning_of(cluster) == TablePartitioning(table_id=T1, spans=3, wanted=3, number=1)
    assert written(cluster) == set(even_spans(T1, 3))
    before = cluster.checkpoint_ts()
    go(cluster, sink, 6)
    assert cluster.checkpoint_ts() > before


@pytest.mark.sample(0.25)
@pytest.mark.parametrize("second", range(1, 16, 2))
@pytest.mark.parametrize("first", range(1, 16, 2))
def test_two_new_owners_one_after_the_other(first: int, second: int) -> None:
    cluster = running("a", "b")
    sink = CutSinkModel(cluster)
    split(cluster, 2)
    go(cluster, sink, first)
    lose_owner(cluster)
    go(cluster, sink, second)
    lose_owner(cluster)
    go(cluster, sink, 40)
    assert partitioning_of(cluster) == TablePartitioning(table_id=T1, spans=2, wanted=2, number=1)
    assert written(cluster) == set(even_spans(T1, 2))


def test_a_span_that_was_quicker_moves_the_table_on() -> None:
    """A flush that was under way when the hold came, or a capture that nobody believes to be there."""
    cluster = running("a", "b")
    sink = CutSinkModel(cluster)
    sink.recorded = {S1: Ts(230)}
    split(cluster, 2)
    go(cluster, sink, 60)
    assert written(cluster) == set(even_spans(T1, 2))
    assert sink.ts == 230
    assert sink.number == 1, "the number was not used up by the repartition that did not happen"


def test_an_answer_to_an_earlier_question_is_none() -> None:
    cluster = running("a", "b")
    sink = CutSinkModel(cluster)
    sink.is_silent = True
    split(cluster, 2)
    go(cluster, sink, 12)
    partitioning = partitioning_of(cluster)
    assert partitioning is not None
    assert partitioning.under_way is not None
    cluster.ask(Answered(FEED, question(7, partitioning.under_way.ts), partitioning.under_way.ts))
    cluster.ask(Answered(FEED, question(1, Ts(partitioning.under_way.ts - 1)), partitioning.under_way.ts))
    go(cluster, sink, 4)
    assert partitioning_of(cluster) == partitioning


def test_a_sync_point_has_its_spans_to_itself() -> None:
    cluster = running("a", "b")
    key = keys.InfoKey(CLUSTER, NAMESPACE, FEED)
    cluster.put(key, cluster.info().with_(config=ChangefeedConfig(sync_point_interval_seconds=60)))
    cluster.step()
    sink = CutSinkModel(cluster)
    cluster.step(2, after_s=60.0)
    assert cluster.reads
    split(cluster, 2)
    go(cluster, sink, 20)
    partitioning = partitioning_of(cluster)
    assert partitioning is not None
    assert (partitioning.spans, partitioning.under_way) == (1, None)
    asked = cluster.reads[-1]
    cluster.ask(Answered(FEED, asked, (TableRead("public.t1", "7", asked.ts),)))
    go(cluster, sink, 30)
    assert written(cluster) == set(even_spans(T1, 2))


def test_a_sync_point_waits_for_a_table_that_is_brought_together() -> None:
    """Each would wait for ever for spans that the other holds."""
    cluster = running("a", "b")
    key = keys.InfoKey(CLUSTER, NAMESPACE, FEED)
    cluster.put(key, cluster.info().with_(config=ChangefeedConfig(sync_point_interval_seconds=60)))
    sink = CutSinkModel(cluster)
    split(cluster, 2)
    go(cluster, sink, 30)
    slow = next(processor for processor in cluster.processors.values() if written(cluster) & processor.writing)
    mine = min(written(cluster) & slow.writing)
    slow.writing.discard(mine)
    go(cluster, sink, 4)
    split(cluster, 3, job="more")
    go(cluster, sink, 4)
    cluster.step(2, after_s=60.0)
    assert cluster.reads == []
    slow.writing.add(mine)
    go(cluster, sink, 30)
    assert written(cluster) == set(even_spans(T1, 3))
    assert len(cluster.reads) == 1


@pytest.mark.matrix
def test_another_wish_on_the_way_is_taken_up() -> None:
    for steps in range(1, 16):
        cluster = running("a", "b")
        sink = CutSinkModel(cluster)
        split(cluster, 2)
        go(cluster, sink, steps)
        split(cluster, 5, job="more")
        go(cluster, sink, 60)
        assert written(cluster) == set(even_spans(T1, 5))
        split(cluster, 1, job="join")
        go(cluster, sink, steps)
        split(cluster, 5, job="again")
        go(cluster, sink, 60)
        assert written(cluster) == set(even_spans(T1, 5))


def test_positions_do_not_change_while_the_sink_may_have_cut() -> None:
    cluster = running("a", "b")
    sink = CutSinkModel(cluster)
    sink.is_silent = True
    split(cluster, 2)
    go(cluster, sink, 12)
    cluster.ask(jobs.Pause("p", FEED))
    cluster.step()
    for job in (jobs.Rewind("w", FEED, Ts(150)), jobs.Resume("r", FEED, Ts(150))):
        cluster.ask(job)
        assert "is being repartitioned" in cluster.answers[job.job_id].error
    cluster.ask(jobs.Resume("r", FEED))
    sink.is_silent = False
    go(cluster, sink, 30)
    assert written(cluster) == set(even_spans(T1, 2))


def test_what_cannot_be_is_refused() -> None:
    cluster = running("a", "b")
    for spans, table, text in ((0, 1, "1 to 100"), (101, 1, "1 to 100"), (2, 99, "no table 99")):
        cluster.ask(jobs.Repartition("x", FEED, table, spans))
        assert text in cluster.answers["x"].error
        assert cluster.answers["x"].value == "JobRefused"
    early = SmallCluster(A)
    early.create()
    early.step(4)
    early.ask(jobs.Repartition("x", FEED, 1, 2))
    assert "being copied" in early.answers["x"].error


def test_a_table_without_a_key_is_one_span() -> None:
    cluster = running("a")
    feed = cluster.state.changefeeds[FEED]
    unit = feed.units["main"]
    cluster.put(keys.UnitKey(CLUSTER, NAMESPACE, FEED, "main"), unit.with_(tables=(TABLES[0].with_(key=()),)))
    cluster.ask(jobs.Repartition("x", FEED, 1, 2))
    assert "has no key" in cluster.answers["x"].error


def test_a_row_that_no_span_can_pass_joins_its_table() -> None:
    cluster = running("a", "b")
    sink = CutSinkModel(cluster)
    split(cluster, 2)
    go(cluster, sink, 30)
    moved = RunningError(code=ROW_MOVED, message="a row moved", time=1.0, retryable=False, table_id=T1)
    cluster.report(B, moved)
    go(cluster, sink, 2)
    assert cluster.info().state is FeedState.PENDING
    assert partitioning_of(cluster) == TablePartitioning(table_id=T1, spans=2, wanted=1, number=1)
    cluster.step(after_s=15.0)
    go(cluster, sink, 30)
    assert written(cluster) == {S1}
    assert cluster.info().state is FeedState.NORMAL


def test_the_hold_comes_before_the_spans_run() -> None:
    """Or a span that cannot pass a row would fail again before its table could be joined."""
    cluster = running("a", "b")
    sink = CutSinkModel(cluster)
    split(cluster, 2)
    go(cluster, sink, 30)
    cluster.put(
        keys.PartitioningKey(CLUSTER, NAMESPACE, FEED, T1), TablePartitioning(table_id=T1, spans=2, wanted=1, number=1)
    )
    cluster.ask(jobs.Pause("p", FEED))
    cluster.step(4)
    stands = cluster.checkpoint_ts()
    cluster.advance_log(stands + 1000)
    cluster.ask(jobs.Resume("r", FEED))
    cluster.step(6)
    positions = {span.checkpoint_ts for span in cluster.view().tables[0].spans}
    assert max(positions) < stands + 1000


def test_an_error_of_another_kind_or_table_joins_nothing() -> None:
    partitioning = TablePartitioning(table_id=T1, spans=2, wanted=2)
    other = RunningError(code="SinkConflict", message="x", table_id=T1)
    elsewhere = RunningError(code=ROW_MOVED, message="x", table_id=9, retryable=False)
    assert repartition.joined([other, elsewhere], {T1: partitioning}) == ([other, elsewhere], [])


def policy(cluster: SmallCluster, *, rows: int) -> None:
    config = ChangefeedConfig(split_large_tables=True, split_rows=1_000)
    cluster.put(keys.InfoKey(CLUSTER, NAMESPACE, FEED), cluster.info().with_(config=config))
    unit = cluster.state.changefeeds[FEED].units["main"]
    tables = (TABLES[0].with_(rows_estimated=rows), TABLES[1].with_(rows_estimated=rows, key=()))
    cluster.put(keys.UnitKey(CLUSTER, NAMESPACE, FEED, "main"), unit.with_(tables=tables))


def test_large_tables_are_split_by_themselves_once() -> None:
    cluster = running("a", "b")
    policy(cluster, rows=3_500)
    sink = CutSinkModel(cluster)
    go(cluster, sink, 30)
    assert written(cluster) == set(even_spans(T1, 3))
    split(cluster, 1, job="join")
    go(cluster, sink, 30)
    lose_owner(cluster)
    go(cluster, sink, 10)
    assert written(cluster) == {S1}, "what an operator has joined stays so"


def test_small_tables_are_not() -> None:
    cluster = running("a", "b")
    policy(cluster, rows=1_900)
    go(cluster, CutSinkModel(cluster), 10)
    assert cluster.state.changefeeds[FEED].partitionings == {}


def test_a_table_that_is_gone_takes_its_cut_with_it() -> None:
    cluster = running("a", "b")
    sink = CutSinkModel(cluster)
    split(cluster, 2)
    go(cluster, sink, 30)
    unit = cluster.state.changefeeds[FEED].units["main"]
    cluster.put(keys.UnitKey(CLUSTER, NAMESPACE, FEED, "main"), unit.with_(tables=TABLES[1:]))
    cluster.step(8)
    assert cluster.state.changefeeds[FEED].partitionings == {}
    assert set(cluster.writers()) == {S2}


def test_nothing_of_a_cut_outlives_its_changefeed() -> None:
    cluster = running("a", "b")
    split(cluster, 2)
    cluster.ask(jobs.Remove("1", FEED))
    cluster.ask(released())
    assert not [key for key in cluster.state.raw if "/cut/" in key]


def test_what_has_finished_is_not_cut() -> None:
    cluster = running("a")
    facts = Facts.of(cluster.state.changefeeds[FEED], cluster.info().with_(state=FeedState.FINISHED))
    with pytest.raises(JobRefusedError, match="is finished"):
        repartition.asked(facts, T1, 2)

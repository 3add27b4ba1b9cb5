"""Resyncs under the real owner: a table is copied again alone, and continues from its copy's position."""

from dataclasses import replace
from typing import Any

import pytest

from owner.jobs import PauseTable, Repartition, Resume, ResumeTable, ResyncTable, Update
from owner.questions import CopyTable, DropCopy, PlaceTable, TableCopied
from reactor import keys
from reactor.ids import TableSpan, Ts
from reactor.questions import UNDER_WAY, Answered
from reactor.records.changefeed import ChangefeedConfig, ColumnSelector, CopyLimit, FilterConfig, RunningError
from reactor.records.log_head import LogHead
from reactor.records.tables.held import HeldTable, HoldOrigin, HoldStage
from reactor.records.tables.partitioning import TablePartitioning
from reactor.records.tables.resync import ResyncStage, TableResync, needed_ts
from tests.unit.owner.feed.holds.test_held import broken, held, hold, stage, until
from tests.unit.owner.feed.test_amendment import moving
from tests.unit.owner.owner_build import FEED, S1, B
from tests.unit.owner.small_cluster import CLUSTER, NAMESPACE, TABLES, SmallCluster
from tests.unit.owner.tables.test_schema_changes import NEW, alter, create, drop, record
from tests.unit.owner.test_owner import running

T1, T2 = TABLES


def resync(cluster: SmallCluster, table_id: int = 1) -> TableResync | None:
    return cluster.state.changefeeds[FEED].resyncs.get(table_id)


def at_stage(cluster: SmallCluster, wanted: ResyncStage | None, *, steps: int = 40) -> TableResync | None:
    for _ in range(steps):
        found = resync(cluster)
        if (found.stage if found else None) is wanted:
            return found
        cluster.step()
    raise AssertionError(f"still {resync(cluster)}")


def asked(cluster: SmallCluster, job: ResyncTable | None = None) -> str:
    job = job or ResyncTable("r", FEED, 1)
    cluster.ask(job)
    cluster.step()
    return cluster.answers[job.job_id].error


def last(cluster: SmallCluster, kind: type) -> Any:
    for _ in range(10):
        if cluster.copies and isinstance(cluster.copies[-1], kind):
            return cluster.copies[-1]
        cluster.step()
    raise AssertionError(f"the last question is {cluster.copies[-1:]}")


def copied(cluster: SmallCluster, ts: int) -> None:
    question = last(cluster, CopyTable)
    assert isinstance(question, CopyTable)
    found = TableCopied(question.table.with_(start_ts=Ts(ts), consistent_ts=Ts(ts + 5)), rows=7)
    cluster.ask(Answered(FEED, question, found))


def failed(cluster: SmallCluster, kind: type, code: str, text: str = "no") -> None:
    answer: Answered[Any] = Answered(FEED, last(cluster, kind), error=RunningError(code=code, message=text))
    cluster.ask(answer)


def done(cluster: SmallCluster, kind: type) -> None:
    answer: Answered[Any] = Answered(FEED, last(cluster, kind))
    cluster.ask(answer)


def placed(cluster: SmallCluster, ts: int) -> None:
    """The copy is of ``ts``, the log is there, and the sink has it."""
    copied(cluster, ts)
    cluster.advance_log(ts + 100)
    done(cluster, PlaceTable)


@pytest.mark.parametrize("is_healthy", [True, False])
def test_a_table_is_copied_alone_and_continues_from_its_copy(is_healthy: bool) -> None:
    cluster = running("a", "b") if is_healthy else broken("a", "b")
    assert asked(cluster) == ""
    at_stage(cluster, ResyncStage.COPYING)
    assert S1 not in cluster.writers(), "nobody writes what is copied"
    cluster.advance_log(500)
    cluster.step(6)
    assert cluster.checkpoint_ts() == 500, "the others flow"
    copied(cluster, 600)
    cluster.step(4)
    assert not any(isinstance(question, PlaceTable) for question in cluster.copies), "the log is not there yet"
    cluster.advance_log(700)
    question = last(cluster, PlaceTable)
    assert isinstance(question, PlaceTable)
    assert (question.table.start_ts, question.spans) == (600, (S1,))
    done(cluster, PlaceTable)
    until(cluster, None)
    done(cluster, DropCopy)
    at_stage(cluster, None)
    cluster.step(4)
    assert cluster.checkpoint_ts() == 700
    assert S1 in cluster.writers()
    table = cluster.state.changefeeds[FEED].units["main"].tables[0]
    assert (table.start_ts, table.consistent_ts) == (600, 605)


@pytest.mark.parametrize("error", ["", "StoreUnreachable"])
def test_an_answer_that_comes_while_the_table_is_tried_again_is_heard(error: str) -> None:
    """It was ignored, and the sink was never asked again: no other copy of the table could be asked for."""
    cluster = running("a")
    asked(cluster)
    placed(cluster, 600)
    until(cluster, HoldStage.TRIED)
    cluster.ask(PauseTable("p", FEED, 1))
    assert isinstance(last(cluster, DropCopy), DropCopy)
    cluster.ask(ResumeTable("again", FEED, 1))
    until(cluster, HoldStage.TRIED)
    failed(cluster, DropCopy, error) if error else done(cluster, DropCopy)
    cluster.copies.clear()
    until(cluster, None)
    if error:
        cluster.step(after_s=10.0)
        done(cluster, DropCopy)
    at_stage(cluster, None)


def test_a_copy_takes_its_place_behind_the_mark_of_what_has_left() -> None:
    """On a quiet source both are of one Ts, and the mark would be the copy's."""
    cluster = running("a")
    cluster.ask(moving((T1.schema_name, T1.name), leaving=(1,)))
    cluster.step(2)
    cluster.change_schema(record(300, create(T1.with_(start_ts=Ts(299), to_copy=True))))
    copied(cluster, 495)
    cluster.advance_log(500)
    cluster.step(8)
    assert isinstance(cluster.copies[-1], CopyTable)
    cluster.ask(Answered(FEED, cluster.marks[-1]))
    assert isinstance(last(cluster, PlaceTable), PlaceTable)


def test_a_copy_takes_its_place_when_the_log_has_come_to_all_its_rows() -> None:
    """Chunks may be of later moments than its position, and a standby that is promoted may lack these."""
    cluster = running("a")
    asked(cluster)
    copied(cluster, 900)
    cluster.advance_log(904)
    cluster.step(8)
    assert not any(isinstance(question, PlaceTable) for question in cluster.copies)
    cluster.advance_log(905)
    assert isinstance(last(cluster, PlaceTable), PlaceTable)


def test_a_table_that_is_tried_after_its_copy_begins_at_the_copys_position() -> None:
    cluster = running("a")
    asked(cluster)
    placed(cluster, 900)
    for _ in range(20):
        if stage(cluster) is HoldStage.TRIED:
            break
        cluster.step()
    assert held(cluster)[1].ts == 900
    assert at_stage(cluster, ResyncStage.FOLLOWING) is not None


def test_the_log_is_kept_from_where_the_copying_begins() -> None:
    cluster = running("a")
    asked(cluster)
    assert needed_ts(cluster.state.changefeeds[FEED].resyncs.values()) > 200
    found = at_stage(cluster, ResyncStage.COPYING)
    assert found is not None
    assert (found.floor_ts, needed_ts([found])) == (200, 200)
    assert needed_ts([found.with_(stage=ResyncStage.FOLLOWING)]) > 200


def test_a_copy_of_before_the_log_that_is_kept_is_made_again() -> None:
    cluster = running("a")
    asked(cluster)
    first = at_stage(cluster, ResyncStage.COPYING)
    copied(cluster, 150)
    second = at_stage(cluster, ResyncStage.COPYING)
    assert first is not None
    assert second is not None
    assert second.number > first.number


@pytest.mark.parametrize("code", ["CopyBehind", "CopyLost"])
def test_a_copy_that_is_of_no_use_any_more_is_made_again(code: str) -> None:
    cluster = running("a")
    asked(cluster)
    copied(cluster, 600)
    cluster.advance_log(700)
    failed(cluster, PlaceTable, code)
    found = at_stage(cluster, ResyncStage.COPYING)
    assert found is not None
    assert found.table is None
    placed(cluster, 900)
    until(cluster, None)


def test_a_copy_that_the_log_does_not_reach_back_to_is_made_again() -> None:
    cluster = running("a")
    asked(cluster)
    copied(cluster, 600)
    key = keys.LogKey(CLUSTER, NAMESPACE, FEED, "main")
    cluster.put(key, LogHead(resolved_ts=Ts(900), removed_ts=Ts(700), resolved_time=cluster.now))
    at_stage(cluster, ResyncStage.COPYING)
    assert not any(isinstance(question, PlaceTable) for question in cluster.copies)


def test_a_copy_is_made_at_the_speed_that_was_asked_for_also_again() -> None:
    cluster = running("a")
    assert asked(cluster, ResyncTable("r", FEED, 1, rows_per_second=500)) == ""
    assert last(cluster, CopyTable).rows_per_second == 500
    [view] = cluster.view().resyncs
    assert view.limit == 500
    assert [table.resync for table in cluster.view().tables] == [view, None]
    failed(cluster, CopyTable, "CopyLost")
    found = resync(cluster)
    assert found is not None
    assert found.rows_per_second == 500


def test_a_limit_waits_for_captures_that_keep_it() -> None:
    cluster = running("a")
    cluster.state.format = 5
    assert "a limit of reading needs format 6" in asked(cluster, ResyncTable("r", FEED, 1, rows_per_second=500))
    assert resync(cluster) is None
    limited = replace(moving(("public", "t")), copy_limits=(("public", "t", 500),))
    cluster.state.format = 5
    cluster.ask(limited)
    assert "a limit of reading needs format 6" in cluster.answers["move"].error
    cluster.state.format = 5
    cluster.ask(replace(limited, job_id="2", copy_limits=()))
    assert cluster.answers["2"].error == ""


def test_a_table_that_joins_is_copied_at_the_speed_that_was_asked_for_and_later_at_any() -> None:
    cluster = running("a")
    name, later = (NEW.schema_name, NEW.name), ("public", "later")
    cluster.ask(replace(moving(name, later), copy_limits=((*name, 500), (*later, 600), ("public", "gone", 700))))
    cluster.step()

    def limits() -> tuple[CopyLimit, ...]:
        return cluster.state.changefeeds[FEED].units["main"].copy_limits

    assert limits() == ((*name, 500), (*later, 600)), "no other table comes"
    cluster.ask(replace(moving(name, later), job_id="2"))
    assert limits() == ((*name, 500), (*later, 600))
    cluster.step(8)
    cluster.change_schema(record(300, create(NEW.with_(start_ts=Ts(299), to_copy=True))))
    assert last(cluster, CopyTable).rows_per_second == 500
    placed(cluster, 600)
    cluster.step(4)
    assert limits() == ((*later, 600),)


def test_what_fails_is_shown_and_tried_again_later_and_later() -> None:
    cluster, waits = running("a"), []
    asked(cluster)
    for _ in range(3):
        cluster.copies.clear()
        failed(cluster, CopyTable, "SourceUnreachable", "host is down; start it")
        cluster.step(2)
        found = resync(cluster)
        assert found is not None
        assert found.error is not None
        waits.append(round(found.retry_at - found.error.time))
        [view] = cluster.view().resyncs
        assert (view.stage, view.code, view.message) == ("copying", "SourceUnreachable", "host is down; start it")
        cluster.copies.clear()
        cluster.step(4)
        assert not cluster.copies
        cluster.now = found.retry_at
    assert waits == [5, 10, 20]


def test_what_is_under_way_is_asked_for_later_and_is_no_error() -> None:
    cluster = running("a")
    asked(cluster)
    failed(cluster, CopyTable, UNDER_WAY)
    cluster.copies.clear()
    cluster.step(4)
    found = resync(cluster)
    assert found is not None
    assert (found.tries, cluster.copies) == (0, [])
    cluster.now += 31.0
    last(cluster, CopyTable)


def test_the_next_owner_asks_for_the_same_copy_under_a_larger_epoch() -> None:
    cluster = running("a", "b")
    asked(cluster)
    first = last(cluster, CopyTable)
    cluster.elect(B)
    cluster.copies.clear()
    cluster.step(8)
    second = last(cluster, CopyTable)
    assert isinstance(first, CopyTable)
    assert isinstance(second, CopyTable)
    assert (second.number, second.table) == (first.number, first.table)
    assert second.epoch > first.epoch
    cluster.ask(Answered(FEED, first, TableCopied(first.table.with_(start_ts=Ts(600)), 7)))
    cluster.step(2)
    assert at_stage(cluster, ResyncStage.COPYING), "an answer to the owner before is none to this one"


def test_an_owner_that_dies_behind_the_sinks_commit_asks_again() -> None:
    cluster = running("a", "b")
    asked(cluster)
    copied(cluster, 600)
    cluster.advance_log(700)
    first = last(cluster, PlaceTable)
    cluster.elect(B)
    cluster.copies.clear()
    cluster.step(8)
    assert last(cluster, PlaceTable) == first
    done(cluster, PlaceTable)
    until(cluster, None)


def test_schema_changes_that_the_copy_has_are_done_and_later_ones_follow() -> None:
    cluster = running("a")
    asked(cluster)
    at_stage(cluster, ResyncStage.COPYING)
    cluster.change_schema(record(300, alter(T1), alter(T2)))
    cluster.change_schema(record(550, alter(T1)))
    copied(cluster, 500)
    cluster.advance_log(700)
    done(cluster, PlaceTable)
    cluster.step(3)
    ddl = cluster.state.changefeeds[FEED].ddl
    assert ddl[300].pending_ids == {2}
    assert ddl[550].pending_ids == {1}


def test_a_table_that_its_source_has_ceased_to_follow_is_held_behind_its_copy() -> None:
    """It flowed, though the log had none of its rows any more."""
    cluster = running("a")
    asked(cluster)
    at_stage(cluster, ResyncStage.COPYING)
    cluster.change_schema(record(300, alter(T1)))
    cluster.change_schema(hold(350))
    copied(cluster, 500)
    cluster.advance_log(700)
    done(cluster, PlaceTable)
    until(cluster, HoldStage.TRIED)
    until(cluster, HoldStage.HELD)
    assert held(cluster)[1].origin is HoldOrigin.SOURCE
    assert not cluster.state.changefeeds[FEED].ddl[300].pending_ids
    cluster.advance_log(900)
    cluster.step(6)
    assert cluster.checkpoint_ts() == 900, "the others flow"
    done(cluster, DropCopy)
    at_stage(cluster, None)
    assert held(cluster)[1].origin is HoldOrigin.SOURCE, "it may leave, and join again"


@pytest.mark.parametrize(("back", "is_refused"), [(False, True), (True, False)])
def test_a_copy_of_another_table_that_took_the_name_is_not_put_in_place(back: bool, is_refused: bool) -> None:
    """The table was held, and renamed since; copies are read by name."""
    cluster = running("a")
    asked(cluster)
    at_stage(cluster, ResyncStage.COPYING)
    cluster.change_schema(record(300, alter(T1).with_(table=T1.named("public", "other"))))
    if back:
        cluster.change_schema(record(400, alter(T1)))
    copied(cluster, 500)
    cluster.advance_log(700)
    cluster.step(6)
    assert any(isinstance(question, PlaceTable) for question in cluster.copies) is not is_refused
    found = resync(cluster)
    assert found is not None
    assert (found.error.code if found.error else "") == ("NameTaken" if is_refused else "")
    if found.error is not None:
        assert "has the name public.other at its source" in found.error.message
        assert not found.error.retryable


def test_a_table_that_is_dropped_meanwhile_is_not_copied_any_more() -> None:
    cluster = running("a")
    asked(cluster)
    at_stage(cluster, ResyncStage.COPYING)
    unit = cluster.state.changefeeds[FEED].units["main"]
    cluster.put(keys.UnitKey(CLUSTER, NAMESPACE, FEED, "main"), unit.with_(tables=(T2,)))
    cluster.put(keys.HeldKey(CLUSTER, NAMESPACE, FEED, 1), None)
    at_stage(cluster, ResyncStage.FOLLOWING)
    done(cluster, DropCopy)
    at_stage(cluster, None)


def test_a_table_whose_drop_is_on_its_way_is_not_put_in_place() -> None:
    cluster = running("a")
    asked(cluster)
    at_stage(cluster, ResyncStage.COPYING)
    cluster.change_schema(record(650, drop(T1)))
    copied(cluster, 600)
    cluster.step(6)
    assert not any(isinstance(question, PlaceTable) for question in cluster.copies)


def test_resume_does_not_try_a_table_that_is_copied() -> None:
    cluster = broken("a")
    asked(cluster)
    at_stage(cluster, ResyncStage.COPYING)
    cluster.ask(Resume("again", FEED))
    cluster.now += 600.0
    cluster.step(6)
    assert (stage(cluster), S1 in cluster.writers()) == (HoldStage.HELD, False)


def test_a_lost_table_comes_back() -> None:
    cluster = broken("a")
    key = keys.LogKey(CLUSTER, NAMESPACE, FEED, "main")
    cluster.put(key, LogHead(resolved_ts=Ts(500), removed_ts=Ts(300), resolved_time=cluster.now))
    until(cluster, HoldStage.LOST)
    assert "weir table resync -c feed --table public.t1" in held(cluster)[1].error.message
    assert asked(cluster) == ""
    placed(cluster, 900)
    until(cluster, None)
    assert S1 in cluster.writers()


def test_it_is_given_up_before_the_sink_is_asked_only() -> None:
    cluster = running("a")
    cancel = ResyncTable("c", FEED, 1, is_cancelled=True)
    assert "is not being copied again" in asked(cluster, cancel)
    asked(cluster)
    at_stage(cluster, ResyncStage.COPYING)
    assert asked(cluster, cancel) == ""
    until(cluster, None)
    assert resync(cluster) is None
    asked(cluster)
    copied(cluster, 600)
    cluster.advance_log(700)
    last(cluster, PlaceTable)
    assert "cannot be given up any more" in asked(cluster, cancel)


def test_what_cannot_be_copied_is_refused() -> None:
    cluster = running("a")
    assert "has no table 9" in asked(cluster, ResyncTable("r", FEED, 9))
    assert asked(cluster) == ""
    assert "is being copied again already" in asked(cluster)
    bounded = running("a", target_ts=5000)
    assert "remove the target first" in asked(bounded)
    source = running("a")
    error = RunningError(code="NotFollowed", message="a column is in no stream", table_id=1)
    record_ = HeldTable(table_id=1, name="public.t1", ts=Ts(200), origin=HoldOrigin.SOURCE, error=error)
    source.put(keys.HeldKey(CLUSTER, NAMESPACE, FEED, 1), record_)
    assert "ask for its copy again" in asked(source)


def test_older_captures_are_waited_for() -> None:
    cluster = running("a")
    cluster.state.format = 2
    assert "needs format 3" in asked(cluster)


def test_a_third_table_waits_for_its_turn_and_flows_until_then() -> None:
    cluster = running("a")
    third = TABLES[0].with_(table_id=3, name="t3", start_ts=Ts(150))
    unit = cluster.state.changefeeds[FEED].units["main"]
    cluster.put(keys.UnitKey(CLUSTER, NAMESPACE, FEED, "main"), unit.with_(tables=(*unit.tables, third)))
    cluster.step(8)
    for number in (1, 2, 3):
        assert asked(cluster, ResyncTable(f"r{number}", FEED, number)) == ""
    cluster.step(8)
    stages = {id: found.stage for id, found in cluster.state.changefeeds[FEED].resyncs.items()}
    assert stages == {1: ResyncStage.COPYING, 2: ResyncStage.COPYING, 3: ResyncStage.ASKED}
    assert [*cluster.writers()] == [TableSpan(3)]


def test_a_table_is_read_while_the_sink_puts_earlier_ones_in_their_places() -> None:
    """Two are read at a time, and four are not written."""
    cluster = running("a")
    tables = tuple(TABLES[0].with_(table_id=n, name=f"t{n}", start_ts=Ts(150)) for n in range(1, 8))
    unit = cluster.state.changefeeds[FEED].units["main"]
    cluster.put(keys.UnitKey(CLUSTER, NAMESPACE, FEED, "main"), unit.with_(tables=tables))
    cluster.step(8)
    for table in tables:
        assert asked(cluster, ResyncTable(f"r{table.table_id}", FEED, table.table_id)) == ""

    def stages() -> str:
        cluster.step(8)
        found = cluster.state.changefeeds[FEED].resyncs
        return " ".join(found[id].stage if id in found else "flows" for id in range(1, 8))

    def staged(*wanted: int) -> None:
        for question in list(cluster.copies):
            if isinstance(question, CopyTable) and question.table.table_id in wanted:
                found = TableCopied(question.table.with_(start_ts=Ts(600), consistent_ts=Ts(605)), rows=7)
                cluster.ask(Answered(FEED, question, found))

    assert stages() == "copying copying asked asked asked asked asked"
    staged(1)
    assert stages() == "placing copying copying asked asked asked asked"
    staged(2, 3)
    assert stages() == "placing placing placing copying asked asked asked"
    staged(4)
    assert stages() == "placing placing placing placing asked asked asked"
    cluster.advance_log(700)
    cluster.step(4)
    for question in [one for one in cluster.copies if isinstance(one, PlaceTable)][:1]:
        cluster.ask(Answered(FEED, question))
    assert stages().split()[1:] == ["placing", "placing", "placing", "copying", "asked", "asked"]


def test_tables_that_cannot_be_copied_take_no_turn_of_others() -> None:
    """Two without a key kept all later ones waiting for ever. A cause that passes keeps its turn: behind it all would
    begin at once."""
    third = T2.with_(table_id=3, name="t3")
    cluster = running("a")
    unit = cluster.state.changefeeds[FEED].units["main"]
    cluster.put(keys.UnitKey(CLUSTER, NAMESPACE, FEED, "main"), unit.with_(tables=(T1, T2, third)))
    cluster.step(4)
    for id in (1, 2, 3):
        assert asked(cluster, ResyncTable(f"r{id}", FEED, id)) == ""
    at_stage(cluster, ResyncStage.COPYING)
    cluster.step(4)
    assert {question.table.table_id for question in cluster.copies if isinstance(question, CopyTable)} == {1, 2}
    for question in list(cluster.copies):
        away: Answered[Any] = Answered(FEED, question, error=RunningError(code="SourceUnreachable", message="away"))
        cluster.ask(away)
    cluster.step(4)
    assert resync(cluster, 3) is not None
    assert resync(cluster, 3).stage is ResyncStage.ASKED  # type: ignore[union-attr]
    cluster.step(6, after_s=2.0)
    for question in cluster.copies[-2:]:
        keyless = RunningError(code="TableIneligible", message="no key", retryable=False)
        refused: Answered[Any] = Answered(FEED, question, error=keyless)
        cluster.ask(refused)
    cluster.step(12)
    assert cluster.copies[-1].table.table_id == 3  # type: ignore[union-attr]


def test_a_table_is_not_split_while_it_is_copied() -> None:
    cluster = running("a")
    asked(cluster)
    at_stage(cluster, ResyncStage.COPYING)
    cluster.ask(Repartition("s", FEED, 1, 3))
    cluster.step(6)
    assert not cluster.repartitions
    placed(cluster, 600)
    until(cluster, None)
    for _ in range(20):
        cluster.step()
    assert cluster.repartitions


SELECTED = ChangefeedConfig(filter=FilterConfig(column_selectors=(ColumnSelector(matcher=("*.*",), columns=("id",)),)))


def filtered(cluster: SmallCluster, *ids: int, config: ChangefeedConfig = SELECTED) -> str:
    cluster.ask(Update("u", FEED, config=config, copied=ids))
    return cluster.answers["u"].error


def test_tables_that_are_filtered_otherwise_are_copied_with_the_change() -> None:
    cluster = running("a")
    assert filtered(cluster, 1, 2, 99) == "", "a table that is gone meanwhile needs no copy"
    assert sorted(cluster.state.changefeeds[FEED].resyncs) == [1, 2]
    assert cluster.info().config == SELECTED
    at_stage(cluster, ResyncStage.COPYING)


@pytest.mark.parametrize("stage", [ResyncStage.COPYING, ResyncStage.PLACING])
@pytest.mark.parametrize("ids", [(), (1,)])
def test_a_copy_that_was_filtered_by_the_earlier_rules_begins_again(stage: ResyncStage, ids: tuple[int, ...]) -> None:
    """The sink may be putting it in the table's place just now; the later one is put there all the same."""
    cluster = running("a")
    asked(cluster)
    at_stage(cluster, ResyncStage.COPYING)
    if stage is ResyncStage.PLACING:
        copied(cluster, 600)
    before = at_stage(cluster, stage)
    assert filtered(cluster, *ids) == ""
    after = at_stage(cluster, ResyncStage.COPYING)
    cluster.step(2)
    assert before is not None
    assert after is not None
    assert (after.number > before.number, after.table) == (True, None)
    assert last(cluster, CopyTable).number == after.number


def test_a_copy_goes_on_if_other_tables_are_wanted_and_rows_as_before() -> None:
    cluster = running("a")
    asked(cluster)
    before = at_stage(cluster, ResyncStage.COPYING)
    other = ChangefeedConfig(filter=FilterConfig(rules=("public.*",)))
    cluster.ask(Update("u", FEED, config=other, joining=()))
    assert cluster.answers["u"].error == ""
    assert resync(cluster) == before


def test_a_table_whose_copy_is_in_its_place_just_now_is_not_copied_at_once() -> None:
    cluster = running("a")
    asked(cluster)
    placed(cluster, 600)
    at_stage(cluster, ResyncStage.PLACED)
    assert "is being copied again already" in filtered(cluster, 1)
    assert cluster.info().config != SELECTED, "all of it, or nothing"


def test_the_sink_hears_which_repartition_made_the_spans_of_the_copy() -> None:
    """It may have lost that with the table; the next repartition would be refused."""
    cluster = running("a")
    asked(cluster)
    at_stage(cluster, ResyncStage.COPYING)
    split = TablePartitioning(table_id=1, spans=2, wanted=2, number=3)
    cluster.put(keys.PartitioningKey(CLUSTER, NAMESPACE, FEED, 1), split)
    copied(cluster, 600)
    cluster.advance_log(700)
    question = last(cluster, PlaceTable)
    assert (question.cut, len(question.spans)) == (3, 2)

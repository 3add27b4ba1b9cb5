"""Changes of a stopped changefeed: refusals, what is shown, where it continues; and how long it may be stopped."""

from dataclasses import replace

import pytest

from owner import jobs
from owner.errors import JobRefusedError
from owner.feed import retention
from owner.feed.amendment import Difference, differences, updated
from owner.jobs import Update
from owner.progress.facts import Facts
from owner.progress.units import current_unit
from reactor import keys
from reactor.ids import Ts
from reactor.records.changefeed import (
    ChangefeedConfig,
    ChangefeedInfo,
    ChangefeedStatus,
    ColumnSelector,
    EventFilter,
    FeedState,
    FilterConfig,
    Mode,
    RunningError,
    SealedUri,
    Unit,
    UnitRecord,
    UnitStage,
)
from reactor.records.log_head import LogHead
from reactor.records.tables.partitioning import TablePartitioning
from reactor.records.tables.schema_change import DdlRecord, SchemaChangeKind, TableChange
from tests.unit.owner.owner_build import FEED, A, B, error, info
from tests.unit.owner.small_cluster import CLUSTER, NAMESPACE, TABLES, SmallCluster, released
from tests.unit.owner.tables.test_schema_changes import NEW, alter, create, record
from tests.unit.owner.test_owner import STEADY, running

STOPPED, FAILED, FINISHED = FeedState.STOPPED, FeedState.FAILED, FeedState.FINISHED
SYNC = UnitRecord(unit=Unit.SYNC, stage=UnitStage.RUNNING, start_ts=Ts(100))


def facts(feed: ChangefeedInfo, *, record: UnitRecord | None = SYNC, checkpoint_ts: int = 200) -> Facts:
    status = ChangefeedStatus(checkpoint_ts=Ts(checkpoint_ts))
    return Facts(feed, status, record, LogHead(resolved_ts=Ts(250), removed_ts=Ts(110)))


def stopped() -> SmallCluster:
    """A changefeed paused at 200, whose log reaches back to 110."""
    cluster = running("a")
    cluster.ask(jobs.Pause("pause", FEED))
    head = cluster.state.changefeeds[FEED].heads["main"]
    cluster.put(keys.LogKey(CLUSTER, NAMESPACE, FEED, "main"), head.with_(removed_ts=Ts(110)))
    cluster.step()
    return cluster


@pytest.mark.parametrize("state", [state for state in FeedState if state not in (STOPPED, FAILED)])
def test_what_does_not_stand_is_not_updated(state: FeedState) -> None:
    with pytest.raises(JobRefusedError, match=f"is {state}: update is not possible; "):
        updated(facts(info(state)), Update("", FEED, target_ts=Ts(900)))


def test_fields_that_were_not_given_stay() -> None:
    before = info(FAILED, target_ts=300)
    assert updated(facts(before), Update("", FEED)) == before
    sink = SealedUri(masked="delta+file:///other", sealed="z")
    after = updated(facts(before), Update("", FEED, sink=sink, config=ChangefeedConfig(stuck_seconds=60)))
    assert after == before.with_(sink=sink, config=ChangefeedConfig(stuck_seconds=60))
    assert differences(before, after) == (
        Difference("sink", "delta+file:///d", "delta+file:///other"),
        Difference("config.stuck_seconds", "1800", "60"),
    )


@pytest.mark.parametrize(
    ("before", "last", "after"),
    [
        (Mode.DUMP, Unit.DUMP, Mode.LOAD_SYNC),
        (Mode.DUMP, Unit.DUMP, Mode.ALL),
        (Mode.DUMP, Unit.DUMP, Mode.FULL),
        (Mode.FULL, Unit.LOAD, Mode.ALL),
        (Mode.FULL, Unit.LOAD, Mode.LOAD_SYNC),
    ],
)
def test_what_has_finished_continues_in_another_mode(before: Mode, last: Unit, after: Mode) -> None:
    """With the unit that follows: nothing is done twice, and none left out."""
    record = UnitRecord(unit=last, stage=UnitStage.FINISHED)
    feed = info(FINISHED).with_(mode=before)
    changed = updated(facts(feed, record=record), Update("", FEED, mode=after))
    assert changed.mode is after
    assert differences(feed, changed) == (Difference("mode", before, after),)
    assert current_unit(after, record) is {Unit.DUMP: Unit.LOAD, Unit.LOAD: Unit.SYNC}[last]


@pytest.mark.parametrize(
    ("before", "last", "after"),
    [
        (Mode.DUMP, Unit.DUMP, Mode.INCREMENTAL),
        (Mode.FULL, Unit.LOAD, Mode.DUMP),
        (Mode.ALL, Unit.SYNC, Mode.LOAD_SYNC),
    ],
)
def test_a_mode_that_leaves_a_unit_out_or_begins_again_is_refused(before: Mode, last: Unit, after: Mode) -> None:
    record = UnitRecord(unit=last, stage=UnitStage.FINISHED)
    with pytest.raises(JobRefusedError, match=f"mode {after} cannot continue from there; create another one"):
        updated(facts(info(FINISHED).with_(mode=before), record=record), Update("", FEED, mode=after))


@pytest.mark.parametrize("state", [FeedState.NORMAL, STOPPED, FAILED])
def test_a_mode_counts_until_its_last_unit_has_finished(state: FeedState) -> None:
    feed = info(state).with_(mode=Mode.DUMP)
    record = UnitRecord(unit=Unit.DUMP, stage=UnitStage.RUNNING)
    with pytest.raises(JobRefusedError, match=r"its mode \(dump\) can be changed when it has finished"):
        updated(facts(feed, record=record), Update("", FEED, mode=Mode.LOAD_SYNC))


def test_that_it_had_event_filters_is_remembered() -> None:
    """They may have left rows at the sink that the source has no longer."""
    filtered = ChangefeedConfig(filter=FilterConfig(event_filters=(EventFilter(ignore_event=("delete",)),)))
    fresh = info(STOPPED)
    first = updated(facts(fresh), Update("", FEED, config=filtered))
    assert not first.was_filtered
    assert not updated(facts(first), Update("", FEED, config=filtered)).was_filtered
    second = updated(facts(first), Update("", FEED, config=ChangefeedConfig()))
    assert second.was_filtered
    assert updated(facts(second), Update("", FEED, config=filtered)).was_filtered


def test_another_secret_is_a_difference_without_the_secret() -> None:
    before = info(STOPPED)
    after = before.with_(source=before.source.with_(sealed="other"))
    (found,) = differences(before, after)
    assert (found.before, found.after) == ("postgresql://u:***@h/d", "postgresql://u:***@h/d (another secret)")


def test_targets_come_and_go_but_never_behind_the_checkpoint() -> None:
    assert updated(facts(info(STOPPED)), Update("", FEED, target_ts=Ts(200))).target_ts == 200
    assert updated(facts(info(STOPPED, target_ts=300)), Update("", FEED, target_ts=Ts(0))).target_ts is None
    with pytest.raises(JobRefusedError, match="is at 200, past the target 199; give a larger one, or 0 for none"):
        updated(facts(info(STOPPED)), Update("", FEED, target_ts=Ts(199)))


@pytest.mark.parametrize(
    "config",
    [
        ChangefeedConfig(filter=FilterConfig(rules=("a.*",))),
        ChangefeedConfig(force_replicate=True),
        ChangefeedConfig(slot="other"),
        ChangefeedConfig(publication="other"),
        ChangefeedConfig(source={"depth": 3}),
        ChangefeedConfig(dump_chunk_rows=1_000),
    ],
)
def test_what_the_snapshot_settled_is_changed_only_before_it(config: ChangefeedConfig) -> None:
    change = Update("", FEED, config=config)
    with pytest.raises(JobRefusedError, match=r"was settled when its snapshot began .*create another changefeed"):
        updated(facts(info(STOPPED)), change)
    assert updated(facts(info(STOPPED), record=None), change).config == config


def test_update_is_stored_tried_and_refused_by_the_owner() -> None:
    cluster = stopped()
    trial = Update("1", FEED, config=ChangefeedConfig(stuck_seconds=60), is_trial=True)
    cluster.ask(trial)
    assert cluster.answers["1"].value == (Difference("config.stuck_seconds", "1800", "60"),)
    assert cluster.info().config.stuck_seconds == 1800
    cluster.ask(Update("2", FEED, config=ChangefeedConfig(stuck_seconds=60)))
    assert cluster.answers["2"].error == ""
    assert cluster.info().config.stuck_seconds == 60
    cluster.ask(jobs.Resume("3", FEED))
    cluster.ask(Update("4", FEED, target_ts=Ts(0)))
    assert cluster.answers["4"].error == "changefeed feed is normal: update is not possible; pause it first"


def test_rewind_moves_the_checkpoint_of_a_stopped_changefeed() -> None:
    cluster = running("a")
    cluster.ask(jobs.Rewind("1", FEED, Ts(150)))
    assert cluster.answers["1"].error == "changefeed feed is normal: rewind is not possible; pause it first"
    cluster = stopped()
    for job_id, ts, message in (
        ("2", 109, "the log of changefeed feed reaches back to 110 only, not to 109; "),
        ("3", 200, "changefeed feed is at 200: 200 is not before that; resume it"),
    ):
        cluster.ask(jobs.Rewind(job_id, FEED, Ts(ts)))
        assert cluster.answers[job_id].error.replace(":", ";", 1 if job_id == "2" else 0).startswith(message)
        assert cluster.checkpoint_ts() == 200
    cluster.ask(jobs.Rewind("4", FEED, Ts(150)))
    assert (cluster.answers["4"].error, cluster.checkpoint_ts(), cluster.info().state) == ("", 150, STOPPED)
    cluster.ask(jobs.Resume("5", FEED))
    cluster.step(8)
    assert cluster.checkpoint_ts() == 200


def test_nothing_is_rewound_before_it_replicates_nor_before_its_snapshot() -> None:
    cluster = SmallCluster(A, settings=STEADY)
    cluster.create()
    cluster.step(4)
    cluster.ask(jobs.Pause("1", FEED))
    cluster.ask(jobs.Rewind("2", FEED, Ts(0)))
    assert "has not replicated anything yet" in cluster.answers["2"].error
    cluster = stopped()
    cluster.ask(jobs.Resume("3", FEED, Ts(99)))
    assert "reaches back to 110 only" in cluster.answers["3"].error


@pytest.mark.parametrize("failure", [None, error("SinkUri")])
def test_what_is_stopped_too_long_loses_its_slot_and_says_what_to_do(failure: RunningError | None) -> None:
    cluster = running("a", "b")
    if failure:
        cluster.report(A, failure)
    else:
        cluster.ask(jobs.Pause("1", FEED))
    cluster.step()
    cluster.step(after_s=86_398.0)
    assert (cluster.info().state, cluster.dropped) == (FAILED if failure else STOPPED, [])
    cluster.step(after_s=3.0)
    stored = cluster.info()
    assert stored.state is FAILED
    assert stored.error is not None
    assert stored.error.code == retention.GC_TTL_EXCEEDED
    assert "`weir changefeed resume --resync`" in stored.error.message
    assert ("SinkUri: it broke" in stored.error.message) == (failure is not None)
    assert [drop.changefeed for drop in cluster.dropped] == [FEED]
    cluster.step(3, after_s=1.0)
    assert len(cluster.dropped) == 2, "asked again"
    cluster.ask(released())
    cluster.step(8, after_s=1.0)
    assert len(cluster.dropped) == 2
    cluster.ask(jobs.Resume("2", FEED))
    assert cluster.answers["2"].error.startswith("changefeed feed cannot continue: ")
    assert cluster.info() == stored
    cluster.elect(B)
    cluster.step()
    assert len(cluster.dropped) == 3, "a new owner does not know that it is done"
    cluster.ask(released())
    cluster.ask(jobs.Remove("3", FEED))
    cluster.step(2)
    assert FEED not in cluster.state.changefeeds


def test_who_may_stand_for_ever() -> None:
    ages = {"state_since": 5.0, "created_at": 1.0}
    assert retention.expiry(info(STOPPED).with_(**ages)) == 86_405.0
    assert retention.expiry(info(STOPPED).with_(created_at=1.0)) == 86_401.0
    unlimited = info(STOPPED).with_(config=ChangefeedConfig(gc_ttl_seconds=0))
    lost = info(FAILED, error=error("SnapshotLostByGC"))
    for feed in (unlimited, lost, info(), info(FINISHED), info(FeedState.PENDING)):
        assert retention.expiry(feed) == float("inf")


def test_a_change_of_state_is_dated() -> None:
    cluster = running("a")
    assert cluster.info().state_since == 0.0
    cluster.ask(jobs.Pause("1", FEED))
    since = cluster.info().state_since
    assert since == cluster.now
    cluster.step(4)
    assert cluster.info().state_since == since


def moving(*names: tuple[str, str], leaving: tuple[int, ...] = ()) -> Update:
    config = ChangefeedConfig(filter=FilterConfig(rules=("public.*",)))
    return Update("move", FEED, config=config, joining=names, leaving=leaving)


def test_tables_leave_a_running_changefeed_and_nothing_of_them_stays() -> None:
    cluster = running("a", "b")
    cluster.put(keys.PartitioningKey(CLUSTER, NAMESPACE, FEED, 1), TablePartitioning(table_id=1, spans=1))
    cluster.change_schema(record(300, alter(TABLES[0]), alter(TABLES[1])))
    cluster.ask(jobs.PauseTable("p", FEED, 1))
    cluster.step(2)
    cluster.ask(moving(leaving=(1,)))
    assert cluster.answers["move"].error == ""
    feed = cluster.state.changefeeds[FEED]
    assert (feed.held, feed.partitionings) == ({}, {})
    assert [table.table_id for table in feed.units["main"].tables] == [2]
    assert [change.table_id for change in feed.ddl[300].changes] == [2]
    assert cluster.info().epoch == 2, "what runs begins again"
    cluster.step(8)
    assert {span.table_id for span in cluster.writers()} == {2}
    late = record(500, alter(TABLES[0]))
    cluster.change_schema(late)
    cluster.step(8)
    assert 500 not in feed.ddl, "it was found by a reader of before"
    assert [table.table_id for table in feed.units["main"].tables] == [2]
    assert 500 not in [question.record.ts for question in cluster.schemas], "the sink keeps the table as it is"


def test_a_request_that_was_made_of_other_records_is_stale_and_changes_nothing() -> None:
    cluster = running("a", "b")
    config = cluster.info().config
    known = frozenset((table.table_id, f"{table.schema_name}.{table.name}") for table in TABLES)
    cluster.ask(replace(moving(("public", "u")), basis=jobs.Basis(config, known, ())))
    assert cluster.answers["move"].error == ""
    stale = jobs.Basis(config, known, ()), jobs.Basis(config, frozenset(), (("public", "u"),))
    for number, basis in enumerate(stale):
        cluster.ask(replace(moving(("public", "v")), job_id=f"stale {number}", basis=basis))
        assert cluster.answers[f"stale {number}"].value == "StaleRequest"
    assert cluster.view().joining == ("public.u",)
    fresh = jobs.Basis(cluster.info().config, known, (("public", "u"),))
    cluster.ask(replace(moving(("public", "u"), ("public", "v")), job_id="fresh", basis=fresh))
    assert cluster.answers["fresh"].error == ""
    assert cluster.view().joining == ("public.u", "public.v")


def test_a_request_is_stale_when_a_table_has_got_another_name_meanwhile() -> None:
    """It would leave, and the one that has its name now would join in its place."""
    cluster = running("a", "b")
    unit, again = cluster.state.changefeeds[FEED].units["main"], (TABLES[0].schema_name, TABLES[0].name)
    basis = jobs.Basis.of(cluster.info().config, unit, ())
    cluster.change_schema(record(300, alter(TABLES[0], name="renamed")))
    cluster.ask(replace(moving(again, leaving=(1,)), basis=basis))
    assert cluster.answers["move"].value == "StaleRequest"
    fresh = jobs.Basis.of(cluster.info().config, unit, cluster.state.changefeeds[FEED].ddl.values())
    cluster.ask(replace(moving(("public", "renamed"), leaving=(1,)), job_id="fresh", basis=fresh))
    assert cluster.answers["fresh"].error == ""


def test_tables_that_join_wait_for_the_source_and_are_copied() -> None:
    cluster = running("a", "b")
    cluster.ask(moving((NEW.schema_name, NEW.name), ("public", "later")))
    cluster.step(8)
    assert cluster.view().joining == (f"{NEW.schema_name}.{NEW.name}", "public.later")
    assert len(cluster.writers()) == 2, "the others flow"
    cluster.change_schema(record(300, create(NEW.with_(start_ts=Ts(299), to_copy=True))))
    cluster.step(8)
    feed = cluster.state.changefeeds[FEED]
    assert cluster.view().joining == ("public.later",)
    assert cluster.schemas == [], "its copy makes it at the sink"
    assert feed.held[3].error.code == "CameWithRows"
    assert feed.resyncs.keys() == {3}


def test_a_table_that_is_gone_before_it_has_joined_is_waited_for_no_longer() -> None:
    cluster = running("a")
    gone, later = ("public", "gone"), ("public", "later")
    cluster.ask(replace(moving(gone, later), copy_limits=((*gone, 500), (*later, 600))))
    cluster.step(8)
    cluster.change_schema(DdlRecord(ts=Ts(300), never_joined=(gone,)))
    cluster.step(4)
    feed = cluster.state.changefeeds[FEED]
    assert (feed.units["main"].joining, feed.units["main"].copy_limits) == ((later,), ((*later, 600),))
    assert feed.ddl == {}
    cluster.ask(replace(moving(gone, later), job_id="again"))
    cluster.change_schema(record(400, alter(TABLES[0])).with_(never_joined=(later,)))
    cluster.step(4)
    assert cluster.state.changefeeds[FEED].units["main"].joining == (gone,), "asked for again, since it is there again"
    assert cluster.schemas, "what else became of tables is followed"
    assert feed.ddl[400].never_joined == ()


def test_a_table_that_could_not_be_followed_begins_again_when_it_joins() -> None:
    cluster = running("a")
    change = TableChange(kind=SchemaChangeKind.HOLD, table_id=3, table=NEW, reason="it was there before")
    cluster.change_schema(DdlRecord(ts=Ts(300), changes=(change,)))
    cluster.step(8)
    assert cluster.state.changefeeds[FEED].held.keys() == {3}
    cluster.ask(moving((NEW.schema_name, NEW.name)))
    cluster.step(8)
    feed = cluster.state.changefeeds[FEED]
    assert not feed.held
    assert not feed.ddl


def test_a_table_that_could_not_be_followed_stays_held_when_another_one_of_its_first_name_joins() -> None:
    cluster = running("a")
    for ts, name in ((300, NEW.name), (310, "renamed")):
        change = TableChange(
            kind=SchemaChangeKind.HOLD, table_id=3, table=NEW.with_(name=name), reason="it was there before"
        )
        cluster.change_schema(DdlRecord(ts=Ts(ts), changes=(change,)))
    cluster.step(8)
    cluster.ask(moving((NEW.schema_name, NEW.name)))
    cluster.step(8)
    feed = cluster.state.changefeeds[FEED]
    assert (list(feed.held), sorted(feed.ddl)) == ([3], [300, 310])
    cluster.ask(replace(moving((NEW.schema_name, NEW.name), (NEW.schema_name, "renamed")), job_id="both"))
    cluster.step(8)
    feed = cluster.state.changefeeds[FEED]
    assert not feed.held
    assert not feed.ddl


def test_a_table_joins_when_the_one_that_had_its_name_has_left() -> None:
    """It was dropped, or renamed, and the log is not read as far as that."""
    cluster = running("a", "b")
    again = (TABLES[0].schema_name, TABLES[0].name)
    cluster.ask(moving(again))
    assert "wait until the sink has that change" in cluster.answers["move"].error
    assert cluster.state.changefeeds[FEED].units["main"].joining == ()
    cluster.ask(replace(moving(again, leaving=(1,)), job_id="in place"))
    assert cluster.answers["in place"].error == ""
    assert cluster.state.changefeeds[FEED].units["main"].joining == (again,)


def test_a_running_changefeed_takes_another_filter_and_nothing_else() -> None:
    known = facts(info(FeedState.NORMAL))
    assert updated(known, moving(("public", "t"))).epoch == info(FeedState.NORMAL).epoch + 1
    with pytest.raises(JobRefusedError, match="update is not possible"):
        updated(known, Update("", FEED, config=ChangefeedConfig(stuck_seconds=60)))
    with pytest.raises(JobRefusedError, match="update is not possible"):
        updated(known, replace(moving(("public", "t")), target_ts=Ts(0)))
    with pytest.raises(JobRefusedError, match="remove the target first"):
        updated(facts(info(FeedState.NORMAL, target_ts=900)), moving(("public", "t")))


@pytest.mark.parametrize("unit", [Unit.DUMP, Unit.LOAD])
@pytest.mark.parametrize(
    "filters",
    [
        FilterConfig(event_filters=(EventFilter(ignore_insert_value_expr="id < 9"),)),
        FilterConfig(column_selectors=(ColumnSelector(matcher=("*.*",), columns=("*", "!secret")),)),
    ],
    ids=["rows", "columns"],
)
def test_one_snapshot_is_filtered_in_one_way(unit: Unit, filters: FilterConfig) -> None:
    """Its later chunks would lack columns that the earlier ones have."""
    change = Update("u", FEED, config=ChangefeedConfig(filter=filters))
    stopped = info(state=STOPPED)
    with pytest.raises(JobRefusedError, match=r"filter\..* was settled when its snapshot began .*the log is followed"):
        updated(facts(stopped, record=SYNC.with_(unit=unit)), change)
    assert updated(facts(stopped), change).config.filter == filters

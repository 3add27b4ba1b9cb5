"""Checks at source and sink before a changefeed is changed or rewound; the test is the owner."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import cast
from unittest.mock import ANY

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

import owner.errors
from agent.errors import (
    PositionLostError,
    SinkConfigError,
    SourcePrivilegeError,
    SourceUnreachableError,
    TableIneligibleError,
    TableLockedError,
)
from agent.filter.tables import TableFilter
from agent.ports.source import Identity, SourceReport
from capture.api.port import ChangefeedUpdate, FieldChange
from capture.errors import ConfigError, JobRefusedError, StaleRequestError
from capture.member.amendments import amendment
from capture.member.amendments.amendments import Amendments
from capture.member.cluster_service import ClusterService
from capture.member.copies import CopyPlace, CopyProgress
from capture.member.preflight import SinkRecord
from capture.member.services import DataPlane
from capture.security.key_file import new_key
from capture.security.secrets import Keeper
from owner import jobs
from owner.feed.amendment import Difference, updated
from owner.progress.facts import Facts
from reactor.errors import Scope, WeirError
from reactor.ids import ChangefeedId, Ts
from reactor.records.changefeed import (
    ChangefeedConfig,
    ChangefeedInfo,
    ChangefeedStatus,
    ColumnSelector,
    FeedState,
    FilterConfig,
    RunningError,
    SinkMode,
    Unit,
    UnitRecord,
    UnitStage,
)
from reactor.records.log_head import LogHead
from reactor.records.tables.change_index import ChangeIndex
from reactor.records.tables.held import HeldTable, HoldOrigin
from reactor.records.tables.partitioning import TablePartitioning
from reactor.records.tables.schema_change import DdlRecord, SchemaChangeKind, TableChange
from reactor.records.tables.table import TableRecord
from reactor.store.port import Compare, Target
from reactor.views import ChangefeedView, HeldView, TableView

SOURCE, SINK = "postgresql://u:geheim@h/d", "delta+file:///lake"
TABLES = tuple(TableRecord(table_id=n, schema_name="public", name=f"t{n}") for n in (1, 2))
#: a name with a point
KEYLESS = TableRecord(table_id=4, schema_name="public", name="log.s")
SYNC = UnitRecord(unit=Unit.SYNC, stage=UnitStage.RUNNING, tables=TABLES)
LOAD = UnitRecord(unit=Unit.LOAD, stage=UnitStage.RUNNING, tables=TABLES)


def renames(held: Iterable[HeldView]) -> tuple[DdlRecord, ...]:
    """Return the schema changes that have given held tables their names at the source."""
    renamed = {one.table_id: one.renamed_to.split(".") for one in held if one.renamed_to}
    changes = tuple(
        TableChange(
            kind=SchemaChangeKind.RENAME, table_id=id, table=TableRecord(table_id=id, schema_name=schema, name=name)
        )
        for id, (schema, name) in renamed.items()
    )
    return (DdlRecord(ts=Ts(900), changes=changes),) if changes else ()


class PlayedService:
    def __init__(self, unit: UnitRecord | None) -> None:
        self.unit = unit
        self.asked: list[jobs.Job] = []
        self.held: tuple[HeldView, ...] = ()
        self.pending: tuple[DdlRecord, ...] = ()

    def pending_of(self, changefeed_id: str) -> tuple[DdlRecord, ...]:
        return self.pending

    def unit_of(self, changefeed_id: str) -> UnitRecord | None:
        return self.unit

    def head_of(self, changefeed_id: str) -> LogHead:
        return LogHead()

    def cuts_of(self, changefeed_id: str) -> Mapping[int, TablePartitioning]:
        return {}

    async def ask(self, job: jobs.Job) -> object:
        self.asked.append(job)
        return (Difference("sink", "a", "b"),)

    async def query(self, changefeed_id: str, *, tables: bool = True) -> ChangefeedView:
        return ChangefeedView(id=changefeed_id, state=FeedState.STOPPED, held=self.held)


class PlayedDataPlane:
    def __init__(self, recorded: tuple[int | SinkRecord, ...] = (150, 250)) -> None:
        self.keeper = Keeper(new_key())
        self.refusal: WeirError | None = None
        self.checked: list[str] = []
        self.asked: list[tuple[str | None, str | None]] = []
        self._recorded = recorded
        self.there = (*TABLES, TableRecord(table_id=3, schema_name="aside", name="t3", key=("id",)))
        #: tables that the source cannot replicate as they are
        self.unfit: tuple[int, ...] = ()
        self.published: list[str] = []
        #: what the source answers where it is to send a table
        self.unsent: dict[str, WeirError] = {}
        self.locks_met = 0

    def check_reach(self, *, source: str | None = None, sink: str | None = None) -> None:
        self.asked.append((source, sink))
        if sink == "delta+file:///forbidden":
            raise ConfigError("the sink delta+file:///forbidden is not allowed (setting sink-prefixes: x)")

    async def recorded(
        self, info: ChangefeedInfo, unit: UnitRecord, partitionings: Mapping[int, TablePartitioning]
    ) -> tuple[SinkRecord, ...]:
        self.checked.append(info.sink.masked)
        if self.refusal:
            raise self.refusal
        return tuple(one if isinstance(one, SinkRecord) else SinkRecord(Ts(one)) for one in self._recorded)

    async def discover(self, info: ChangefeedInfo) -> SourceReport:
        await anyio.lowlevel.checkpoint()
        rules = TableFilter(info.config.filter.rules)
        found = tuple(table for table in self.there if rules.wants(table.schema_name, table.name))
        return SourceReport(Identity("1"), found, {id: f"{id} is unfit" for id in self.unfit})

    async def publish(self, info: ChangefeedInfo, tables: Sequence[TableRecord]) -> None:
        for table in tables:
            if table.name in self.unsent:
                self.locks_met += isinstance(self.unsent[table.name], TableLockedError)
                raise self.unsent[table.name]
        self.published += [table.name for table in tables]

    async def check_source_again(self, info: ChangefeedInfo, unit: UnitRecord, head: LogHead) -> None:
        self.checked.append(info.source.masked)
        if self.refusal:
            raise self.refusal


def feed(data_plane: PlayedDataPlane, state: FeedState = FeedState.STOPPED) -> ChangefeedInfo:
    keeper = data_plane.keeper
    return ChangefeedInfo(id=ChangefeedId("feed"), source=keeper.seal(SOURCE), sink=keeper.seal(SINK), state=state)


async def update(
    service: PlayedService, data_plane: PlayedDataPlane, asked: ChangefeedUpdate, **state: FeedState
) -> jobs.Update:
    done = await amendment.update(
        cast("ClusterService", service), cast("DataPlane", data_plane), feed(data_plane, **state), asked
    )
    assert done.changes == (FieldChange(field="sink", before="a", after="b"),)
    (job,) = service.asked
    assert isinstance(job, jobs.Update)
    return job


async def test_what_is_the_same_is_neither_checked_nor_sealed_again() -> None:
    service, data_plane = PlayedService(SYNC), PlayedDataPlane()
    job = await update(service, data_plane, ChangefeedUpdate(source_uri=SOURCE, sink_uri=SINK, target_ts=0))
    assert (job.source, job.sink, job.target_ts, job.is_trial, data_plane.checked) == (None, None, 0, False, [])


async def test_what_is_new_is_checked_and_sealed() -> None:
    service, data_plane = PlayedService(SYNC), PlayedDataPlane()
    asked = ChangefeedUpdate(source_uri="postgresql://u:neu@h/d", sink_uri="delta+file:///other", dry_run=True)
    job = await update(service, data_plane, asked)
    assert data_plane.checked == ["postgresql://u:***@h/d", "delta+file:///other"]
    assert job.is_trial
    assert job.source is not None
    assert data_plane.keeper.open(job.source) == "postgresql://u:neu@h/d"


@pytest.mark.parametrize("refusal", [SinkConfigError("no table t1"), PositionLostError("another server")])
async def test_what_source_or_sink_refuse_never_reaches_the_owner(refusal: WeirError) -> None:
    service, data_plane = PlayedService(SYNC), PlayedDataPlane()
    data_plane.refusal = refusal
    with pytest.raises(type(refusal)):
        await update(
            service, data_plane, ChangefeedUpdate(source_uri="postgresql://x/y", sink_uri="delta+file:///other")
        )
    assert service.asked == []


async def test_only_what_changes_must_be_allowed_and_it_is_asked_first() -> None:
    service, data_plane = PlayedService(SYNC), PlayedDataPlane()
    await update(service, data_plane, ChangefeedUpdate(source_uri=SOURCE, sink_uri="delta+file:///other"))
    assert data_plane.asked == [(None, "delta+file:///other")]
    service, data_plane = PlayedService(SYNC), PlayedDataPlane()
    with pytest.raises(ConfigError, match="setting sink-prefixes"):
        await update(service, data_plane, ChangefeedUpdate(sink_uri="delta+file:///forbidden"))
    assert (data_plane.checked, service.asked) == ([], [])


async def test_a_snapshot_on_its_way_does_not_change_its_destination() -> None:
    service, data_plane = PlayedService(LOAD), PlayedDataPlane()
    with pytest.raises(JobRefusedError, match="is on its way to delta"):
        await update(service, data_plane, ChangefeedUpdate(sink_uri="delta+file:///other"))
    await update(PlayedService(None), data_plane, ChangefeedUpdate(sink_uri="delta+file:///other"))


async def test_what_runs_is_left_for_the_owner_to_refuse() -> None:
    service, data_plane = PlayedService(SYNC), PlayedDataPlane()
    await update(service, data_plane, ChangefeedUpdate(sink_uri="delta+file:///other"), state=FeedState.NORMAL)
    assert data_plane.checked == []


def rules(*texts: str) -> ChangefeedConfig:
    return ChangefeedConfig(filter=FilterConfig(rules=texts))


async def moved(
    data_plane: PlayedDataPlane,
    *texts: str,
    unit: UnitRecord = SYNC,
    table: str = "",
    held: HeldView | None = None,
    pending: tuple[DdlRecord, ...] = (),
) -> jobs.Update:
    """From a filter of one schema."""
    service = PlayedService(unit)
    service.pending = pending
    service.held = (held,) if held else ()
    before = feed(data_plane, FeedState.NORMAL).with_(config=rules("public.*"))
    asked = ChangefeedUpdate(config=rules(*texts))
    await amendment.update(cast("ClusterService", service), cast("DataPlane", data_plane), before, asked, table=table)
    (job,) = service.asked
    assert isinstance(job, jobs.Update)
    return job


def change(kind: SchemaChangeKind, table: TableRecord, *, ts: int) -> DdlRecord:
    return DdlRecord(ts=Ts(ts), changes=(TableChange(kind=kind, table_id=table.table_id, table=table),))


async def test_another_filter_says_which_tables_join_and_leave() -> None:
    data_plane = PlayedDataPlane()
    job = await moved(data_plane, "*.*", "!public.t1")
    assert (job.joining, job.leaving, data_plane.published) == ((("aside", "t3"),), (1,), ["t3"])
    job = await moved(data_plane, "public.*")
    assert (job.joining, job.leaving) == (None, ()), "the rules are the same"
    job = await moved(data_plane, "*.*", unit=LOAD)
    assert job.joining is None, "the owner refuses it: no log is followed yet"


async def test_what_was_wanted_before_joins_only_if_it_is_named() -> None:
    """It was left out for a reason."""
    data_plane = PlayedDataPlane()
    data_plane.there = (*data_plane.there, TableRecord(table_id=4, schema_name="public", name="t4", key=("id",)))
    assert (await moved(data_plane, "*.*")).joining == (("aside", "t3"),)
    assert (await moved(data_plane, "public.*", table="public.t4")).joining == (("public", "t4"),)
    waiting = SYNC.with_(joining=(("public", "t4"),))
    assert (await moved(data_plane, "public.*", "a.*", unit=waiting)).joining == (("public", "t4"),)


async def test_a_filter_that_cannot_be_followed_is_refused() -> None:
    data_plane = PlayedDataPlane()
    with pytest.raises(JobRefusedError, match="none of its tables"):
        await moved(data_plane, "aside.*")
    data_plane.there = (TableRecord(table_id=3, schema_name="aside", name="t3"),)
    with pytest.raises(JobRefusedError, match=r"aside.t3 has no key"):
        await moved(data_plane, "*.*")
    assert data_plane.published == []


async def rejoined(
    data_plane: PlayedDataPlane,
    held: HeldView,
    unit: UnitRecord | None = SYNC,
    *,
    rows_per_second: int | None = None,
    sink_mode: SinkMode = SinkMode.UPSERT,
    is_forced: bool = False,
    pending: tuple[DdlRecord, ...] | None = None,
) -> jobs.Update:
    service, before = PlayedService(unit), feed(data_plane, FeedState.WARNING)
    service.pending = renames([held]) if pending is None else pending
    before = before.with_(sink_mode=sink_mode, config=ChangefeedConfig(force_replicate=is_forced))
    operations, plane = cast("ClusterService", service), cast("DataPlane", data_plane)
    for problem in (
        await amendment.rejoin(operations, plane, before, [held], rows_per_second=rows_per_second)
    ).values():
        raise problem
    (job,) = service.asked
    assert isinstance(job, jobs.Update)
    return job


async def test_a_table_that_the_stream_could_not_follow_leaves_and_joins_at_once() -> None:
    data_plane = PlayedDataPlane()
    data_plane.there = tuple(table.with_(key=("id",)) for table in data_plane.there)
    held = HeldView(table="public.t1", table_id=1, stage="held", origin="source")
    job = await rejoined(data_plane, held)
    assert (job.joining, job.leaving, data_plane.published) == ((("public", "t1"),), (1,), ["t1"])
    assert job.config == feed(data_plane).config, "the filter stays as it is"
    waiting = SYNC.with_(joining=(("public", "t4"), ("public", "t1")))
    assert (await rejoined(data_plane, held, waiting)).joining == (("public", "t4"), ("public", "t1"))
    assert job.copy_limits == ()
    limited = await rejoined(data_plane, held, waiting.with_(copy_limits=(("public", "t4", 700),)), rows_per_second=500)
    assert limited.copy_limits == (("public", "t4", 700), ("public", "t1", 500))
    unlimited = await rejoined(data_plane, held, waiting.with_(copy_limits=limited.copy_limits))
    assert unlimited.copy_limits == (("public", "t4", 700),), "asked for again, now as fast as it goes"
    renamed = held.model_copy(update={"renamed_to": "aside.t3"})
    assert (await rejoined(data_plane, renamed)).joining == (("aside", "t3"),)
    assert (await rejoined(data_plane, held, pending=renames([renamed]))).joining == (("aside", "t3"),), (
        "the view is older"
    )
    dropped = TableChange(kind=SchemaChangeKind.DROP, table_id=1)
    with pytest.raises(JobRefusedError, match=r"there is no table public\.t1 at the source"):
        await rejoined(data_plane, held, pending=(DdlRecord(ts=Ts(900), changes=(dropped,)),))
    newcomer = HeldView(table="aside.t3", table_id=3, stage="held", origin="source")
    assert (await rejoined(data_plane, newcomer)).leaving == (), "it was never one of the tables"


@pytest.mark.parametrize(("sink_mode", "is_forced"), [(SinkMode.CHANGELOG, False), (SinkMode.UPSERT, True)])
async def test_a_table_without_a_key_joins_where_no_row_is_upserted(sink_mode: SinkMode, is_forced: bool) -> None:
    data_plane = PlayedDataPlane()
    data_plane.there = (KEYLESS,)
    held = HeldView(table="public.log.s", table_id=4, stage="held", origin="source")
    assert (await rejoined(data_plane, held, sink_mode=sink_mode, is_forced=is_forced)).joining == (
        ("public", "log.s"),
    )
    assert data_plane.published == ["log.s"]
    with pytest.raises(JobRefusedError, match=r"public\.log\.s has no key to upsert by"):
        await rejoined(data_plane, held)


async def test_what_holds_one_table_refuses_no_other() -> None:
    data_plane = PlayedDataPlane()
    data_plane.there = (*(table.with_(key=("id",)) for table in data_plane.there), KEYLESS)
    data_plane.unfit = (4,)
    held = HeldView(table="public.t1", table_id=1, stage="held", origin="source")
    assert (await rejoined(data_plane, held)).joining == (("public", "t1"),)
    unit = SYNC.with_(tables=(*TABLES, KEYLESS))
    keyless = HeldView(table="public.log.s", table_id=4, stage="held", origin="source")
    assert (await moved(data_plane, "*.*", unit=unit, held=keyless)).joining == (("aside", "t3"),)
    waiting = unit.with_(joining=(("public", "t2"),))
    named = await moved(data_plane, "public.*", "aside.t3", unit=waiting, table="aside.t3")
    assert named.joining == (("aside", "t3"),)


async def test_a_table_that_has_lost_its_key_unnoticed_refuses_no_other() -> None:
    """The stream of PostgreSQL declares it with the table's next row."""
    data_plane = PlayedDataPlane()
    data_plane.unfit = (1,)
    assert (await moved(data_plane, "*.*")).joining == (("aside", "t3"),)
    data_plane.unfit = (3,)
    with pytest.raises(TableIneligibleError, match="3 is unfit"):
        await moved(data_plane, "*.*")


async def test_tables_leave_by_the_names_that_waiting_schema_changes_give_them() -> None:
    t1, _ = TABLES
    others = {id: TableRecord(table_id=id, schema_name="public", name=name) for id, name in ((5, "t5"), (6, "t6"))}
    pending = (
        change(SchemaChangeKind.CREATE, others[5], ts=10),
        change(SchemaChangeKind.CREATE, others[6], ts=20),
        change(SchemaChangeKind.RENAME, t1.named("public", "t7"), ts=30),
        change(SchemaChangeKind.ALTER, TableRecord(table_id=8, schema_name="public", name="gone"), ts=40),
    )
    job = await moved(PlayedDataPlane(), "public.*", "!public.t5", pending=pending)
    assert job.leaving == (5,), "the sink would have made it"
    job = await moved(PlayedDataPlane(), "public.*", "!public.t7", pending=pending)
    assert job.leaving == (1,)
    job = await moved(PlayedDataPlane(), "public.*", "!public.t1", pending=pending)
    assert job.leaving == (), "it has another name soon"


async def test_a_table_that_the_stream_cannot_follow_again_is_refused() -> None:
    data_plane = PlayedDataPlane()
    gone = HeldView(table="public.t9", table_id=9, stage="held", origin="source")
    with pytest.raises(JobRefusedError, match=r"there is no table public\.t9 at the source"):
        await rejoined(data_plane, gone)
    with pytest.raises(JobRefusedError, match=r"public\.t1 has no key"):
        await rejoined(data_plane, gone.model_copy(update={"table": "public.t1", "table_id": 1}))
    with pytest.raises(JobRefusedError, match="there is no table"):
        await rejoined(data_plane, gone.model_copy(update={"table": "aside.t3", "table_id": 3}), LOAD)
    assert data_plane.published == []


@pytest.mark.parametrize("is_named", [True, False])
async def test_tables_join_at_once_and_one_that_cannot_keeps_no_other_back(is_named: bool) -> None:
    """Each time a changefeed takes tables in it begins again."""
    data_plane, service = PlayedDataPlane(), PlayedService(SYNC)
    names = ["unfit", "locked", "foreign", *(f"n{n}" for n in range(20))]
    data_plane.there = (
        KEYLESS,
        *(TableRecord(table_id=n, schema_name="public", name=name, key=("id",)) for n, name in enumerate(names, 10)),
    )
    data_plane.unfit = (10,)
    locked = TableLockedError("it is locked")
    locked.table = ("public", "locked") if is_named else None
    data_plane.unsent = {"locked": locked, "foreign": SourcePrivilegeError("not the owner")}
    held = [
        HeldView(table=f"public.{name}", table_id=n, stage="held", origin="source") for n, name in enumerate(names, 10)
    ]
    held.append(HeldView(table="public.log.s", table_id=4, stage="held", origin="source"))
    held.append(HeldView(table="public.gone", table_id=9, stage="held", origin="source"))
    operations, plane = cast("ClusterService", service), cast("DataPlane", data_plane)
    problems = await amendment.rejoin(operations, plane, feed(data_plane, FeedState.WARNING), held)
    assert {id: str(error).split("; ")[0] for id, error in problems.items()} == {
        10: "10 is unfit",
        11: "it is locked",
        12: "not the owner",
        4: ANY,
        9: ANY,
    }
    [job] = service.asked
    assert isinstance(job, jobs.Update)
    assert job.joining == tuple(("public", f"n{n}") for n in range(20))
    assert sorted(set(data_plane.published)) == sorted(name for _, name in job.joining)
    assert data_plane.locks_met == 1 or not is_named, "a lock is waited for each time"


async def test_nothing_joins_where_the_source_does_not_answer() -> None:
    data_plane, service = PlayedDataPlane(), PlayedService(SYNC)
    data_plane.there = tuple(table.with_(key=("id",)) for table in TABLES)
    held = [
        HeldView(table=f"public.{one.name}", table_id=one.table_id, stage="held", origin="source") for one in TABLES
    ]
    data_plane.unsent = {TABLES[0].name: SourceUnreachableError("no answer")}
    operations, plane = cast("ClusterService", service), cast("DataPlane", data_plane)
    with pytest.raises(SourceUnreachableError):
        await amendment.rejoin(operations, plane, feed(data_plane, FeedState.WARNING), held)
    data_plane.unsent = {one.name: SourcePrivilegeError("not the owner") for one in TABLES}
    assert len(await amendment.rejoin(operations, plane, feed(data_plane, FeedState.WARNING), held)) == len(TABLES)
    assert service.asked == []


class Records:
    """The records of a running changefeed, changed as the owner changes them; who reads them is slow."""

    def __init__(self, data_plane: PlayedDataPlane, joining: tuple[tuple[str, str], ...] = ()) -> None:
        self.unit = SYNC.with_(joining=joining)
        self.info = feed(data_plane, FeedState.WARNING)
        self.pending: Callable[[], tuple[DdlRecord, ...]] = tuple

    async def ask(self, job: jobs.Update) -> object:
        await anyio.lowlevel.checkpoint()
        try:
            ddl: dict[int, DdlRecord] = {record.ts: record for record in self.pending()}
            after = updated(Facts(self.info, ChangefeedStatus(), self.unit, None, ddl=ChangeIndex(ddl)), job)
        except owner.errors.StaleRequestError as error:
            raise StaleRequestError(str(error)) from None
        kept = tuple(table for table in self.unit.tables if table.table_id not in job.leaving)
        self.info, self.unit = after, self.unit.with_(tables=kept, joining=job.joining or ())
        return ()


class Operations(Amendments):
    """The operations of a cluster with these records."""

    def __init__(self, records: Records, data_plane: PlayedDataPlane) -> None:
        self._records, self._data_plane = records, data_plane
        self.asked: list[jobs.Job] = []
        self.held: tuple[HeldView, ...] = ()
        #: tables that the owner refuses, and how many may leave at once
        self.refused, self.leaving_max = frozenset[int](), 100
        records.pending = lambda: renames(self.held)

    async def ask(self, job: jobs.Job) -> object:
        if isinstance(job, jobs.Tables):
            known = (await self.query(job.changefeed)).tables
            return tuple(table for table in known if job.name in ("", table.table))
        if isinstance(job, jobs.Update) and (self.refused & {*job.leaving} or len(job.leaving) > self.leaving_max):
            raise JobRefusedError("not these")
        self.asked.append(job)
        if isinstance(job, jobs.PauseTable | jobs.ResumeTable | jobs.SkipTable):
            return Ts(7)
        return await self._records.ask(job) if isinstance(job, jobs.Update) else ()

    async def query(self, changefeed_id: str, *, tables: bool = True) -> ChangefeedView:
        known = self._records.unit.tables
        held = {one.table_id: one for one in self.held}
        views = tuple(
            TableView(table=f"{one.schema_name}.{one.name}", table_id=one.table_id, held=held.get(one.table_id))
            for one in known
        )
        return ChangefeedView(
            id=changefeed_id,
            state=FeedState.WARNING,
            sink=self._records.info.sink.masked,
            tables=views,
            held=self.held,
            joining=tuple(map(".".join, self._records.unit.joining)),
        )

    def info_of(self, changefeed_id: str) -> ChangefeedInfo:
        return self._records.info

    def unit_of(self, changefeed_id: str) -> UnitRecord | None:
        return self._records.unit

    def cuts_of(self, changefeed_id: str) -> Mapping[int, TablePartitioning]:
        return {}

    def pending_of(self, changefeed_id: str) -> tuple[DdlRecord, ...]:
        return renames(self.held)

    def head_of(self, changefeed_id: str) -> LogHead:
        return LogHead()

    async def use_cluster_key(self) -> Compare:
        await anyio.lowlevel.checkpoint()
        return Compare("", Target.MOD_REVISION, 0)

    @property
    def copies(self) -> dict[CopyPlace, CopyProgress]:
        return {}

    @property
    def data_plane(self) -> DataPlane:
        return cast("DataPlane", self._data_plane)


async def test_a_held_table_is_copied_and_no_other_that_has_its_name() -> None:
    """A new table was held under the name of one that had lost it, and the hold has ended."""
    data_plane = PlayedDataPlane()
    operations = Operations(Records(data_plane), data_plane)
    error = RunningError(code="NotFollowed", message="late", time=0.0, retryable=False, table_id=9, scope=Scope.TABLE)
    ended = HeldTable(table_id=9, name="public.t1", error=error, origin=HoldOrigin.SOURCE)
    written = ended.with_(table_id=1, origin=HoldOrigin.WRITE)
    await operations.take_in("feed", [ended])
    assert operations.asked == []
    await operations.take_in("feed", [ended, written])
    assert operations.asked == [jobs.ResyncTable("", ChangefeedId("feed"), 1)]
    operations.held = (HeldView(table="public.t3", renamed_to="aside.t3", table_id=9, stage="held", origin="source"),)
    operations.asked.clear()
    await operations.take_in("feed", [ended])
    [job] = operations.asked
    assert isinstance(job, jobs.Update)
    assert job.joining == (("aside", "t3"),)


async def test_held_tables_join_in_parts_where_the_owner_refuses_them_all() -> None:
    """They are too many for one transaction, or one of them has to wait. Tables that exchanged names stay together."""
    data_plane = PlayedDataPlane()
    names = [f"public.u{number}" for number in range(12)]
    records = Records(data_plane)
    records.unit = records.unit.with_(
        tables=tuple(
            TableRecord(table_id=number, schema_name="public", name=name.partition(".")[2], key=("id",))
            for number, name in enumerate(names, 1)
        )
    )
    data_plane.there = records.unit.tables
    operations = Operations(records, data_plane)
    operations.refused, operations.leaving_max = frozenset({5}), 3
    renamed = {1: names[1], 2: names[0]}
    operations.held = tuple(
        HeldView(table=name, renamed_to=renamed.get(number, ""), table_id=number, stage="held", origin="source")
        for number, name in enumerate(names, 1)
    )
    error = RunningError(code="NotFollowed", message="late", time=0.0, retryable=False, scope=Scope.TABLE)
    held = [
        HeldTable(table_id=number, name=name, error=error, origin=HoldOrigin.SOURCE)
        for number, name in enumerate(names, 1)
    ]
    problems = await operations.take_in("feed", held)
    assert problems.keys() == {5}
    done = [set(job.leaving) for job in operations.asked if isinstance(job, jobs.Update)]
    assert set().union(*done) == {*range(1, 13)} - {5}
    assert any({1, 2} <= part for part in done)
    assert all(len(part) <= 3 for part in done)


@pytest.mark.parametrize("asked", ["public.t1", "public.t2", "public.t3"])
async def test_held_tables_that_have_taken_each_others_names_are_copied_together(asked: str) -> None:
    """One alone could never join: its name at the source is the place of another one."""
    data_plane = PlayedDataPlane()
    tables = (*TABLES, TableRecord(table_id=3, schema_name="public", name="t3"))
    data_plane.there = tuple(table.with_(key=("id",)) for table in tables)
    records = Records(data_plane)
    records.unit = records.unit.with_(tables=tables)
    operations = Operations(records, data_plane)
    names = ("public.t1", "public.t2", "public.t3")
    operations.held = tuple(
        HeldView(table=name, renamed_to=names[number % 3], table_id=number, stage="held", origin="schema")
        for number, name in enumerate(names, 1)
    )
    await operations.resync_table("feed", asked)
    [job] = operations.asked
    assert isinstance(job, jobs.Update)
    assert sorted(job.joining or ()) == [("public", "t1"), ("public", "t2"), ("public", "t3")]
    assert sorted(job.leaving) == [1, 2, 3]


@pytest.mark.parametrize("origin", HoldOrigin)
async def test_a_held_table_with_another_name_is_copied_under_that_name(origin: HoldOrigin) -> None:
    """A copy in its place would be of whichever table has its old name now. A paused table says so itself."""
    data_plane = PlayedDataPlane()
    data_plane.there = tuple(table.with_(key=("id",)) for table in data_plane.there)
    operations = Operations(Records(data_plane), data_plane)
    operations.held = (HeldView(table="public.t2", renamed_to="aside.t3", table_id=2, stage="held", origin=origin),)
    await operations.resync_table("feed", "public.t2")
    [job] = operations.asked
    if origin is HoldOrigin.PAUSE:
        assert job == jobs.ResyncTable("", ChangefeedId("feed"), 2)
    else:
        assert isinstance(job, jobs.Update)
        assert (job.joining, job.leaving) == ((("aside", "t3"),), (2,))


@pytest.mark.parametrize("held", [1, 2])
async def test_steps_of_a_held_table_are_not_of_the_one_that_has_its_name_now(held: int) -> None:
    """The sink has both under one name; each step is of the one that can take it."""
    data_plane = PlayedDataPlane()
    records, flowing = Records(data_plane), 3 - held
    records.unit = records.unit.with_(tables=tuple(table.with_(name="t1") for table in TABLES))
    operations = Operations(records, data_plane)
    view = HeldView(table="public.t1", renamed_to="public.old", table_id=held, stage="held", origin="pause")
    operations.held = (view,)
    await operations.resume_table("feed", "public.t1")
    await operations.skip_table("feed", "public.t1", 9, confirmed=True)
    await operations.cancel_resync("feed", "public.t1")
    await operations.pause_table("feed", "public.t1")
    await operations.resync_table("feed", "public.t1")
    assert [(type(job), job.table_id) for job in operations.asked] == [  # type: ignore[union-attr]
        (jobs.ResumeTable, held),
        (jobs.SkipTable, held),
        (jobs.ResyncTable, held),
        (jobs.PauseTable, flowing),
        (jobs.ResyncTable, flowing),
    ]


@given(st.lists(st.tuples(st.sampled_from(["again", "add", "leave"]), st.integers(0, 5)), min_size=2, max_size=6))
def test_requests_at_the_same_time_do_not_undo_each_other(steps: list[tuple[str, int]]) -> None:
    """Whatever is asked for, in whichever order it reads and writes: all of it is in the records in the end."""
    data_plane = PlayedDataPlane()
    others = tuple(TableRecord(table_id=n, schema_name="aside", name=f"t{n}") for n in range(10, 20))
    held = tuple(TableRecord(table_id=n, schema_name="public", name=f"h{n}") for n in range(20, 30))
    leaving = tuple(TableRecord(table_id=n, schema_name="public", name=f"l{n}") for n in range(30, 40))
    data_plane.there = tuple(table.with_(key=("id",)) for table in (*TABLES, *others, *held, *leaving))
    records = Records(data_plane)
    records.info = records.info.with_(config=ChangefeedConfig(filter=FilterConfig(rules=("public.*",))))
    records.unit = records.unit.with_(tables=(*TABLES, *held, *leaving))
    operations = Operations(records, data_plane)

    async def step(number: int, what: str, delay: int) -> None:
        for _ in range(delay):
            await anyio.lowlevel.checkpoint()
        match what:
            case "again":
                view = HeldView(table=f"public.h{20 + number}", table_id=20 + number, stage="held", origin="source")
                await operations.rejoin("feed", [view])
            case "add":
                await operations.add_table("feed", f"aside.t{10 + number}")
            case "leave":
                await operations.remove_table("feed", f"public.l{30 + number}")

    async def run() -> None:
        async with anyio.create_task_group() as group:
            for number, (what, delay) in enumerate(steps):
                group.start_soon(step, number, what, delay)

    anyio.run(run)
    found = TableFilter(records.info.config.filter.rules)
    for number, (what, _) in enumerate(steps):
        match what:
            case "again":
                assert ("public", f"h{20 + number}") in records.unit.joining
            case "add":
                assert ("aside", f"t{10 + number}") in records.unit.joining
                assert found.wants("aside", f"t{10 + number}")
            case "leave":
                assert 30 + number not in {table.table_id for table in records.unit.tables}
                assert not found.wants("public", f"l{30 + number}")


@pytest.mark.parametrize("resync", [False, True])
async def test_tables_whose_columns_are_selected_otherwise_are_named_and_copied_as_asked(resync: bool) -> None:
    service, data_plane = PlayedService(SYNC), PlayedDataPlane()
    selector = ColumnSelector(matcher=("*.t1", "aside.*"), columns=("*", "!secret"))
    config = ChangefeedConfig(filter=FilterConfig(column_selectors=(selector,)))
    asked = ChangefeedUpdate(config=config, resync=resync)
    done = await amendment.update(
        cast("ClusterService", service), cast("DataPlane", data_plane), feed(data_plane, state=FeedState.NORMAL), asked
    )
    assert done.outdated == ("public.t1",)
    [job] = service.asked
    assert isinstance(job, jobs.Update)
    assert (job.copied, job.basis is not None) == (((1,), True) if resync else ((), False))

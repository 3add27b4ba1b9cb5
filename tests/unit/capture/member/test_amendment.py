"""What source and sink have a say in before a changefeed is changed or set back; the owner is played."""

from collections.abc import Mapping
from typing import cast

import pytest

from agent.errors import PositionLostError, SinkConfigError
from capture.api.port import ChangefeedUpdate, FieldChange
from capture.errors import JobRefusedError
from capture.member import amendment
from capture.member.cluster_service import ClusterService
from capture.member.services import DataPlane
from capture.security.secrets import Keeper, new_key
from owner import jobs
from owner.feed.amendment import Difference
from reactor.errors import WeirError
from reactor.ids import ChangefeedId, Ts
from reactor.records.changefeed import ChangefeedInfo, FeedState, TableRecord, Unit, UnitRecord, UnitStage
from reactor.records.partitioning import TablePartitioning
from reactor.views import ChangefeedView

SOURCE, SINK = "postgresql://u:geheim@h/d", "delta+file:///lake"
TABLES = tuple(TableRecord(table_id=n, schema_name="public", name=f"t{n}") for n in (1, 2))
SYNC = UnitRecord(unit=Unit.SYNC, stage=UnitStage.RUNNING, tables=TABLES)
LOAD = UnitRecord(unit=Unit.LOAD, stage=UnitStage.RUNNING, tables=TABLES)


class PlayedService:
    def __init__(self, unit: UnitRecord | None) -> None:
        self.unit = unit
        self.asked: list[jobs.Job] = []

    def unit_of(self, changefeed_id: str) -> UnitRecord | None:
        return self.unit

    def cuts_of(self, changefeed_id: str) -> Mapping[int, TablePartitioning]:
        return {}

    async def ask(self, job: jobs.Job) -> object:
        self.asked.append(job)
        return (Difference("sink", "a", "b"),)

    async def query(self, changefeed_id: str) -> ChangefeedView:
        return ChangefeedView(id=changefeed_id, state=FeedState.STOPPED)


class PlayedDataPlane:
    def __init__(self, recorded: tuple[int, ...] = (150, 250)) -> None:
        self.keeper = Keeper(new_key())
        self.refusal: WeirError | None = None
        self.checked: list[str] = []
        self._recorded = recorded

    async def recorded(
        self, info: ChangefeedInfo, unit: UnitRecord, partitionings: Mapping[int, TablePartitioning]
    ) -> tuple[Ts, ...]:
        self.checked.append(info.sink.masked)
        if self.refusal:
            raise self.refusal
        return tuple(Ts(ts) for ts in self._recorded)

    async def check_source_again(self, info: ChangefeedInfo, unit: UnitRecord) -> None:
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


async def rewind(service: PlayedService, data_plane: PlayedDataPlane, ts: int) -> dict[str, int]:
    done = await amendment.rewind(
        cast("ClusterService", service), cast("DataPlane", data_plane), feed(data_plane), Ts(ts)
    )
    assert service.asked == [jobs.Rewind("", ChangefeedId("feed"), Ts(ts))]
    return {table.table: table.ts for table in done.tables}


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


async def test_a_snapshot_on_its_way_does_not_change_its_destination() -> None:
    service, data_plane = PlayedService(LOAD), PlayedDataPlane()
    with pytest.raises(JobRefusedError, match="is on its way to delta"):
        await update(service, data_plane, ChangefeedUpdate(sink_uri="delta+file:///other"))
    await update(PlayedService(None), data_plane, ChangefeedUpdate(sink_uri="delta+file:///other"))


async def test_what_runs_is_left_for_the_owner_to_refuse() -> None:
    service, data_plane = PlayedService(SYNC), PlayedDataPlane()
    await update(service, data_plane, ChangefeedUpdate(sink_uri="delta+file:///other"), state=FeedState.NORMAL)
    assert data_plane.checked == []


async def test_rewind_says_from_where_each_table_goes_on() -> None:
    assert await rewind(PlayedService(SYNC), PlayedDataPlane((150, 250)), 200) == {"public.t1": 150, "public.t2": 250}
    assert await rewind(PlayedService(SYNC), PlayedDataPlane(()), 200) == {"public.t1": 200, "public.t2": 200}


async def test_rewind_that_no_table_of_the_sink_would_notice_is_refused() -> None:
    service = PlayedService(SYNC)
    with pytest.raises(JobRefusedError, match=r"the sink records 210 for public\.t2 .*going back to 200 would change"):
        await rewind(service, PlayedDataPlane((300, 210)), 200)
    assert service.asked == []

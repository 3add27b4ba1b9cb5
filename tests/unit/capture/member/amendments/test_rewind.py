"""Rewind: the sink is asked before a changefeed is set back; the owner is played."""

from typing import cast

import pytest

from capture.errors import JobRefusedError
from capture.member.amendments.rewind import rewind as asked_to_rewind
from capture.member.cluster_service import ClusterService
from capture.member.preflight import SinkRecord
from capture.member.services import DataPlane
from owner import jobs
from reactor.ids import ChangefeedId, Ts
from tests.unit.capture.member.amendments.test_amendment import SYNC, PlayedDataPlane, PlayedService, feed


async def rewind(service: PlayedService, data_plane: PlayedDataPlane, ts: int) -> dict[str, int]:
    done = await asked_to_rewind(
        cast("ClusterService", service), cast("DataPlane", data_plane), feed(data_plane), Ts(ts)
    )
    assert service.asked == [jobs.Rewind("", ChangefeedId("feed"), Ts(ts))]
    return {table.table: table.ts for table in done.tables}


async def test_rewind_says_from_where_each_table_continues() -> None:
    assert await rewind(PlayedService(SYNC), PlayedDataPlane((150, 250)), 200) == {"public.t1": 150, "public.t2": 250}
    assert await rewind(PlayedService(SYNC), PlayedDataPlane(()), 200) == {"public.t1": 200, "public.t2": 200}


async def test_rewind_that_no_table_of_the_sink_would_notice_is_refused() -> None:
    service = PlayedService(SYNC)
    with pytest.raises(JobRefusedError, match=r"the sink records 210 for public\.t2 .*going back to 200 would change"):
        await rewind(service, PlayedDataPlane((300, 210)), 200)
    assert service.asked == []


@pytest.mark.parametrize("ts", [151, 150])
async def test_rewind_that_leaves_out_what_a_table_has_lost_is_refused(ts: int) -> None:
    """The other one has had no change since 120."""
    service = PlayedService(SYNC)
    data_plane = PlayedDataPlane((SinkRecord(Ts(150), back_ts=Ts(150)), SinkRecord(Ts(120))))
    if ts == 150:
        assert await rewind(service, data_plane, ts) == {"public.t1": 150, "public.t2": 120}
        return
    with pytest.raises(JobRefusedError, match=r"public\.t1 was set back to 150 at the sink: .* rewind to 150 or less"):
        await rewind(service, data_plane, ts)
    assert service.asked == []

"""Schema changes are there with the head that passes them, or ahead of it, and never without their writer's right."""

import pytest

from agent.errors import HoldTooEarlyError, LogFencedError
from reactor.ids import Ts
from reactor.keys import FormatKey
from reactor.records.formats import ClusterFormat
from reactor.records.tables.schema_change import DdlRecord, SchemaChangeKind, TableChange
from reactor.store.memory import MemoryEtcd
from reactor.store.port import Put
from tests.unit.agent.log.test_head import Outage, stored, writer, written


def changes(*positions: int) -> list[DdlRecord]:
    return [DdlRecord(ts=Ts(ts), statement=f"change {ts}") for ts in positions]


async def test_a_head_and_the_changes_it_passes_are_one_transaction() -> None:
    etcd = MemoryEtcd()
    log = writer(etcd)
    await log.take_over(Ts(1))
    before = etcd.revision
    await log.append(written(log, resolved=20), is_complete=True, resolved_time=1.0, ddl=changes(11, 12))
    assert etcd.revision == before + 1
    assert stored(etcd).resolved_ts == 20
    assert await log.read_ddl() == changes(11, 12)
    await log.advance(Ts(30), resolved_time=2.0, ddl=changes(25))
    assert [record.ts for record in await log.read_ddl()] == [11, 12, 25]


async def test_more_changes_than_a_transaction_takes_go_ahead_of_the_head() -> None:
    """Also when answers get lost on the way."""
    etcd, fault = MemoryEtcd(), Outage()
    log = writer(etcd, fault=fault)
    await log.take_over(Ts(1))
    fault.lost, fault.refused = ["txn"], ["txn"]
    await log.advance(Ts(900), resolved_time=2.0, ddl=changes(*range(2, 302)))
    assert len(await log.read_ddl()) == 300
    assert stored(etcd).resolved_ts == 900


@pytest.mark.parametrize("count", [1, 300])
async def test_a_change_is_stored_where_the_head_does_not_move(count: int) -> None:
    """A table joins the changefeed while nobody writes to the source. Also when answers get lost on the way."""
    etcd, fault = MemoryEtcd(), Outage()
    log = writer(etcd, fault=fault)
    await log.take_over(Ts(1))
    await log.advance(Ts(900), resolved_time=2.0)
    before = stored(etcd)
    fault.lost, fault.refused = ["txn"], ["txn"]
    await log.advance(Ts(900), resolved_time=2.0, ddl=changes(*range(901 - count, 901)))
    assert len(await log.read_ddl()) == count
    assert stored(etcd) == before
    await log.advance(Ts(950), resolved_time=3.0)
    assert stored(etcd).resolved_ts == 950


async def test_a_writer_that_was_replaced_stores_no_change_at_its_head() -> None:
    etcd = MemoryEtcd()
    old, new = writer(etcd, "old"), writer(etcd, "new")
    await old.take_over(Ts(1))
    await old.advance(Ts(900), resolved_time=2.0)
    await new.take_over(Ts(1))
    with pytest.raises(LogFencedError):
        await old.advance(Ts(900), resolved_time=2.0, ddl=changes(900))
    assert await new.read_ddl() == []


async def test_a_writer_that_was_replaced_adds_no_change() -> None:
    etcd = MemoryEtcd()
    old, new = writer(etcd, "old"), writer(etcd, "new")
    await old.take_over(Ts(1))
    await new.take_over(Ts(1))
    with pytest.raises(LogFencedError):
        await old.advance(Ts(900), resolved_time=2.0, ddl=changes(*range(2, 302)))
    assert await new.read_ddl() == []


async def test_a_hold_waits_until_every_capture_of_the_cluster_knows_holds() -> None:
    """A capture of v0.1.0 cannot read it, and would write the table on."""
    hold = TableChange(kind=SchemaChangeKind.HOLD, table_id=1, reason="public.t: cannot be followed")
    etcd = MemoryEtcd()
    log = writer(etcd)
    await log.take_over(Ts(1))
    with pytest.raises(HoldTooEarlyError, match=r"public\.t: cannot be followed; .* must use format 2, and uses 1"):
        await log.advance(Ts(9), resolved_time=2.0, ddl=[DdlRecord(ts=Ts(5), changes=(hold,))])
    assert stored(etcd).resolved_ts == 1
    assert await log.read_ddl() == []
    etcd.txn([], [Put(str(FormatKey("c")), ClusterFormat(number=2).encode())])
    await log.advance(Ts(9), resolved_time=2.0, ddl=[DdlRecord(ts=Ts(5), changes=(hold,))])
    assert [record.ts for record in await log.read_ddl()] == [5]

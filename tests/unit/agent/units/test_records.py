"""A unit's record is written by the newest order of the changefeed that is there, and by nobody else."""

import pytest

from agent.errors import UnitFencedError
from agent.units.records import UnitRecords
from reactor.ids import ChangefeedId
from reactor.keys import InfoKey, UnitKey
from reactor.records.changefeed import Unit, UnitRecord, UnitStage
from reactor.store.memory import MemoryClient, MemoryEtcd
from reactor.store.port import Compare, Delete, Put, Target

_KEY = UnitKey("c", "default", ChangefeedId("feed"), "main")
_INFO = str(InfoKey("c", "default", ChangefeedId("feed")))


def record(epoch: int, *, unit: Unit = Unit.SYNC) -> UnitRecord:
    return UnitRecord(unit=unit, stage=UnitStage.RUNNING, epoch=epoch)


async def test_a_record_is_read_as_it_was_written() -> None:
    records = UnitRecords(MemoryClient(MemoryEtcd()), _KEY)
    assert await records.read() is None
    await records.write(record(3))
    assert await records.read() == record(3)


async def test_an_older_order_is_refused() -> None:
    records = UnitRecords(MemoryClient(MemoryEtcd()), _KEY)
    await records.write(record(3))
    with pytest.raises(UnitFencedError, match="epoch 3"):
        await records.write(record(2))


@pytest.mark.parametrize("is_created_anew", [False, True])
async def test_a_unit_of_a_changefeed_that_is_gone_leaves_nothing(*, is_created_anew: bool) -> None:
    etcd = MemoryEtcd()
    created = etcd.txn([], [Put(_INFO, b"first")]).revision
    records = UnitRecords(MemoryClient(etcd), _KEY, life=Compare(_INFO, Target.CREATE_REVISION, created))
    etcd.txn([], [Delete(_INFO)])
    if is_created_anew:
        etcd.txn([], [Put(_INFO, b"second")])
    with pytest.raises(UnitFencedError, match="removed"):
        await records.write(record(3))
    assert etcd.get(str(_KEY)) is None

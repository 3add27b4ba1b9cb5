"""A unit's record is written by the newest order of the changefeed that is there, and by nobody else."""

import pytest

from agent.errors import HoldTooEarlyError, LogFencedError, UnitFencedError
from agent.ports.source import Position
from agent.units.records import UnitRecords
from agent.units.renewal import begun_again, left_behind, tables_now
from reactor.division.packing import MAGIC
from reactor.ids import MAX_TS, ChangefeedId, Ts
from reactor.keys import DdlKey, FormatKey, InfoKey, LogKey, UnitKey
from reactor.records.changefeed import Unit, UnitRecord, UnitStage
from reactor.records.formats import ClusterFormat, Feature
from reactor.records.log_head import LogHead
from reactor.records.tables.schema_change import DdlRecord
from reactor.records.tables.table import TableRecord
from reactor.store.memory import MemoryClient, MemoryEtcd
from reactor.store.port import Compare, Delete, Put, Target
from tests.newest import newest_etcd

_KEY = UnitKey("c", "default", ChangefeedId("feed"), "main")
_LOG = LogKey("c", "default", ChangefeedId("feed"), "main")
_INFO = str(InfoKey("c", "default", ChangefeedId("feed")))


def record(epoch: int, *, unit: Unit = Unit.SYNC) -> UnitRecord:
    return UnitRecord(unit=unit, stage=UnitStage.RUNNING, epoch=epoch)


async def test_a_record_is_read_as_it_was_written() -> None:
    records = UnitRecords(MemoryClient(MemoryEtcd()), _KEY)
    assert await records.read() is None
    await records.write(record(3))
    assert await records.read() == record(3)


async def test_a_record_of_twenty_thousand_tables_waits_for_captures_that_read_it() -> None:
    etcd = MemoryEtcd()
    records = UnitRecords(MemoryClient(etcd), _KEY)
    tables = tuple(TableRecord.new(n, "public", f"customer_orders_{n:06}", key=("id",)) for n in range(20_000))
    whole = record(3).with_(tables=tables)
    etcd.txn([], [Put(str(FormatKey("c")), ClusterFormat(number=Feature.PACKED - 1).encode())])
    with pytest.raises(HoldTooEarlyError, match="must use format 10, and uses 8: upgrade all captures"):
        await records.write(whole)
    few = record(3).with_(tables=tables[:2_000])
    await records.write(few)
    item = etcd.get(str(_KEY))
    assert item is not None
    assert item.value == few.encode(), "as captures of before read it"
    etcd.txn([], [Put(str(FormatKey("c")), ClusterFormat(number=Feature.PACKED).encode())])
    await records.write(record(4, unit=Unit.LOAD).with_(tables=tables))
    item = etcd.get(str(_KEY))
    assert item is not None
    assert item.value.startswith(MAGIC)
    assert await records.read() == record(4, unit=Unit.LOAD).with_(tables=tables)


async def test_a_record_of_an_earlier_unit_is_gone_with_its_changefeed() -> None:
    records = UnitRecords(MemoryClient(MemoryEtcd()), _KEY)
    with pytest.raises(UnitFencedError, match="removed"):
        await records.require()
    await records.write(record(3))
    assert await records.require() == record(3)


async def test_an_older_order_is_refused() -> None:
    records = UnitRecords(MemoryClient(MemoryEtcd()), _KEY)
    await records.write(record(3))
    with pytest.raises(UnitFencedError, match="epoch 3"):
        await records.write(record(2))


@pytest.mark.parametrize("is_created_anew", [False, True])
async def test_a_unit_of_a_changefeed_that_is_gone_leaves_nothing(*, is_created_anew: bool) -> None:
    etcd = MemoryEtcd()
    created = etcd.txn([], [Put(_INFO, b"first")]).revision
    records = UnitRecords(MemoryClient(etcd), _KEY, guard=Compare(_INFO, Target.CREATE_REVISION, created))
    etcd.txn([], [Delete(_INFO)])
    if is_created_anew:
        etcd.txn([], [Put(_INFO, b"second")])
    with pytest.raises(UnitFencedError, match="removed"):
        await records.write(record(3))
    assert etcd.get(str(_KEY)) is None


async def test_what_the_owner_says_of_the_position_stays() -> None:
    """Also under the hands of a worker that has not heard of it."""
    etcd = MemoryEtcd()
    records = UnitRecords(MemoryClient(etcd), _KEY)
    await records.write(record(3))
    etcd.txn([], [Put(str(_KEY), record(3).with_(lost_ts=MAX_TS).encode())])
    await records.write(record(4))
    assert await records.read() == record(4).with_(lost_ts=MAX_TS)


async def test_a_dump_says_which_tables_join_and_then_the_owner_does() -> None:
    etcd = newest_etcd()
    records = UnitRecords(MemoryClient(etcd), _KEY)
    await records.write(record(3, unit=Unit.DUMP))
    joining = (("public", "new"),)
    dumped = record(3, unit=Unit.DUMP).with_(stage=UnitStage.FINISHED, joining=joining)
    await records.write(dumped)
    assert await records.read() == dumped
    await records.write(record(4, unit=Unit.LOAD))
    assert await records.read() == record(4, unit=Unit.LOAD).with_(joining=joining)
    etcd.txn([], [Put(str(_KEY), record(4, unit=Unit.SYNC).encode())])
    await records.write(record(5).with_(joining=joining))
    assert await records.read() == record(5)


async def test_a_new_position_comes_with_the_log_and_without_the_schema_changes_of_before() -> None:
    etcd = MemoryEtcd()
    records = UnitRecords(MemoryClient(etcd), _KEY)
    await records.write(record(3))
    changes = [DdlKey("c", "default", ChangefeedId("feed"), ts) for ts in range(1, 200)]
    for key in changes:
        etcd.txn([], [Put(str(key), DdlRecord(ts=Ts(key.ts)).encode())])
    head = LogHead(
        epoch=5, first_seq=2, last_seq=9, complete_seq=8, resolved_ts=Ts(300), attachment="position-5-x.json"
    )
    etcd.txn([], [Put(str(_LOG), head.encode())])
    after = begun_again(record(3), Position(Ts(500), "there"))
    for _ in range(2):  # its first answer may have been lost
        await records.renew(after, _LOG, Position(Ts(500), "there"))
    assert await records.read() == after
    assert (after.lost_ts, after.start_position) == (500, "there")
    assert not any(etcd.get(str(key)) for key in changes)
    stored = etcd.get(str(_LOG))
    assert stored is not None
    new = LogHead.decode(stored.value, key=str(_LOG))
    assert (new.epoch, new.first_seq, new.complete_seq, new.attachment) == (6, 10, 9, "")
    assert (new.resolved_ts, new.removed_ts, new.position) == (500, 500, "there")


async def test_an_older_order_takes_no_position_and_none_behind_the_log() -> None:
    etcd = MemoryEtcd()
    records = UnitRecords(MemoryClient(etcd), _KEY)
    await records.write(record(3))
    start = Position(Ts(500))
    with pytest.raises(UnitFencedError, match="epoch 3"):
        await records.renew(begun_again(record(2), start), _LOG, start)
    etcd.txn([], [Put(str(_LOG), LogHead(resolved_ts=Ts(500)).encode())])
    with pytest.raises(LogFencedError, match="past the new position"):
        await records.renew(begun_again(record(3), start), _LOG, start)
    assert await records.read() == record(3)


def test_tables_lie_where_they_lay_unless_they_have_another_name() -> None:
    known = [
        TableRecord.new(1, "s", "a/b", start_ts=Ts(7)),
        TableRecord.new(2, "s", "old", start_ts=Ts(8)),
        TableRecord.new(3, "s", "gone"),
    ]
    known[0] = known[0].with_(location="elsewhere")
    found = [TableRecord.new(id, "s", name, start_ts=Ts(99)) for id, name in ((1, "a/b"), (2, "n/w"), (4, "c"))]
    tables = tables_now(known, found)
    assert [(table.name, table.path, table.start_ts) for table in tables] == [
        ("a/b", "elsewhere", 7),
        ("n/w", "s/n!2Fw", 8),
        ("c", "s/c", 0),
    ]
    left = left_behind(known, tables, Ts(50), time=9.0)
    assert [(one.table_id, one.name, one.ts, one.time) for one in left] == [(2, "old", 50, 9.0), (3, "gone", 50, 9.0)]


def test_tables_that_swapped_their_names_both_leave_the_place_where_they_lay() -> None:
    known = [TableRecord.new(1, "s", "a", start_ts=Ts(7)), TableRecord.new(2, "s", "b", start_ts=Ts(7))]
    tables = tables_now(known, [TableRecord.new(1, "s", "b"), TableRecord.new(2, "s", "a")])
    assert [one.name for one in left_behind(known, tables, Ts(50), time=9.0)] == ["a", "b"]

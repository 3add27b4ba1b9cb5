"""The head is moved by one writer at a time, whatever etcd loses on the way."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import pytest

from agent.errors import HoldTooEarlyError, LogFencedError, PositionLostError
from agent.log.attachments import Attachment
from agent.log.directories import TEMPORARY
from agent.log.epochs import newest_epoch
from agent.log.head import LogWriter, begun_again, epoch_of
from agent.log.head_store import MetaHeadStore
from agent.log.segment import SegmentName
from agent.log.storage import LogDirectory
from agent.rows.batches import SegmentRef
from reactor.errors import StoreUnreachableError
from reactor.ids import CaptureId, ChangefeedId, Ts
from reactor.keys import FormatKey, InfoKey, LogKey, ddl_prefix
from reactor.records.formats import NEWEST, ClusterFormat, Feature
from reactor.records.log_head import Era, LogHead
from reactor.records.tables.schema_change import DdlRecord, SchemaChangeKind, TableChange
from reactor.records.tables.table import TableRecord
from reactor.store.memory import Fault, MemoryClient, MemoryEtcd
from reactor.store.port import Compare, Delete, Put, Target
from tests.unit.agent.log_build import name
from tests.unit.reactor.membership.test_session import Full

_KEY = LogKey("c", "default", ChangefeedId("feed"), "main")
_INFO = str(InfoKey("c", "default", ChangefeedId("feed")))


class Outage:
    """The next calls of each kind fail; ``done`` says whether they are carried out first."""

    def __init__(self) -> None:
        self.lost: list[str] = []
        self.refused: list[str] = []

    async def before(self, call: str) -> None:
        self._fail(self.refused, call)

    async def after(self, call: str) -> None:
        self._fail(self.lost, call)

    def _fail(self, calls: list[str], call: str) -> None:
        if call in calls:
            calls.remove(call)
            raise StoreUnreachableError("etcd does not answer; it is tried again")


def writer(etcd: MemoryEtcd, capture: str = "a", *, fault: Fault | None = None) -> LogWriter:
    return LogWriter(MetaHeadStore(MemoryClient(etcd, fault=fault), _KEY), capture=CaptureId(capture))


def stored(etcd: MemoryEtcd) -> LogHead:
    item = etcd.get(str(_KEY))
    assert item is not None
    return LogHead.decode(item.value, key=str(_KEY))


def written(log: LogWriter, *, resolved: int = 0) -> SegmentRef:
    """The next segment of this writer."""
    seq = log.head.last_seq + 1
    found: SegmentName = name(seq, epoch=log.head.epoch, resolved=resolved)
    return found.ref(str(found))


async def test_a_log_begins_where_its_source_starts() -> None:
    etcd = MemoryEtcd()
    await writer(etcd).take_over(Ts(77))
    assert stored(etcd) == LogHead(
        epoch=1, writer=CaptureId("a"), resolved_ts=Ts(77), eras=(Era(epoch=1, first_seq=1),)
    )


async def test_segments_move_the_position_only_with_whole_transactions() -> None:
    etcd = MemoryEtcd()
    log = writer(etcd)
    await log.take_over(Ts(5))
    await log.append(written(log), is_complete=True, resolved_time=1.0)
    await log.append(written(log, resolved=10), is_complete=False, resolved_time=1.0)
    head = stored(etcd)
    assert (head.last_seq, head.complete_seq, head.resolved_ts, head.resolved_time) == (2, 1, 10, 1.0)
    await log.append(written(log), is_complete=True, resolved_time=2.0)
    head = stored(etcd)
    assert (head.last_seq, head.complete_seq, head.resolved_ts, head.resolved_time) == (3, 3, 30, 2.0)


async def test_a_new_writer_continues_behind_the_last_finished_transaction() -> None:
    etcd = MemoryEtcd()
    old, new = writer(etcd, "old"), writer(etcd, "new")
    await old.take_over(Ts(0))
    for is_complete in (True, True, False, False):
        await old.append(written(old), is_complete=is_complete, resolved_time=1.0)
    await new.take_over(Ts(999))
    head = stored(etcd)
    assert (head.epoch, head.writer, head.last_seq, head.resolved_ts) == (2, "new", 2, 20)
    assert head.eras == (Era(epoch=1, first_seq=1), Era(epoch=2, first_seq=3))
    assert [epoch_of(head, seq) for seq in (1, 2, 3, 9)] == [1, 1, 2, 2]


async def test_a_head_that_is_older_than_its_files_is_not_continued() -> None:
    """The store was put back to an earlier state."""
    etcd = MemoryEtcd()
    first = writer(etcd, "first")
    await first.take_over(Ts(0), newest_epoch=7)  # without a head they are those of an earlier changefeed
    before = stored(etcd)
    await writer(etcd, "second").take_over(Ts(0), newest_epoch=before.epoch)
    assert stored(etcd).epoch == before.epoch + 1
    with pytest.raises(PositionLostError, match=r"files of epoch 3, and the store knows epoch 2: .* resume --resync"):
        await writer(etcd, "third").take_over(Ts(0), newest_epoch=3)
    assert stored(etcd).writer == "second"


def test_a_log_that_begins_again_is_above_all_files() -> None:
    head = LogHead(epoch=5, resolved_ts=Ts(10), complete_seq=3, last_seq=3)
    for newest, epoch in ((0, 6), (5, 6), (9, 10)):
        again = begun_again(head, Ts(20), position="", newest_epoch=newest)
        assert (again.epoch, again.eras) == (epoch, (Era(epoch=epoch, first_seq=4),))


@pytest.mark.parametrize(
    ("names", "epoch"),
    [
        ([], 0),
        (["000000000001-7-1-2-3.arrow", "000000000002-4-1-2-3.arrow", "elsewhere-99.txt"], 7),
        ([f"{TEMPORARY}000000000001-8-1-2-3.arrow", "000000000001-7-1-2-3.arrow"], 8),
        ([Attachment.of("x", epoch=9).name, "000000000001-7-1-2-3.arrow"], 9),
    ],
)
def test_the_newest_epoch_is_that_of_any_file(names: list[str], epoch: int, tmp_path: Path) -> None:
    directory = tmp_path / "feed" / "main"
    for file in names:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / file).touch()
    assert newest_epoch(LogDirectory(str(tmp_path), changefeed="feed", source="main")) == epoch


async def test_an_era_without_segments_leaves_no_trace() -> None:
    etcd = MemoryEtcd()
    log = writer(etcd)
    await log.take_over(Ts(0))
    for _ in range(5):
        await log.renew()
    assert log.head.eras == (Era(epoch=6, first_seq=1),)


@pytest.mark.parametrize(
    "act",
    [
        lambda log: log.append(written(log), is_complete=True, resolved_time=1.0),
        lambda log: log.advance(Ts(99), resolved_time=2.0),
        lambda log: log.forget(first_seq=2, removed_ts=Ts(10)),
        lambda log: log.renew(),
    ],
)
async def test_a_replaced_writer_can_do_nothing_more(act: Callable[[LogWriter], Awaitable[object]]) -> None:
    etcd = MemoryEtcd()
    old, new = writer(etcd, "old"), writer(etcd, "new")
    await old.take_over(Ts(0))
    await old.append(written(old), is_complete=True, resolved_time=1.0)
    await new.take_over(Ts(0))
    before = stored(etcd)
    with pytest.raises(LogFencedError, match=r"taken over by new \(epoch 2\)"):
        await act(old)
    assert stored(etcd) == before


async def test_a_removed_changefeed_stops_its_writer() -> None:
    etcd = MemoryEtcd()
    log = writer(etcd)
    await log.take_over(Ts(0))
    await MemoryClient(etcd).delete(str(_KEY))
    with pytest.raises(LogFencedError, match="changefeed was removed"):
        await log.advance(Ts(9), resolved_time=1.0)
    assert etcd.get(str(_KEY)) is None


@pytest.mark.looptime
@pytest.mark.parametrize("kind", ["lost", "refused"])
@pytest.mark.parametrize("reads_failing", [0, 3])
async def test_a_move_without_an_answer_is_made_exactly_once(kind: str, reads_failing: int) -> None:
    etcd, outage = MemoryEtcd(), Outage()
    log = writer(etcd, fault=outage)
    await log.take_over(Ts(0))
    revision = etcd.revision
    getattr(outage, kind).append("txn")
    outage.refused += ["get"] * reads_failing
    await log.append(written(log), is_complete=True, resolved_time=1.0)
    assert etcd.revision == revision + 1
    assert log.head == stored(etcd)
    await log.append(written(log), is_complete=True, resolved_time=2.0)
    assert stored(etcd).last_seq == 2


@pytest.mark.looptime
async def test_a_store_that_is_full_is_asked_with_pauses_until_there_is_room() -> None:
    etcd, store = MemoryEtcd(), Full("txn")
    log = writer(etcd, fault=store)
    await log.take_over(Ts(0))
    store.is_on = True
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: log.append(written(log), is_complete=True, resolved_time=1.0))
        await anyio.sleep(600)
        assert 0 < store.refusals < 130
        store.is_on = False
        freed = anyio.current_time()
    assert anyio.current_time() - freed <= 5.0
    assert stored(etcd).last_seq == 1


@pytest.mark.looptime
async def test_taking_over_survives_a_lost_answer() -> None:
    etcd, outage = MemoryEtcd(), Outage()
    log = writer(etcd, fault=outage)
    outage.lost.append("txn")
    await log.take_over(Ts(7))
    assert log.head == stored(etcd)
    assert log.head.writer == "a"


async def test_a_position_never_goes_back_but_its_time_continues() -> None:
    etcd = MemoryEtcd()
    log = writer(etcd)
    await log.take_over(Ts(50))
    await log.advance(Ts(40), resolved_time=9.0)
    assert stored(etcd).resolved_time == 0.0
    await log.advance(Ts(50), resolved_time=9.0)
    await log.advance(Ts(60), resolved_time=10.0)
    assert (stored(etcd).resolved_ts, stored(etcd).resolved_time) == (60, 10.0)


async def test_forgetting_drops_eras_that_no_segment_needs() -> None:
    etcd = MemoryEtcd()
    log = writer(etcd)
    await log.take_over(Ts(0))
    for _ in range(3):
        await log.append(written(log), is_complete=True, resolved_time=1.0)
        await log.renew()
    assert [era.first_seq for era in log.head.eras] == [1, 2, 3, 4]
    await log.forget(first_seq=3, removed_ts=Ts(20))
    assert [era.first_seq for era in stored(etcd).eras] == [3, 4]
    assert (stored(etcd).first_seq, stored(etcd).removed_ts) == (3, 20)


async def test_a_log_shares_no_epoch_with_an_earlier_one_of_the_same_name() -> None:
    etcd = MemoryEtcd()
    log = LogWriter(MetaHeadStore(MemoryClient(etcd), _KEY), capture=CaptureId("a"), epoch_floor=40)
    await log.take_over(Ts(0))
    assert stored(etcd).epoch == 41
    assert stored(etcd).eras == (Era(epoch=41, first_seq=1),)


async def test_who_wrote_for_a_changefeed_that_is_gone_is_fenced_also_when_another_has_its_name() -> None:
    etcd = MemoryEtcd()
    created = etcd.txn([], [Put(_INFO, b"first")]).revision
    guard = Compare(_INFO, Target.CREATE_REVISION, created)
    log = LogWriter(MetaHeadStore(MemoryClient(etcd), _KEY, guard=guard), capture=CaptureId("a"))
    await log.take_over(Ts(5))
    etcd.txn([], [Delete(_INFO), Delete(str(_KEY))])
    with pytest.raises(LogFencedError, match="removed"):
        await log.take_over(Ts(5))
    etcd.txn([], [Put(_INFO, b"second")])
    with pytest.raises(LogFencedError, match="removed"):
        await log.take_over(Ts(5))
    assert etcd.get(str(_KEY)) is None


async def test_schema_changes_are_divided_by_bytes_and_by_number() -> None:
    etcd = holding()
    log = writer(etcd)
    await log.take_over(Ts(0))
    found = [large_change(ts) for ts in range(1, 51)] + [DdlRecord(ts=Ts(ts)) for ts in range(51, 200)]
    await log.append(written(log, resolved=500), is_complete=True, resolved_time=1.0, ddl=found)
    assert await log.read_ddl() == found
    assert stored(etcd).resolved_ts == 500


@pytest.mark.parametrize("lost", range(4))
async def test_the_head_never_passes_a_schema_change_that_is_not_stored(lost: int) -> None:
    """Answers are lost, and the writer ends, between the parts."""
    etcd, fault = holding(), Outage()
    log = writer(etcd, fault=fault)
    await log.take_over(Ts(0))
    found = [large_change(ts) for ts in range(1, 121)]
    calls = 0
    before = fault.after

    async def after(call: str) -> None:
        nonlocal calls
        calls += call == "txn"
        ddl = etcd.get_prefix(ddl_prefix("c", "default", ChangefeedId("feed"))).items
        assert stored(etcd).resolved_ts == 0 or len(ddl) == len(found), "the head is last"
        if call == "txn" and calls == lost:
            fault.lost.append("txn")
        await before(call)

    fault.after = after  # type: ignore[method-assign]
    await log.append(written(log, resolved=500), is_complete=True, resolved_time=1.0, ddl=found)
    assert await log.read_ddl() == found


@pytest.mark.matrix
async def test_ten_thousand_tables_are_held_at_one_position() -> None:
    etcd = holding()
    log = writer(etcd)
    await log.take_over(Ts(0))
    await log.append(written(log, resolved=500), is_complete=True, resolved_time=1.0, ddl=[held_at(300, 10_000)])
    assert await log.read_ddl() == [held_at(300, 10_000)]
    assert stored(etcd).resolved_ts == 500


async def test_while_older_captures_run_so_many_wait_for_them() -> None:
    etcd = holding(Feature.PACKED - 1)
    log = writer(etcd)
    await log.take_over(Ts(0))
    with pytest.raises(HoldTooEarlyError, match="must use format 10, and uses 8"):
        await log.append(written(log, resolved=500), is_complete=True, resolved_time=1.0, ddl=[held_at(300, 10_000)])
    assert (await log.read_ddl(), stored(etcd).resolved_ts) == ([], 0)
    await log.append(written(log, resolved=500), is_complete=True, resolved_time=1.0, ddl=[held_at(300, 500)])
    [item] = etcd.get_prefix(ddl_prefix("c", "default", ChangefeedId("feed"))).items
    assert item.value == held_at(300, 500).encode(), "as they read it"


def held_at(ts: int, count: int) -> DdlRecord:
    tables = [TableRecord.new(n, "public", f"customer_orders_{n:06}", key=("id",)) for n in range(count)]
    why = "it is unlogged: its rows are in no log; make it LOGGED, then copy it again"
    holds = (
        TableChange(kind=SchemaChangeKind.HOLD, table_id=one.table_id, table=one, reason=f"{one.name}: {why}")
        for one in tables
    )
    return DdlRecord(ts=Ts(ts), changes=tuple(holds))


def large_change(ts: int) -> DdlRecord:
    """40 KB."""
    hold = TableChange(kind=SchemaChangeKind.HOLD, table_id=ts, reason="x" * 40_000)
    return DdlRecord(ts=Ts(ts), changes=(hold,))


def holding(number: int = NEWEST) -> MemoryEtcd:
    """A cluster whose captures all know held tables."""
    etcd = MemoryEtcd()
    etcd.txn([], [Put(str(FormatKey("c")), ClusterFormat(number=number).encode())])
    return etcd

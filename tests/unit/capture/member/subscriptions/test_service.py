"""Subscriptions: where a reader begins and continues, when it is refused, and which files it is given."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from agent.rows.batches import SegmentRef
from agent.rows.schema import TableSchema
from capture.api.subscriptions import AdvanceAsked, Begin, LogAsked, LogPart, SubscriptionAsked
from capture.errors import (
    ChangefeedNotFoundError,
    JobRefusedError,
    PositionGoneError,
    SubscriptionNotFoundError,
    TableNotFoundError,
)
from capture.member.services import LogRead
from capture.member.subscriptions import service
from capture.member.subscriptions.service import SubscriptionService
from reactor import keys
from reactor.errors import FormatError, NotOwnerError, OwnerNotFoundError
from reactor.ids import ChangefeedId, Ts
from reactor.records.changefeed import ChangefeedInfo, SealedUri, Unit, UnitRecord, UnitStage
from reactor.records.log_head import LogHead
from reactor.records.subscription import Subscription
from reactor.records.tables.schema_change import DdlRecord, SchemaChangeKind, TableChange
from reactor.records.tables.table import TableRecord
from reactor.state import ClusterState
from reactor.store.memory import MemoryClient, MemoryEtcd
from reactor.store.port import Delete, Put
from tests.patience import HANG_S

FEED = ChangefeedId("feed")
URI = SealedUri(masked="x", sealed="x")
TABLE = TableRecord(table_id=7, schema_name="public", name="t", key=("id",), start_ts=Ts(100))
OTHER = TableRecord(table_id=8, schema_name="public", name="u", key=("id",), start_ts=Ts(100))
HEAD = LogHead(first_seq=1, last_seq=3, complete_seq=3, resolved_ts=Ts(400), removed_ts=Ts(50))
SEGMENTS = tuple(
    SegmentRef(f"/log/{seq}", seq, 1, Ts(100 * seq + 1), Ts(100 * seq + 90), Ts(100 * seq + 100), 10, tables)
    for seq, tables in ((1, frozenset({7, 8})), (2, frozenset({7})), (3, frozenset({8})))
)


class Bed:
    """The owner's capture with one changefeed of two tables; every write is seen at once."""

    def __init__(self) -> None:
        self.etcd, self.state = MemoryEtcd(), ClusterState("c")
        self.state.format = 7
        self.candidacy = SimpleNamespace(is_owner=True)
        self.client = SimpleNamespace(get=MemoryClient(self.etcd).get, txn=self.txn)
        self.reads, self.has_read = 0, anyio.Event()
        self.segments = SEGMENTS
        self.is_over, self.waiting, self._changed = False, anyio.Event(), anyio.Event()
        capture: Any = SimpleNamespace(membership=self, data_plane=self)
        self.service = SubscriptionService(capture)
        self.put(keys.InfoKey("c", "default", FEED), ChangefeedInfo(id=FEED, source=URI, sink=URI).encode())
        self.unit()
        self.put(keys.LogKey("c", "default", FEED, "main"), HEAD.encode())

    def unit(self, *tables: TableRecord, lost_ts: int = 0) -> None:
        unit = UnitRecord(unit=Unit.SYNC, stage=UnitStage.RUNNING, tables=tables or (TABLE, OTHER), lost_ts=Ts(lost_ts))
        self.put(keys.UnitKey("c", "default", FEED, "main"), unit.encode())

    def put(self, key: keys.Key, value: bytes) -> None:
        self.store(key, value)()

    def store(self, key: keys.Key, value: bytes) -> Callable[[], None]:
        """Write as another capture does; return what lets this one see it."""
        revision = self.etcd.txn([], [Put(str(key), value)]).revision

        def see() -> None:
            self.state.update(str(key), value, mod_revision=revision, create_revision=self._created(str(key)))
            self.tick()

        return see

    async def wait_change(self) -> bool:
        self.waiting.set()
        await self._changed.wait()
        return not self.is_over

    def tick(self) -> None:
        self._changed.set()
        self._changed, self.waiting = anyio.Event(), anyio.Event()

    def _created(self, key: str) -> int:
        found = self.etcd.get(key)
        assert found is not None
        return found.create_revision

    async def txn(self, compares: Any, operations: Any) -> Any:
        done = await MemoryClient(self.etcd).txn(compares, operations)
        for operation in operations if done.succeeded else ():
            match operation:
                case Put(key=key, value=value):
                    self.state.update(key, value, mod_revision=done.revision, create_revision=self._created(key))
                case Delete(key=key):
                    self.state.update(key, None, mod_revision=done.revision)
        self.tick()
        return done

    async def read_log(self, info: ChangefeedInfo, source: str, read: LogRead) -> tuple[SegmentRef, ...]:
        self.reads += 1
        self.has_read.set()
        return tuple(item for item in self.segments if item.last_ts > read.from_ts and item.first_ts <= read.to_ts)

    async def table_schema(self, info: ChangefeedInfo, table: TableRecord) -> TableSchema:
        return TableSchema(table.table_id, table.schema_name, table.name, ())

    async def open(self, **fields: Any) -> Any:
        return await self.service.open(FEED, SubscriptionAsked(**({"name": "r", "table": "public.t"} | fields)))


@pytest.fixture
async def bed() -> Bed:
    return Bed()


@pytest.mark.parametrize(
    ("begin", "ts"), [(Begin.LATEST, 400), (Begin.EARLIEST, 100), (250, 250), (100, 100), (400, 400)]
)
async def test_a_new_reader_begins_where_it_wishes(bed: Bed, begin: Begin | int, ts: int) -> None:
    assert (await bed.open(begin=begin)).ts == ts


async def test_nothing_is_opened_of_a_changefeed_that_is_removed_meanwhile(bed: Bed, monkeypatch: Any) -> None:
    async def table_schema(info: ChangefeedInfo, table: TableRecord) -> TableSchema:
        await bed.txn([], [Delete(str(keys.InfoKey("c", "default", FEED)))])
        return TableSchema(table.table_id, "public", "t", ())

    monkeypatch.setattr(bed, "table_schema", table_schema)
    with pytest.raises(ChangefeedNotFoundError):
        await bed.open()
    assert not bed.etcd.get_prefix(str(keys.SubscriptionKey("c", "default", FEED, ""))).items


@pytest.mark.parametrize("begin", [99, 401, 0])
async def test_a_reader_never_begins_where_changes_are_missing(bed: Bed, begin: int) -> None:
    with pytest.raises(PositionGoneError):
        await bed.open(begin=begin)
    assert await bed.service.list(FEED) == []


async def test_a_reader_continues_behind_what_it_has_reported(bed: Bed) -> None:
    first = await bed.open(begin=Begin.EARLIEST)
    await bed.service.advance(FEED, "r", AdvanceAsked(session=first.session, ts=300))
    assert (await bed.open(begin=Begin.EARLIEST)).ts == 300
    assert (await bed.open(at_ts=200)).ts == 200, "its own checkpoint wins"


async def test_a_position_never_goes_back_by_reporting(bed: Bed) -> None:
    first = await bed.open(begin=300)
    assert (await bed.service.advance(FEED, "r", AdvanceAsked(session=first.session, ts=200))).ts == 300


async def test_a_position_that_the_log_has_not_reached_is_not_taken(bed: Bed) -> None:
    """The changes up to it would be removed before the reader has seen them."""
    first = await bed.open(begin=300)
    with pytest.raises(PositionGoneError, match=r"401 is past the end of the log \(400\);"):
        await bed.service.advance(FEED, "r", AdvanceAsked(session=first.session, ts=401))
    assert (await bed.open()).ts == 300


async def test_the_reader_that_opened_last_is_the_only_one(bed: Bed) -> None:
    first, second = await bed.open(begin=200), await bed.open(begin=200)
    with pytest.raises(SubscriptionNotFoundError, match="opened by another reader"):
        await bed.service.read(FEED, "r", LogAsked(session=first.session, after_ts=200))
    with pytest.raises(SubscriptionNotFoundError, match="opened by another reader"):
        await bed.service.advance(FEED, "r", AdvanceAsked(session=first.session, ts=300))
    assert (await bed.service.read(FEED, "r", LogAsked(session=second.session, after_ts=200))).to_ts == 400


def place(*parts: Any) -> Any:
    return "c", "default", FEED, *parts


class Elsewhere:
    """What other captures have done while this one was stopped, and a reader knows."""

    def __init__(self, bed: Bed, opened: Any) -> None:
        self.bed = bed
        self.session = opened.session

    def log(self) -> Callable[[], None]:
        """The log is longer, and the reader has read it."""
        return self.bed.store(keys.LogKey(*place("main")), HEAD.with_(resolved_ts=Ts(500)).encode())

    def reader(self) -> Callable[[], None]:
        """The reader was opened again."""
        stored = self.bed.state.changefeeds[FEED].subscriptions["r"]
        self.session = "elsewhere"
        return self.bed.store(keys.SubscriptionKey(*place("r")), stored.with_(session="elsewhere").encode())

    def table(self) -> Callable[[], None]:
        """The table has joined."""
        unit = UnitRecord(unit=Unit.SYNC, stage=UnitStage.RUNNING, tables=(TABLE, OTHER))
        return self.bed.store(keys.UnitKey(*place("main")), unit.encode())


@pytest.mark.parametrize("what", ["log", "reader", "table"])
async def test_a_capture_that_was_stopped_refuses_no_reader(bed: Bed, what: str) -> None:
    """It sees what the reader knows already before it answers."""
    elsewhere = Elsewhere(bed, await bed.open(begin=300))
    if what == "table":
        bed.unit(OTHER)
    see = getattr(elsewhere, what)()
    after = 450 if what == "log" else 300
    answers: list[LogPart] = []

    async def read() -> None:
        answers.append(await bed.service.read(FEED, "r", LogAsked(session=elsewhere.session, after_ts=after)))

    with anyio.fail_after(HANG_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            await bed.waiting.wait()
            assert not answers
            see()
    [part] = answers
    assert (part.from_ts, part.to_ts) == (after, 500 if what == "log" else 400)


async def test_a_capture_that_is_owner_no_more_sends_the_reader_away(bed: Bed) -> None:
    opened = await bed.open(begin=300)
    see = bed.store(keys.LogKey(*place("main")), HEAD.with_(resolved_ts=Ts(500)).encode())

    async def read() -> None:
        with pytest.raises(NotOwnerError):
            await bed.service.read(FEED, "r", LogAsked(session=opened.session, after_ts=450))

    with anyio.fail_after(HANG_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            await bed.waiting.wait()
            bed.candidacy.is_owner = False
            see()


async def test_a_reader_gets_the_files_of_its_table(bed: Bed) -> None:
    opened = await bed.open(begin=Begin.EARLIEST)
    part = await bed.service.read(FEED, "r", LogAsked(session=opened.session, after_ts=100))
    assert ([item.seq for item in part.segments], part.from_ts, part.to_ts) == ([1, 2], 100, 400)
    part = await bed.service.read(FEED, "r", LogAsked(session=opened.session, after_ts=100, max_bytes=5))
    assert ([item.seq for item in part.segments], part.to_ts, part.newest_ts) == ([1], 200, 400)
    part = await bed.service.read(FEED, "r", LogAsked(session=opened.session, after_ts=100, to_ts=150))
    assert ([item.seq for item in part.segments], part.to_ts) == ([1], 150)
    part = await bed.service.read(FEED, "r", LogAsked(session=opened.session, after_ts=400))
    assert (part.segments, part.to_ts) == ((), 400)


async def test_a_reader_waits_for_a_change_of_its_table(bed: Bed) -> None:
    opened = await bed.open(begin=300)
    asked = LogAsked(session=opened.session, after_ts=300, wait_seconds=20.0)
    parts: list[LogPart] = []

    async def read() -> None:
        parts.append(await bed.service.read(FEED, "r", asked))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        await bed.has_read.wait()
        assert parts == [], "the log has moved on, without a change of the table"
        bed.segments += (SegmentRef("/log/4", 4, 1, Ts(450), Ts(460), Ts(500), 10, frozenset({7})),)
        head = HEAD.with_(last_seq=4, complete_seq=4, resolved_ts=Ts(500))
        bed.put(keys.LogKey("c", "default", FEED, "main"), head.encode())
    assert ([item.seq for item in parts[0].segments], parts[0].to_ts) == ([4], 500)
    short = LogAsked(session=opened.session, after_ts=470, wait_seconds=0.05)
    part = await bed.service.read(FEED, "r", short)
    assert (part.segments, part.to_ts) == ((), 500)


async def test_a_log_without_new_segments_is_not_looked_at_again(bed: Bed) -> None:
    """It moves on with every heartbeat of the source, under each waiting reader."""
    opened, parts = await bed.open(begin=300), list[LogPart]()

    async def read() -> None:
        asked = LogAsked(session=opened.session, after_ts=300, wait_seconds=20.0)
        parts.append(await bed.service.read(FEED, "r", asked))

    def move(**changed: Any) -> None:
        bed.put(keys.LogKey("c", "default", FEED, "main"), HEAD.with_(**changed).encode())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        for ts in (500, 600):
            await bed.waiting.wait()
            move(resolved_ts=Ts(ts))
        await bed.waiting.wait()
        assert bed.reads == 1
        bed.segments += (SegmentRef("/log/4", 4, 1, Ts(650), Ts(660), Ts(700), 10, frozenset({7})),)
        move(resolved_ts=Ts(600), last_seq=4)  # its last transaction continues in the next segment
        await bed.waiting.wait()
        move(resolved_ts=Ts(700), last_seq=4, complete_seq=4)
    assert ([item.seq for item in parts[0].segments], parts[0].to_ts, bed.reads) == ([4], 700, 2)


async def test_a_waiting_reader_ends_with_the_membership(bed: Bed) -> None:
    opened = await bed.open(begin=300)

    async def end() -> None:
        await bed.waiting.wait()
        bed.is_over = True
        bed.tick()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(end)
        with pytest.raises(OwnerNotFoundError, match="try again"):
            await bed.service.read(FEED, "r", LogAsked(session=opened.session, after_ts=400, wait_seconds=20.0))


async def test_a_reader_behind_the_log_is_refused(bed: Bed) -> None:
    opened = await bed.open(begin=200)
    asked = LogAsked(session=opened.session, after_ts=200)
    bed.put(keys.LogKey("c", "default", FEED, "main"), HEAD.with_(removed_ts=Ts(300)).encode())
    with pytest.raises(PositionGoneError, match="it begins at 300"):
        await bed.service.read(FEED, "r", asked)
    bed.put(keys.LogKey("c", "default", FEED, "main"), HEAD.encode())
    bed.unit(TABLE.with_(start_ts=Ts(350)), OTHER)
    with pytest.raises(PositionGoneError, match="it begins at 350"):
        await bed.service.read(FEED, "r", asked)
    bed.unit(TABLE, OTHER, lost_ts=390)
    with pytest.raises(PositionGoneError, match="it begins at 390"):
        await bed.service.read(FEED, "r", asked)


async def test_a_reader_stops_where_the_source_cannot_follow_the_table(bed: Bed) -> None:
    opened = await bed.open(begin=200)
    hold = TableChange(kind=SchemaChangeKind.HOLD, table_id=7, table=TABLE, reason="the log does not say; resync it")
    bed.put(keys.DdlKey("c", "default", FEED, 301), DdlRecord(ts=Ts(301), changes=(hold,)).encode())
    part = await bed.service.read(FEED, "r", LogAsked(session=opened.session, after_ts=200))
    assert part.to_ts == 300
    with pytest.raises(PositionGoneError, match="the log does not say; resync it"):
        await bed.service.read(FEED, "r", LogAsked(session=opened.session, after_ts=300))


async def test_a_schema_change_that_the_sink_waits_for_holds_up_no_reader(bed: Bed) -> None:
    """A table that its sink cannot change may be held for days; the log has its changes."""
    opened = await bed.open(begin=200)
    altered = TableChange(kind=SchemaChangeKind.ALTER, table_id=7, table=TABLE)
    bed.put(keys.DdlKey(*place(Ts(301))), DdlRecord(ts=Ts(301), changes=(altered,)).encode())
    assert (await bed.service.read(FEED, "r", LogAsked(session=opened.session, after_ts=200))).to_ts == 400


@pytest.mark.parametrize("first", [7, 9])
@pytest.mark.parametrize("name", ["old", ""])
async def test_a_name_is_that_of_the_table_which_has_it_at_the_source(bed: Bed, first: int, name: str) -> None:
    """Another one waits to be renamed, or dropped, at the sink."""
    taker = TABLE.with_(table_id=9, location="public/t!t9")
    bed.unit(*(sorted((TABLE, taker), key=lambda table: table.table_id != first)))
    renamed = TableChange(kind=SchemaChangeKind.RENAME, table_id=7, table=TABLE.named("public", name))
    change = renamed if name else TableChange(kind=SchemaChangeKind.DROP, table_id=7)
    bed.put(keys.DdlKey(*place(Ts(350))), DdlRecord(ts=Ts(350), changes=(change,)).encode())
    await bed.open()
    assert bed.state.changefeeds[FEED].subscriptions["r"].table_id == 9


@pytest.mark.parametrize("is_applied", [False, True])
async def test_a_reader_does_not_wait_for_a_table_that_another_has_taken_the_name_of(
    bed: Bed, is_applied: bool
) -> None:
    """As after an online schema change: what is written to the table comes no more from the one that is read."""
    opened = await bed.open(begin=200)
    old, taker = TABLE.named("public", "t_old"), TABLE.with_(table_id=9)
    if is_applied:
        bed.unit(old, taker)
    else:
        bed.unit(TABLE, taker)
        renamed = TableChange(kind=SchemaChangeKind.RENAME, table_id=7, table=old)
        bed.put(keys.DdlKey(*place(Ts(350))), DdlRecord(ts=Ts(350), changes=(renamed,)).encode())
    asked = LogAsked(session=opened.session, after_ts=200)
    assert (await bed.service.read(FEED, "r", asked)).to_ts == 400, "all that it has comes first"
    with pytest.raises(PositionGoneError, match=r"public\.t is another table now, .* was read is public\.t_old"):
        await bed.service.read(FEED, "r", LogAsked(session=opened.session, after_ts=400))
    bed.unit(old)
    assert (await bed.service.read(FEED, "r", LogAsked(session=opened.session, after_ts=400))).to_ts == 400


async def test_columns_are_those_of_the_name_that_the_table_has_by_now(bed: Bed) -> None:
    renamed = TableChange(kind=SchemaChangeKind.RENAME, table_id=7, table=TABLE.named("aside", "u"))
    bed.put(keys.DdlKey(*place(Ts(350))), DdlRecord(ts=Ts(350), changes=(renamed,)).encode())
    columns = TableSchema.from_json((await bed.open()).columns)
    assert (columns.table_id, columns.qualified_name) == (7, "aside.u")


async def test_what_is_not_there_is_named(bed: Bed) -> None:
    with pytest.raises(TableNotFoundError, match=r"no table public.x; it has public.t, public.u"):
        await bed.open(table="public.x")
    with pytest.raises(ChangefeedNotFoundError):
        await bed.service.open("other", SubscriptionAsked(name="r", table="public.t"))
    await bed.open()
    with pytest.raises(PositionGoneError, match=r"is of public.t, not of public.u"):
        await bed.open(table="public.u")


async def test_a_cluster_with_older_captures_has_no_subscriptions(bed: Bed) -> None:
    bed.state.format = 6
    with pytest.raises(FormatError, match="a subscription needs format 7"):
        await bed.open()


async def test_only_the_owner_answers(bed: Bed) -> None:
    bed.candidacy.is_owner = False
    with pytest.raises(NotOwnerError):
        await bed.open()


async def test_a_closed_subscription_holds_nothing(bed: Bed) -> None:
    opened = await bed.open()
    await bed.service.close(FEED, "r")
    assert await bed.service.list(FEED) == []
    await bed.service.close(FEED, "r")
    with pytest.raises(SubscriptionNotFoundError):
        await bed.service.read(FEED, "r", LogAsked(session=opened.session, after_ts=400))


async def test_requests_renew_a_position_in_time(bed: Bed) -> None:
    opened = await bed.open(expires_seconds=60.0)
    key = keys.SubscriptionKey("c", "default", FEED, "r")
    stored = bed.state.changefeeds[FEED].subscriptions["r"]
    worn = stored.with_(expires_at=stored.expires_at - 30.0)
    bed.put(key, worn.encode())
    await bed.service.read(FEED, "r", LogAsked(session=opened.session, after_ts=400))
    found = Subscription.decode(bed.state.raw[str(key)].value, key=str(key))
    assert found.expires_at > worn.expires_at


async def test_a_new_reader_takes_the_place_of_one_that_has_expired(bed: Bed, monkeypatch: Any) -> None:
    """Two hundred readers that ended without a word kept everybody out until somebody closed them by hand."""
    monkeypatch.setattr(service, "_COUNT_MAX", 3)
    now = [1_000.0]
    monkeypatch.setattr("time.time", lambda: now[0])
    for name, seconds in (("a", 300), ("b", 100), ("c", 200)):
        await bed.open(name=name, expires_seconds=seconds)
    with pytest.raises(JobRefusedError, match="has 3 subscriptions; close some"):
        await bed.open(name="d")
    now[0] += 250
    assert (await bed.open(name="c")).name == "c", "an expired reader continues as long as its place is not needed"
    assert (await bed.open(name="d")).name == "d"
    assert sorted(one.name for one in await bed.service.list(FEED)) == ["a", "c", "d"]
    with pytest.raises(JobRefusedError):
        await bed.open(name="e")


async def test_a_reader_that_came_back_keeps_its_place(bed: Bed, monkeypatch: Any) -> None:
    monkeypatch.setattr(service, "_COUNT_MAX", 2)
    now = [1_000.0]
    monkeypatch.setattr("time.time", lambda: now[0])
    for name in "ab":
        await bed.open(name=name, expires_seconds=100)
    now[0] += 200
    back = bed.state.changefeeds[FEED].subscriptions["a"].with_(expires_at=now[0] + 100)
    see = bed.store(keys.SubscriptionKey("c", "default", FEED, "a"), back.encode())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: bed.open(name="d"))
        while not bed.waiting.is_set():
            await anyio.lowlevel.checkpoint()
        see()
    assert sorted(one.name for one in await bed.service.list(FEED)) == ["a", "d"]

"""Signals: each row of a source's signal table is handled once, by the owner, and says what became of it in the log."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from agent.errors import SourceUnreachableError
from agent.ports.source import Signal
from capture.api import port as views
from capture.api.access import Caller
from capture.errors import JobRefusedError
from capture.member.schedules.signals import ID_MAX, LOOK_S, ROWS_MAX, SignalTables, handled_signals
from reactor import keys
from reactor.errors import NotOwnerError, StoreError, WeirError
from reactor.ids import ChangefeedId
from reactor.records.changefeed import (
    ChangefeedConfig,
    ChangefeedInfo,
    FeedState,
    SealedUri,
    Unit,
    UnitRecord,
    UnitStage,
)
from reactor.records.schedules import HandledSignals
from reactor.state import ClusterState
from reactor.store.memory import MemoryClient, MemoryEtcd
from reactor.store.port import Delete, Put

pytestmark = pytest.mark.looptime

FEED = ChangefeedId("feed")
URI = SealedUri(masked="x", sealed="x")
RESYNC = Signal("1", "resync", "public.t")
TABLE = "public.weir_signal"


class Bed:
    """A capture with one changefeed, and everything that signals ask."""

    def __init__(self, *rows: Signal, **config: Any) -> None:
        self.etcd, self.state = MemoryEtcd(), ClusterState("c")
        self.client = MemoryClient(self.etcd)
        self.rows: list[Signal] = list(rows)
        self.asked: list[tuple[Any, ...]] = []
        self.trail: list[str] = []
        self.trouble: WeirError | None = None
        self.looked: list[ChangefeedId] = []
        self.silent: set[ChangefeedId] = set()
        self.refusal: WeirError | None = None
        self.candidacy = SimpleNamespace(is_owner=True)
        settings = ChangefeedConfig(**({"signal_table": "public.weir_signal"} | config))
        self.info = ChangefeedInfo(id=FEED, source=URI, sink=URI, config=settings, state=FeedState.NORMAL)
        self.put(keys.InfoKey("c", "default", FEED), self.info.encode())
        self.put(keys.UnitKey("c", "default", FEED, "main"), _unit(Unit.SYNC))
        self.start()

    def start(self) -> None:
        """In another process."""
        capture: Any = SimpleNamespace(membership=self)
        self.signals_of = SignalTables(capture, self, self, self)

    def put(self, key: keys.Key, value: bytes) -> None:
        self.etcd.txn([], [Put(str(key), value)])
        self.see()

    def see(self) -> None:
        for item in self.etcd.get_prefix("/weir/c/").items:
            self.state.update(
                item.key, item.value, mod_revision=item.mod_revision, create_revision=item.create_revision
            )

    async def signals(self, info: ChangefeedInfo, limit: int) -> Sequence[Signal]:
        self.looked.append(info.id)
        if info.id in self.silent:
            await anyio.sleep_forever()
        if self.trouble is not None:
            raise self.trouble
        return self.rows[:limit]

    async def resync_table(self, changefeed_id: str, table: str, *, rows_per_second: int | None = None) -> None:
        self._ask("resync", changefeed_id, table, rows_per_second)

    async def repair(self, changefeed_id: str, asked: views.RepairAsked) -> None:
        self._ask("repair", changefeed_id, *asked.tables, asked.where)

    async def pause_table(self, changefeed_id: str, table: str) -> None:
        self._ask("pause", changefeed_id, table)

    async def resume_table(self, changefeed_id: str, table: str) -> None:
        self._ask("resume", changefeed_id, table)

    def _ask(self, *what: Any) -> None:
        self.asked.append(what)
        if self.refusal is not None:
            raise self.refusal

    async def begin(self, caller: Caller, method: str, path: str, source: str, *, detail: str = "") -> str:
        self.trail.append(f"{caller.name}: {method} {path} {detail}")
        return path

    async def end(self, entry: str, status: int) -> None:
        self.trail.append(str(status))

    async def run(self, looks: int = 2) -> list[tuple[Any, ...]]:
        for _ in range(looks):
            with anyio.move_on_after(LOOK_S + 1):
                await self.signals_of.run()
            self.see()
        return self.asked

    async def begun(self) -> "Bed":
        """The table was looked at once, while it was empty."""
        rows, self.rows = self.rows, []
        await self.run(1)
        self.rows = rows
        return self


async def _unavailable(*_: object) -> None:
    raise StoreError("no answer")


def _unit(unit: Unit) -> bytes:
    return UnitRecord(unit=unit, stage=UnitStage.RUNNING).encode()


async def test_each_row_is_handled_once_and_written_down() -> None:
    where = '{"table": "public.t", "where": "id < 9"}'
    slow = Signal("3", "Resync", '{"table": "public.u", "rows_per_second": 500}')
    bed = await Bed(RESYNC, Signal("2", "resync", where), slow, Signal("4", "pause", "public.t")).begun()
    bed.rows.append(Signal("5", "resume", " public.t "))
    expected = [
        ("resync", FEED, "public.t", None),
        ("repair", FEED, "public.t", "id < 9"),
        ("resync", FEED, "public.u", 500),
        ("pause", FEED, "public.t"),
        ("resume", FEED, "public.t"),
    ]
    assert await bed.run(3) == expected
    assert bed.trail[:2] == ["signal 1 in public.weir_signal: SIGNAL /changefeeds/feed/tables/resync public.t", "200"]
    bed.start()
    assert await bed.run() == expected, "another capture has become owner"
    bed.rows = [Signal("6", "pause", "public.t")]
    await bed.run()
    assert bed.state.changefeeds[FEED].signals == HandledSignals(ids=("6",), table=TABLE), (
        "those that are gone are forgotten"
    )


async def test_rows_of_before_ask_for_nothing() -> None:
    bed = Bed(RESYNC)
    assert await bed.run() == []
    bed.rows.append(Signal("0", "pause", "public.t"))
    assert await bed.run() == [("pause", FEED, "public.t")], "ids that appear late are seen"


async def test_all_rows_that_follow_the_creation_are_handled() -> None:
    bed = Bed(RESYNC, Signal("2", "pause", "public.t"))
    created = handled_signals(bed.info, {"1"})
    bed.put(keys.SignalsKey("c", "default", FEED), created.encode())
    assert await bed.run() == [("pause", FEED, "public.t")]


@pytest.mark.parametrize("is_same_process", [True, False])
async def test_rows_of_another_table_ask_for_nothing_before_it_is_looked_at(is_same_process: bool) -> None:
    bed = await Bed(RESYNC).begun()
    assert len(await bed.run()) == 1
    changed = bed.info.with_(config=bed.info.config.with_(signal_table="public.other"))
    bed.put(keys.InfoKey("c", "default", FEED), changed.encode())
    if not is_same_process:
        bed.start()
    bed.rows = [Signal("7", "pause", "public.t"), Signal("8", "pause", "public.t")]
    assert len(await bed.run()) == 1
    bed.rows.append(RESYNC)
    assert len(await bed.run()) == 2, "an id of the other table is another row"


async def test_the_record_of_an_earlier_version_counts() -> None:
    bed = Bed(RESYNC, Signal("2", "pause", "public.t"))
    bed.put(keys.SignalsKey("c", "default", FEED), b'{"ids": ["1", "2"]}')
    assert await bed.run() == []
    assert bed.state.changefeeds[FEED].signals == HandledSignals(ids=("1", "2"), table=TABLE)


async def test_nothing_is_forgotten_that_could_not_be_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    bed = Bed()
    monkeypatch.setattr(bed.client, "txn", _unavailable)
    await bed.run(1)
    bed.rows = [RESYNC]
    assert len(await bed.run(3)) == 1


async def test_what_is_asked_for_during_the_snapshot_is_done_behind_it() -> None:
    bed = Bed()
    bed.put(keys.UnitKey("c", "default", FEED, "main"), _unit(Unit.DUMP))
    await bed.run()
    bed.rows.append(RESYNC)
    assert await bed.run() == []
    bed.put(keys.UnitKey("c", "default", FEED, "main"), _unit(Unit.SYNC))
    assert len(await bed.run()) == 1


@pytest.mark.parametrize(
    "row",
    [
        Signal("1", "resync", ""),
        Signal("1", "resync", "t"),
        Signal("1", "resync", "{"),
        Signal("1", "resync", '{"table": "public.t", "where": 1}'),
        Signal("1", "resync", '{"table": "public.t", "wher": "id < 9"}'),
        Signal("1", "resync", '{"table": "public.t", "rows_per_second": 99}'),
        Signal("1", "resync", '{"table": "public.t", "where": "id < 9", "rows_per_second": 99}'),
        Signal("1", "drop", "public.t"),
        Signal("1", "", "public.t"),
        Signal("1", "resync", "public." + "x" * 600),
    ],
)
async def test_what_means_nothing_is_done_once_and_refused(row: Signal) -> None:
    bed = await Bed(row, Signal("2", "pause", "public.t")).begun()
    assert await bed.run(3) == [("pause", FEED, "public.t")]
    assert bed.trail[1::2] == ["409", "200"]


async def test_a_refusal_is_written_down_and_keeps_no_other_back() -> None:
    bed = await Bed(RESYNC, Signal("2", "pause", "public.t")).begun()
    bed.refusal = JobRefusedError("changefeed feed has no table public.t")
    assert len(await bed.run(3)) == 2
    assert bed.trail[1::2] == ["409", "409"]


async def test_the_next_owner_continues() -> None:
    bed = await Bed(RESYNC).begun()
    bed.refusal = NotOwnerError("another is the owner")
    assert len(await bed.run()) == 2
    bed.refusal = None
    assert len(await bed.run(3)) == 3


async def test_a_table_that_cannot_be_read_or_is_too_long_waits() -> None:
    bed = await Bed(RESYNC).begun()
    bed.trouble = SourceUnreachableError("down")
    assert await bed.run() == []
    bed.trouble, bed.rows = None, [RESYNC, *(Signal(str(id), "pause", "public.t") for id in range(10, 10 + ROWS_MAX))]
    assert await bed.run() == []
    bed.rows = [RESYNC, Signal("9" * (ID_MAX + 1), "pause", "public.t")]
    assert await bed.run() == [], "ids are stored"
    bed.rows = [RESYNC]
    assert len(await bed.run()) == 1


async def test_a_source_that_does_not_answer_delays_no_other() -> None:
    bed = Bed()
    for id in ("a", "b"):
        info = ChangefeedInfo(id=ChangefeedId(id), source=URI, sink=URI, config=bed.info.config, state=FeedState.NORMAL)
        bed.put(keys.InfoKey("c", "default", info.id), info.encode())
        bed.put(keys.UnitKey("c", "default", info.id, "main"), _unit(Unit.SYNC))
    bed.silent = {ChangefeedId("a"), FEED}
    with anyio.move_on_after(3 * LOOK_S + 1):
        await bed.signals_of.run()
    assert sorted(bed.looked) == ["a", "b", "b", "b", "feed"], "the others are asked once, and again when they answer"


@pytest.mark.parametrize("change", [{"state": FeedState.STOPPED}, {"config": ChangefeedConfig()}])
async def test_only_changefeeds_that_run_and_have_such_a_table_are_asked(change: dict[str, Any]) -> None:
    bed = await Bed(RESYNC).begun()
    bed.put(keys.InfoKey("c", "default", FEED), bed.info.with_(**change).encode())
    assert await bed.run() == []


async def test_only_the_owner_looks() -> None:
    bed = await Bed(RESYNC).begun()
    bed.candidacy.is_owner = False
    assert await bed.run() == []


async def test_nothing_is_stored_of_a_changefeed_that_is_gone() -> None:
    bed = await Bed(RESYNC).begun()
    bed.etcd.txn(
        [], [Delete(str(keys.InfoKey("c", "default", FEED))), Delete(str(keys.SignalsKey("c", "default", FEED)))]
    )
    with anyio.move_on_after(LOOK_S + 1):
        await bed.signals_of.run()
    assert not bed.etcd.get_prefix(str(keys.SignalsKey("c", "default", FEED))).items

"""Cleaning up after a removed changefeed touches the source only while that very changefeed is still stored."""

import threading
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from anyio import from_thread, to_thread

from agent.feeds.runtime import Feed
from capture.config import ServerSettings
from capture.member.asking import Asking
from capture.member.services import LocalDataPlane, MemberDataPlane
from owner.questions import ApplySchema, ReadPositions, ReleaseSource, RepartitionTable
from reactor import keys
from reactor.ids import CaptureId, ChangefeedId, Ts
from reactor.questions import A, Answered, Ask, Question
from reactor.records.changefeed import ChangefeedInfo, RunningError
from reactor.records.tables.schema_change import DdlRecord
from reactor.records.tables.table import TableRecord
from reactor.state import ClusterState
from reactor.store.memory import MemoryClient, MemoryEtcd
from reactor.store.port import Put
from tests.unit.agent.log_build import name, put

FEED = ChangefeedId("feed")
#: whoever asks this source gets an error
NOBODY = "postgresql://u@127.0.0.1:1/d"


async def answered(life: MemberDataPlane, ask: Ask[A]) -> Answered[A]:
    """As the owner gets it."""
    posted: list[Answered[A]] = []
    async with anyio.create_task_group() as tasks:
        Asking(life, tasks).ask(ask, posted.append)
    [answer] = posted
    return answer


async def clean_up(tmp_path: Path, *, asked_at: float, stored_at: float | None) -> str:
    """The error of a clean-up for the feed created at ``asked_at`` while the one of ``stored_at`` is stored."""
    data_plane = LocalDataPlane(ServerSettings(data_dir=tmp_path))
    client, source, sink = (
        MemoryClient(MemoryEtcd()),
        data_plane.keeper.seal(NOBODY),
        data_plane.keeper.seal("blackhole://"),
    )
    info = ChangefeedInfo(id=FEED, source=source, sink=sink, created_at=asked_at)
    if stored_at is not None:
        await client.put(str(keys.InfoKey("default", "default", FEED)), info.with_(created_at=stored_at).encode())
    life = data_plane.for_member(client, CaptureId("here"), ClusterState("default"))
    answer = await answered(life, Ask(FEED, info, ReleaseSource()))
    return answer.error.message if answer.error else ""


async def test_the_changefeed_that_is_being_removed_is_cleaned_up(tmp_path: Path) -> None:
    assert "cannot be reached" in await clean_up(tmp_path, asked_at=1.0, stored_at=1.0)


@pytest.mark.parametrize("stored_at", [None, 2.0])
async def test_a_late_clean_up_leaves_a_successor_alone(tmp_path: Path, stored_at: float | None) -> None:
    assert await clean_up(tmp_path, asked_at=1.0, stored_at=stored_at) == ""


@pytest.mark.parametrize("is_replaced", [False, True])
async def test_files_go_only_while_their_changefeed_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_replaced: bool
) -> None:
    """A source may take its time to let go; by then the changefeed may be gone, and another of its name be at work."""
    etcd, key = MemoryEtcd(), str(keys.InfoKey("default", "default", FEED))
    data_plane = LocalDataPlane(ServerSettings(data_dir=tmp_path))
    info = ChangefeedInfo(
        id=FEED, source=data_plane.keeper.seal(NOBODY), sink=data_plane.keeper.seal("blackhole://"), created_at=1.0
    )
    log, staged = data_plane.feed(info).log_directory("main"), data_plane.feed(info).manifest("main").directory
    put(log, name(1))
    staged.write("plan.json", lambda file: None)

    class SlowSource:
        numbers_readers = False

        def drop(self) -> None:
            if is_replaced:
                put(log, name(1, epoch=9))
                from_thread.run_sync(etcd.txn, [], [Put(key, info.with_(created_at=2.0).encode())])

    monkeypatch.setattr(Feed, "open_source", lambda self: SlowSource())
    client = MemoryClient(etcd)
    await client.put(key, info.encode())
    life = data_plane.for_member(client, CaptureId("here"), ClusterState("default"))
    assert (await answered(life, Ask(FEED, info, ReleaseSource()))).error is None
    left = log.names() + staged.names()
    assert (str(name(1, epoch=9)) in left) if is_replaced else (left == [])


class Silent:
    """A source that does not answer until it is let go."""

    numbers_readers = False

    def __init__(self) -> None:
        self.asked = 0
        self.answer = threading.Event()
        self.error: Exception | None = None

    def drop(self) -> None:
        self.asked += 1
        self.answer.wait(30)
        if self.error is not None:
            raise self.error


async def test_a_silent_source_is_asked_once_at_a_time_and_holds_no_thread_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Segments are written in threads of the common limiter; clean-ups that are asked for again must not fill it."""
    data_plane, etcd, source = LocalDataPlane(ServerSettings(data_dir=tmp_path)), MemoryEtcd(), Silent()
    uris = {"source": data_plane.keeper.seal(NOBODY), "sink": data_plane.keeper.seal("blackhole://")}
    info = ChangefeedInfo(id=FEED, created_at=1.0, **uris)
    monkeypatch.setattr(Feed, "open_source", lambda self: source)
    await MemoryClient(etcd).put(str(keys.InfoKey("default", "default", FEED)), info.encode())
    life = data_plane.for_member(MemoryClient(etcd), CaptureId("here"), ClusterState("default"))
    posted: list[Answered[None]] = []
    async with anyio.create_task_group() as tasks:
        asking = Asking(life, tasks)
        for _ in range(50):
            asking.ask(Ask(FEED, info, ReleaseSource()), posted.append)
        while not source.asked:
            await anyio.lowlevel.checkpoint()
        assert to_thread.current_default_thread_limiter().borrowed_tokens == 0
        source.answer.set()
    assert source.asked == 1
    texts = [answer.error.message if answer.error else "" for answer in posted]
    assert texts == ["it has not answered the last time yet; it is asked again"] * 49 + [""]
    answer = await answered(life, Ask(FEED, info, ReleaseSource()))
    assert (source.asked, answer.error) == (2, None), "what has ended can be asked again"


async def test_whatever_goes_wrong_in_work_for_the_owner_is_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs beside the owner: what it raised would end the membership."""
    data_plane, etcd, source = LocalDataPlane(ServerSettings(data_dir=tmp_path)), MemoryEtcd(), Silent()
    source.answer.set()
    source.error = ZeroDivisionError("a bug of a driver")
    info = ChangefeedInfo(
        id=FEED, created_at=1.0, source=data_plane.keeper.seal(NOBODY), sink=data_plane.keeper.seal("nothing://x")
    )
    monkeypatch.setattr(Feed, "open_source", lambda self: source)
    key = str(keys.InfoKey("default", "default", FEED))
    client, posted = MemoryClient(etcd), list[Answered[Any]]()
    life = data_plane.for_member(client, CaptureId("here"), ClusterState("default"))
    table = TableRecord(table_id=1, schema_name="public", name="t")
    for value in (info.encode(), b"garbage"):
        await client.put(key, value)
        questions: list[Question[Any]] = [
            ReleaseSource(),
            ReadPositions((table,), (), Ts(1)),
            RepartitionTable(table, (), (), Ts(1), 1),
            ApplySchema(DdlRecord(ts=Ts(2))),
        ]
        posted += [await answered(life, Ask(FEED, info, question)) for question in questions]
    assert all(answer.error for answer in posted)
    assert posted[0].error == RunningError(code="Internal", message="ZeroDivisionError: a bug of a driver")

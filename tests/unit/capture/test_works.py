"""Cleaning up after a removed changefeed touches the source only while that very changefeed is still stored."""

from pathlib import Path

import pytest
from anyio import from_thread

from agent.feed_parts import Feed
from capture.config import ServerSettings
from capture.works import RealWorks
from owner.jobs import UpstreamDropped
from reactor import keys
from reactor.client import Put
from reactor.effects import DropUpstream
from reactor.ids import CaptureId, ChangefeedId
from reactor.memory import MemoryClient, MemoryEtcd
from reactor.records import ChangefeedInfo
from reactor.state import ClusterState
from tests.unit.agent.log_build import name, put

FEED = ChangefeedId("feed")
#: whoever asks this source gets an error
NOBODY = "postgresql://u@127.0.0.1:1/d"


async def clean_up(tmp_path: Path, *, asked_at: float, stored_at: float | None) -> str:
    """The error of a clean-up for the feed created at ``asked_at`` while the one of ``stored_at`` is stored."""
    works = RealWorks(ServerSettings(data_dir=tmp_path))
    client, source, sink = MemoryClient(MemoryEtcd()), works.keeper.seal(NOBODY), works.keeper.seal("blackhole://")
    info = ChangefeedInfo(id=FEED, source=source, sink=sink, created_at=asked_at)
    if stored_at is not None:
        await client.put(str(keys.InfoKey("default", "default", FEED)), info.with_(created_at=stored_at).encode())
    posted: list[UpstreamDropped] = []
    life = works.for_life(client, CaptureId("here"), ClusterState("default"))
    await life.drop_upstream(DropUpstream(FEED, info), posted.append)
    [answer] = posted
    return answer.error


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
    works = RealWorks(ServerSettings(data_dir=tmp_path))
    info = ChangefeedInfo(
        id=FEED, source=works.keeper.seal(NOBODY), sink=works.keeper.seal("blackhole://"), created_at=1.0
    )
    log, staged = works.feed(info).log_directory("main"), works.feed(info).manifest("main").directory
    put(log, name(1))
    staged.write("plan.json", lambda file: None)

    class SlowSource:
        numbers_readers = False

        def drop(self) -> None:
            if is_replaced:
                put(log, name(1, epoch=9))
                from_thread.run_sync(etcd.txn, [], [Put(key, info.with_(created_at=2.0).encode())])

    monkeypatch.setattr(Feed, "open_source", lambda self: SlowSource())
    client, posted = MemoryClient(etcd), list[UpstreamDropped]()
    await client.put(key, info.encode())
    life = works.for_life(client, CaptureId("here"), ClusterState("default"))
    await life.drop_upstream(DropUpstream(FEED, info), posted.append)
    assert [answer.error for answer in posted] == [""]
    left = log.names() + staged.names()
    assert (str(name(1, epoch=9)) in left) if is_replaced else (left == [])

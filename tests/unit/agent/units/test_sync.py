"""The sync unit: what ends it while it writes."""

import threading
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest
from anyio import to_thread

from agent.log import attachments
from agent.log.head import LogWriter
from agent.log.head_store import MetaHeadStore
from agent.log.storage import LogDirectory
from agent.ports.source import OpenStream, Position, StreamRestart
from agent.rows.arena import Arena, LogChunk
from agent.units.sync import SyncUnit
from reactor.ids import CaptureId, ChangefeedId, Ts
from reactor.keys import DdlKey, LogKey
from reactor.records.tables.schema_change import DdlRecord, SchemaChangeKind, TableChange
from reactor.store.memory import MemoryClient
from tests.newest import newest_etcd
from tests.patience import HANG_S

DROP = SchemaChangeKind.DROP


class Opened:
    """A source that does not answer before ``released``."""

    def __init__(self, released: threading.Event) -> None:
        self._released = released

    def prove(self, cut: object) -> object:
        self._released.wait()
        return cut


async def test_a_unit_that_is_stopped_while_it_writes_does_not_crash() -> None:
    nothing = cast("Any", None)
    unit = SyncUnit(nothing, Position(Ts(1)), writer=nothing, directory=nothing, needs=nothing)
    writing, written, proved = threading.Event(), threading.Event(), threading.Event()
    ended: list[str] = []

    def write(cut: object, pool: object) -> None:
        writing.set()
        written.wait()

    async def prepare() -> None:
        try:
            await unit._prepare(cast("Any", SimpleNamespace(arena=object())), nothing, cast("Any", Opened(proved)))
        except anyio.get_cancelled_exc_class():
            ended.append("stopped")
            raise

    cast("Any", unit)._write = write
    try:
        with anyio.fail_after(HANG_S):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(prepare)
                await to_thread.run_sync(writing.wait)
                tasks.cancel_scope.cancel()
                written.set()
    finally:
        proved.set()
    assert ended == ["stopped"]


async def test_an_attachment_that_the_head_does_not_name_is_written_again_when_it_does(tmp_path: Path) -> None:
    """Retention removes what no head names: a chunk that does not move the head names nothing."""
    key, nothing = LogKey("c", "default", ChangefeedId("feed"), "mysql"), cast("Any", None)
    writer = LogWriter(MetaHeadStore(MemoryClient(newest_etcd()), key), capture=CaptureId("a"))
    directory = LogDirectory(str(tmp_path), changefeed="feed", source="mysql")
    unit = SyncUnit(nothing, Position(Ts(1)), writer=writer, directory=directory, needs=nothing)
    proved = threading.Event()
    proved.set()
    await writer.take_over(Ts(1))
    for ts, attachment in [(10, "one"), (10, "two"), (20, "two")]:
        cut = LogChunk(None, 0, [], Ts(ts), Ts(ts), Ts(ts), 0.0, is_complete=True, attachment=attachment)
        await unit._append(cut, nothing, cast("Any", Opened(proved)))
        for entry in directory.entries():
            if entry.name != writer.head.attachment:
                directory.remove([entry.name])
    assert attachments.read(directory, writer.head.attachment).text == "two"


async def test_schema_changes_that_are_found_are_not_kept(tmp_path: Path) -> None:
    """Otherwise memory grows with every schema change. The next connection reads the stored records again."""
    key, nothing = LogKey("c", "default", ChangefeedId("feed"), "mysql"), cast("Any", None)
    etcd, opened_with = newest_etcd(), list[Sequence[DdlRecord]]()

    def open_stream(at: Position, arena: Arena, ddl: Sequence[DdlRecord]) -> OpenStream:
        opened_with.append(ddl)
        raise StreamRestart("the test needs no stream")

    streams = cast("Any", SimpleNamespace(open=open_stream))
    writer = LogWriter(MetaHeadStore(MemoryClient(etcd), key), capture=CaptureId("a"))
    directory = LogDirectory(str(tmp_path), changefeed="feed", source="mysql")
    tables = (10, 20, 999)
    unit = SyncUnit(streams, Position(Ts(1)), writer=writer, directory=directory, needs=nothing, tables=tables)
    proved = threading.Event()
    proved.set()
    await writer.take_over(Ts(1))
    with pytest.raises(StreamRestart):
        await unit._session()

    async def append(ts: int, *changes: int) -> None:
        ddl = tuple(DdlRecord(ts=Ts(at), changes=(TableChange(kind=DROP, table_id=at),)) for at in changes)
        cut = LogChunk(None, 0, [], Ts(ts), Ts(ts), Ts(ts), 0.0, is_complete=True, ddl=ddl)
        await unit._append(cut, nothing, cast("Any", Opened(proved)))

    for ts in range(10, 510, 10):
        await append(ts, ts)
        assert len(unit._found) <= 2
    revision = etcd.revision
    await append(500, 500)
    assert etcd.revision == revision, "what is stored is not stored again"
    await MemoryClient(etcd).delete(str(DdlKey("c", "default", ChangefeedId("feed"), Ts(10))))
    for _ in range(2):
        with pytest.raises(StreamRestart):
            await unit._session()
    assert [[record.ts for record in ddl] for ddl in opened_with] == [[], *[[1, *range(20, 510, 10)]] * 2]
    assert opened_with[-1][0].dropped_ids == {10}, "a table is not taken for one that exists"

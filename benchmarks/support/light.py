"""Light capture: everything but rows, ``python -m benchmarks.support.light ETCD_URL DATA_DIR``.

Session, election, owner, processors, messages and etcd are the real ones, as a process of its own. A flush reaches its
target at once and writes nothing; the source's log moves on by the clock, its positions being milliseconds. So a
machine of two cores can have as many tables as a cluster.
"""

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import anyio

from agent.control.effects import StartUnit
from agent.control.runtime import Flushed, FlushLimits, Progress, SpanFlushed, SpanPosition
from agent.log.head import EtcdHeadStore, LogWriter
from agent.units.records import UnitRecords
from capture.config import ServerSettings
from capture.gc_settings import collect_seldom
from capture.logs import configure
from capture.member.membership import Base, live
from capture.member.services import DataPlane
from capture.messaging.transport import TcpTransport
from reactor import keys, loop
from reactor.ids import CaptureId, TableSpan, Ts
from reactor.records.changefeed import ChangefeedInfo, TableRecord
from reactor.state import ClusterState
from reactor.store.etcd import connect
from reactor.store.port import Compare, EtcdClient, Target

CLUSTER = "light"
_LOG_MOVES_S = 1.0


def position_now() -> Ts:
    """Where every source's log is now."""
    return Ts(int(time.time() * 1e3))


class _Parts:
    def __init__(self, info: ChangefeedInfo, capture: CaptureId, client: EtcdClient, life: Compare) -> None:
        self._info = info
        self._capture = capture
        self._client = client
        self._life = life

    async def open_span(self, table: TableRecord, span: TableSpan, checkpoint_ts: Ts) -> SpanPosition:
        return SpanPosition(span, table, checkpoint_ts, checkpoint_ts)

    async def flush(self, positions: Sequence[SpanPosition], limits: FlushLimits) -> Flushed:
        time_s = limits.head.resolved_time
        moved = [SpanPosition(at.span, at.table, ts, ts) for at in positions if (ts := _target(at, limits))]
        return Flushed(tuple(SpanFlushed(at, time_s) for at in moved))

    async def run_unit(self, order: StartUnit, on_progress: Progress) -> None:
        """Sync: the record, then the log's head."""
        place = (CLUSTER, self._info.namespace, self._info.id, order.source)
        records = UnitRecords(self._client, keys.UnitKey(*place), life=self._life)
        stored = await records.read()
        assert stored is not None, "the benchmark has stored it"
        await records.write(stored.with_(epoch=order.epoch, worker=self._capture))
        store = EtcdHeadStore(self._client, keys.LogKey(*place), life=self._life)
        writer = LogWriter(store, capture=self._capture, epoch_floor=self._life.revision)
        await writer.take_over(start_ts=stored.start_ts)
        while True:
            await writer.advance(position_now(), resolved_time=time.time())
            await anyio.sleep(_LOG_MOVES_S)

    async def close(self) -> None:
        """Nothing is held between calls."""


def _target(at: SpanPosition, limits: FlushLimits) -> Ts:
    return max(at.checkpoint_ts, limits.target(at.table.table_id))


class _Works:
    """As much of ``capture.member.services.DataPlane`` as a life asks of it where nobody asks for more."""

    def for_life(self, client: EtcdClient, capture: CaptureId, state: ClusterState) -> "_LifeWorks":
        return _LifeWorks(client, capture, state)


class _LifeWorks:
    def __init__(self, client: EtcdClient, capture: CaptureId, state: ClusterState) -> None:
        self._client = client
        self._capture = capture
        self._state = state

    def open(self, info: ChangefeedInfo) -> _Parts:
        key = str(keys.InfoKey(CLUSTER, info.namespace, info.id))
        life = Compare(key, Target.CREATE_REVISION, self._state.raw[key].create_revision)
        return _Parts(info, self._capture, self._client, life)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"a capture without rows does not {name}")


async def _run(url: str, data_dir: Path) -> None:
    settings = ServerSettings(cluster_id=CLUSTER, etcd=(url,), addr="127.0.0.1:0", data_dir=data_dir)
    client = await connect([url])
    base = Base(settings, cast("DataPlane", _Works()), TcpTransport(None))
    async with live(base, client) as life:
        await life.wait_end()


def main() -> None:
    url, data_dir = sys.argv[1:]
    configure("warning", file=Path(data_dir) / "log")
    collect_seldom()
    loop.run(_run, url, Path(data_dir))


if __name__ == "__main__":
    main()

"""Light capture: everything but rows, ``python -m benchmarks.support.light STORE_URL DATA_DIR [options]``.

Session, election, owner, processors, messages, etcd and the plans of flushes are real, in a process of its own. A flush
writes nothing; the source's log advances with the clock, its positions being milliseconds. So a machine with two cores
can simulate as many tables as a cluster has.

``--format``: the newest cluster format that it knows. ``--log-moves``: interval in seconds at which the sources' logs
advance. ``--changing``: how many tables of each changefeed have changes whenever its log advances. The file ``ticks``
in the data directory has the owners' last ticks: when each began (``time.time``) and how long it took, in seconds.
"""

import argparse
import json
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import anyio

from agent.control.effects import StartUnit
from agent.control.runtime import NOBODY, Flushed, FlushLimits, Progress, SpanPosition, Together
from agent.flush import job
from agent.health.health import Health
from agent.log.head import LogWriter
from agent.log.head_store import MetaHeadStore
from agent.log.quiet import QuietMoves
from agent.log.reader import LogReader
from agent.ports.capabilities import Capabilities, Guarantee
from agent.ports.executor import Executor
from agent.ports.sink import FeedContext, FlushResult, FlushTask, Sink
from agent.rows.batches import SegmentRef
from agent.units.records import UnitRecords
from benchmarks.support.metadata import connect
from capture.config import ServerSettings
from capture.gc_settings import collect_seldom
from capture.logs import configure
from capture.member.copies import CopyPlace, CopyProgress
from capture.member.membership import Base, live
from capture.member.services import DataPlane
from capture.messaging.transport import TcpTransport
from capture.security.secrets import Keeper
from owner.owner import Owner
from reactor import keys, loop
from reactor.ids import CaptureId, TableSpan, Ts
from reactor.records import formats
from reactor.records.changefeed import ChangefeedInfo, SinkMode
from reactor.records.log_head import LogHead
from reactor.records.tables.table import TableRecord
from reactor.state import ClusterState
from reactor.store.port import Compare, MetaStore, Target

CLUSTER = "light"
_TICKS_KEPT, _TICKS_WRITTEN_S = 2_000, 1.0
_SEGMENT_BYTES = 1 << 16


def position_now() -> Ts:
    """Return the current position of every source's log."""
    return Ts(int(time.time() * 1e3))


class _Log:
    """Reads one segment with changes of the first tables."""

    def __init__(self, tables: Sequence[TableRecord]) -> None:
        self._ids = frozenset(table.table_id for table in tables)

    def segments(self, head: LogHead, from_ts: Ts, to_ts: Ts, *, known_ts: Ts) -> tuple[SegmentRef, ...]:
        return (SegmentRef("", 1, 1, Ts(from_ts + 1), to_ts, to_ts, _SEGMENT_BYTES, self._ids),) if self._ids else ()


class _Sink:
    """Is sink and executor: a task has written what it should when it is asked."""

    capabilities = Capabilities(guarantee=Guarantee.EXACTLY_ONCE)

    def map(self, function: object, groups: Sequence[Sequence[FlushTask]], **_: object) -> list[list[FlushResult]]:
        return [[task.result(committed=True, rows=1) for task in group] for group in groups]

    def commit(self, tasks: Sequence[FlushTask], results: Sequence[FlushResult]) -> Sequence[FlushResult]:
        return results

    def cores(self) -> int:
        return 2


class _Parts:
    log_moves_s = 1.0
    changing = 0

    def __init__(
        self, info: ChangefeedInfo, capture: CaptureId, client: MetaStore, guard: Compare, quiet: QuietMoves
    ) -> None:
        self._quiet = quiet
        self._info = info
        self._capture = capture
        self._client = client
        self._guard = guard
        self._context: job.FlushContext | None = None

    async def open_span(self, table: TableRecord, span: TableSpan, checkpoint_ts: Ts) -> SpanPosition:
        return SpanPosition(span, table, checkpoint_ts, checkpoint_ts)

    async def flush(
        self, positions: Sequence[SpanPosition], limits: FlushLimits, together: Together = NOBODY
    ) -> Flushed:
        if self._context is None:
            feed, sink = FeedContext(self._info.id, "light:", SinkMode.UPSERT), _Sink()
            tables = sorted(limits.tables.values(), key=lambda table: table.table_id)
            log = _Log(tables[: _Parts.changing])
            self._context = job.FlushContext(feed, cast("Sink", sink), cast("LogReader", log), cast("Executor", sink))
        return job.flush(self._context, positions, limits, together)

    async def run_unit(self, order: StartUnit, on_progress: Progress) -> None:
        """Sync: write the record, then the log's head."""
        place = (CLUSTER, self._info.namespace, self._info.id, order.source)
        records = UnitRecords(self._client, keys.UnitKey(*place), guard=self._guard)
        stored = await records.read()
        assert stored is not None, "the benchmark has stored it"
        await records.write(stored.with_(epoch=order.epoch, worker=self._capture))
        store = MetaHeadStore(self._client, keys.LogKey(*place), guard=self._guard, quiet=self._quiet)
        writer = LogWriter(store, capture=self._capture, epoch_floor=self._guard.revision)
        await writer.take_over(start_ts=stored.start_ts)
        with self._quiet.of_a_log():
            while True:
                await writer.advance(position_now(), resolved_time=time.time())
                now = time.monotonic()
                await anyio.sleep(self._quiet.next_at(now, _Parts.log_moves_s) - now)

    async def close(self) -> None:
        """Nothing is held between calls."""


class _DataPlane:
    """The part of ``capture.member.services.DataPlane`` that a membership needs for sync."""

    #: all captures of the benchmark share it
    keeper = Keeper(b"A" * 43 + b"=")

    def __init__(self) -> None:
        self.health = Health()

    def for_member(self, client: MetaStore, capture: CaptureId, state: ClusterState) -> "_MemberDataPlane":
        return _MemberDataPlane(client, capture, state)


class _MemberDataPlane:
    def __init__(self, client: MetaStore, capture: CaptureId, state: ClusterState) -> None:
        self._client = client
        self._capture = capture
        self._state = state
        self._quiet = QuietMoves(client)
        #: no table is copied
        self.copies: dict[CopyPlace, CopyProgress] = {}

    async def load(self, info: ChangefeedInfo) -> None:
        """Nothing is imported."""

    def open(self, info: ChangefeedInfo) -> _Parts:
        key = str(keys.InfoKey(CLUSTER, info.namespace, info.id))
        guard = Compare(key, Target.CREATE_REVISION, self._state.raw[key].create_revision)
        return _Parts(info, self._capture, self._client, guard, self._quiet)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"a capture without rows does not {name}")


async def _run(url: str, data_dir: Path) -> None:
    settings = ServerSettings(cluster_id=CLUSTER, etcd=(url,), addr="127.0.0.1:0", data_dir=data_dir)
    client = await connect(url)
    base = Base(settings, cast("DataPlane", _DataPlane()), TcpTransport())
    async with live(base, client) as membership, anyio.create_task_group() as tasks:
        tasks.start_soon(_write_ticks, data_dir / "ticks", _timed())
        await membership.wait_end()


def _timed() -> deque[tuple[float, float]]:
    """Return where the times of owners' ticks will be."""
    ticks: deque[tuple[float, float]] = deque(maxlen=_TICKS_KEPT)
    original = Owner.tick

    def tick(self: Owner, *given: Any) -> Any:
        began, started = time.time(), time.perf_counter()
        effects = original(self, *given)
        ticks.append((began, time.perf_counter() - started))
        return effects

    setattr(Owner, "tick", tick)  # noqa: B010 - of all owners in this process
    return ticks


async def _write_ticks(file: Path, ticks: deque[tuple[float, float]]) -> None:
    while True:
        await anyio.sleep(_TICKS_WRITTEN_S)
        new = file.with_suffix(".new")
        new.write_text(json.dumps(list(ticks)))
        new.replace(file)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("data_dir", type=Path)
    parser.add_argument("--format", type=int, default=formats.NEWEST)
    parser.add_argument("--log-moves", type=float, default=_Parts.log_moves_s)
    parser.add_argument("--changing", type=int, default=_Parts.changing)
    given = parser.parse_args()
    _Parts.log_moves_s, _Parts.changing = given.log_moves, given.changing
    setattr(formats, "NEWEST", given.format)  # noqa: B010 - of this process
    configure("warning", file=given.data_dir / "log")
    collect_seldom()
    loop.run(_run, given.url, given.data_dir)


if __name__ == "__main__":
    main()

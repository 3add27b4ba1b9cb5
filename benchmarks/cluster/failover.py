"""failover: time until all tables of many changefeeds flow again after the owner was killed.

Three captures as processes with a real store, real messages, and everything but rows (``support.light``). The owner
gets SIGKILL, so it does not resign: its lease has to expire. Its spans and sources' workers are then reassigned. A
changefeed flows again when the checkpoint that its new owner stores is later than the kill, which requires all of its
spans. The peer is the lease, for which every failover has to wait.
"""

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import anyio
import psutil

from benchmarks.support.light import CLUSTER, position_now
from benchmarks.support.metadata import STORES, connect
from reactor import keys
from reactor.ids import CaptureId, ChangefeedId, Ts
from reactor.membership.progress import CaptureProgress
from reactor.records.capture import Assignment, CaptureInfo
from reactor.records.changefeed import ChangefeedInfo, ChangefeedStatus, Mode, SealedUri, Unit, UnitRecord, UnitStage
from reactor.records.formats import Feature
from reactor.records.tables.table import TableRecord
from reactor.settings import ReactorSettings
from reactor.store import writes
from reactor.store.port import MetaStore, Put, WatchBatch

NAMESPACE = keys.DEFAULT_NAMESPACE
_URI = SealedUri(masked="postgresql://h/d", sealed="x")
_START_TIMEOUT_S, _FLOW_TIMEOUT_S = 90.0, 60.0
#: how long every changefeed has flowed before the owner is killed
_SETTLED_S = 3.0


class Watcher:
    """The cluster's state as etcd shows it."""

    def __init__(self, client: MetaStore) -> None:
        self.captures: dict[CaptureId, CaptureInfo] = {}
        self.checkpoints: dict[ChangefeedId, Ts] = {}
        self.candidates: dict[str, tuple[int, CaptureId]] = {}
        self.owners: dict[ChangefeedId, CaptureId] = {}
        #: every capture that it was launched on
        self.launches: dict[ChangefeedId, tuple[CaptureId, ...]] = {}
        self.status_writes = 0
        #: revisions of the store that are no moves of a log's head alone
        self.writes = 0
        self._written = 0
        self._client = client
        self._changed = anyio.Event()

    @property
    def owner(self) -> CaptureId:
        return min(self.candidates.values())[1]

    async def run(self, start_revision: int) -> None:
        prefix = keys.cluster_prefix(CLUSTER)
        async with self._client.watch_prefix(prefix, start_revision=start_revision) as batches:
            async for batch in batches:
                self._take(batch)
                self._changed.set()
                self._changed = anyio.Event()

    async def wait_flow(self, feeds: int, ts: Ts, timeout_s: float) -> float:
        """Wait until every changefeed's checkpoint is past ``ts``; return the time."""
        with anyio.fail_after(timeout_s):
            while len(self.checkpoints) < feeds or min(self.checkpoints.values()) <= ts:
                await self._changed.wait()
        return anyio.current_time()

    async def wait_gone(self, capture: CaptureId) -> float:
        """Wait until ``capture`` is no longer a member; return the time."""
        with anyio.fail_after(_FLOW_TIMEOUT_S):
            while capture in self.captures or capture in {known for _, known in self.candidates.values()}:
                await self._changed.wait()
        return anyio.current_time()

    async def wait_status_write(self, seen: int) -> float:
        """Wait until the owner has stored a changefeed's status; return the time."""
        with anyio.fail_after(_FLOW_TIMEOUT_S):
            while self.status_writes == seen:
                await self._changed.wait()
        return anyio.current_time()

    def _take(self, batch: WatchBatch) -> None:
        for event in batch.events:
            if event.mod_revision != self._written and f"/{keys.LogKey.KIND}/" not in event.key:
                self.writes, self._written = self.writes + 1, event.mod_revision
            if event.key.startswith(keys.owner_prefix(CLUSTER)):
                self.candidates.pop(event.key, None)
                if event.value is not None:
                    self.candidates[event.key] = event.create_revision, CaptureId(event.value.decode())
                continue
            match keys.parse(event.key):
                case keys.CaptureKey(capture=capture):
                    self.captures.pop(capture, None)
                    if event.value is not None:
                        self.captures[capture] = CaptureInfo.decode(event.value, key=event.key)
                case keys.StatusKey(changefeed=feed) if event.value is not None:
                    self.checkpoints[feed] = ChangefeedStatus.decode(event.value, key=event.key).checkpoint_ts
                    self.status_writes += 1
                case keys.ProgressKey() if event.value is not None:
                    entries = CaptureProgress.decode(event.value, key=event.key).changefeeds
                    self.checkpoints |= {
                        id: max(entry.checkpoint_ts, self.checkpoints.get(id, Ts(0))) for id, entry in entries.items()
                    }
                    self.status_writes += 1
                case keys.AssignmentKey(changefeed=feed):
                    self.owners.pop(feed, None)
                    if event.value is not None:
                        assigned = Assignment.decode(event.value, key=event.key).capture
                        self.owners[feed] = assigned
                        if event.create_revision == event.mod_revision:
                            self.launches[feed] = (*self.launches.get(feed, ()), assigned)


def run(changefeeds: int = 100, tables: int = 100, captures: int = 3, store: str = "etcd") -> dict[str, object]:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        directory.chmod(0o755)  # a database server may run as another user
        with STORES[store](directory) as url:
            return anyio.run(_run, url, directory, changefeeds, tables, captures)


async def _run(url: str, directory: Path, changefeeds: int, tables: int, captures: int) -> dict[str, object]:
    client = await connect(url)
    try:
        revision = await store_feeds(client, changefeeds, tables)
        with running(url, directory, captures):
            return await _measure(client, revision, changefeeds, tables, captures)
    finally:
        await client.close()


async def _measure(client: MetaStore, revision: int, changefeeds: int, tables: int, captures: int) -> dict[str, object]:
    watcher = Watcher(client)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watcher.run, revision)
        began = anyio.current_time()
        cold_s = await watcher.wait_flow(changefeeds, Ts(0), _START_TIMEOUT_S) - began
        await watcher.wait_flow(changefeeds, position_now(), _START_TIMEOUT_S)
        await anyio.sleep(_SETTLED_S)
        figures = await _fail_over(watcher, changefeeds)
        tasks.cancel_scope.cancel()
    ttl_s = ReactorSettings().session_ttl_s
    return {
        "what": f"{changefeeds} changefeeds of {tables} tables on {captures} captures, the owner gets SIGKILL",
        "spans": changefeeds * tables,
        "all_flow_after_start_s": round(cold_s, 2),
        **figures,
        "lease_ttl_s": ttl_s,
        "bound_s": ttl_s + 5,
        "ratio": round(float(str(figures["all_flow_again_s"])) / ttl_s, 3),
        "peer": "the lease of the owner, which must run out before anything may be done",
    }


async def _fail_over(watcher: Watcher, changefeeds: int) -> dict[str, object]:
    owner, seen, killed_ts = watcher.owner, watcher.status_writes, position_now()
    psutil.Process(watcher.captures[owner].pid).kill()
    killed = anyio.current_time()
    gone = await watcher.wait_gone(owner)
    at_work = await watcher.wait_status_write(watcher.status_writes)
    all_flow = await watcher.wait_flow(changefeeds, killed_ts, _FLOW_TIMEOUT_S)
    assert watcher.owner != owner, "another one took over"
    return {
        "lease_over_s": round(gone - killed, 2),
        "new_owner_at_work_s": round(at_work - killed, 2),
        "all_flow_again_s": round(all_flow - killed, 2),
        "status_writes_until_then": watcher.status_writes - seen,
    }


async def store_feeds(client: MetaStore, changefeeds: int, tables: int) -> int:
    """Store changefeeds whose tables are loaded, so that only replication remains."""
    start_ts = position_now()
    known = tuple(
        TableRecord(table_id=16_384 + n, schema_name="public", name=f"table_{n}", key=("id",), start_ts=start_ts)
        for n in range(tables)
    )
    unit = UnitRecord(unit=Unit.SYNC, stage=UnitStage.RUNNING, tables=known, start_ts=start_ts)
    revision = 0
    for number in range(changefeeds):
        feed = ChangefeedId(f"feed-{number:03}")
        info = ChangefeedInfo(id=feed, source=_URI, sink=_URI, mode=Mode.INCREMENTAL, epoch=1)
        key = str(keys.UnitKey(CLUSTER, NAMESPACE, feed, "main"))
        stored = writes.flat({key: writes.stored_form(key, unit.encode(), Feature.DIVIDED)}, {})
        for puts in writes.batches([Put(at, value) for at, value in stored.items() if value is not None]):
            await client.txn([], puts)
        await client.put(str(keys.StatusKey(CLUSTER, NAMESPACE, feed)), ChangefeedStatus(checkpoint_ts=Ts(0)).encode())
        revision = await client.put(str(keys.InfoKey(CLUSTER, NAMESPACE, feed)), info.encode())
    return revision + 1


@contextmanager
def running(url: str, directory: Path, count: int, *, first: int = 0, options: Sequence[str] = ()) -> Iterator[None]:
    """Run captures during the block. ``options``: of ``support.light``."""
    with ExitStack() as stack:
        for number in range(first, first + count):
            data_dir = directory / f"capture-{number}"
            data_dir.mkdir()
            command = [sys.executable, "-m", "benchmarks.support.light", url, str(data_dir), *options]
            process = stack.enter_context(subprocess.Popen(command, stderr=subprocess.PIPE))
            stack.callback(process.kill)
        yield

"""owners: what it costs to own many changefeeds, on captures as processes with a real store, and everything but rows.

Each changefeed has an owner on one of the captures; the peer is the elected capture that owns all, as it did before
cluster format 11. Both are started, observed, and lose a capture that gets SIGKILL; then another capture joins, and
changefeeds are evened out.
"""

import json
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import anyio
import psutil

from benchmarks.cluster.failover import Watcher, running, store_feeds
from benchmarks.support.light import position_now
from benchmarks.support.metadata import STORES, connect
from reactor.ids import CaptureId, Ts
from reactor.records import formats
from reactor.records.formats import Feature
from reactor.settings import ReactorSettings
from reactor.store.port import MetaStore

#: a slow machine misses the aims, and says by how much
_START_TIMEOUT_S, _FLOW_TIMEOUT_S, _EVEN_TIMEOUT_S = 400.0, 300.0, 120.0
_OBSERVED_S = 15.0
_POLL_S = 0.1


def run(changefeeds: int = 1000, tables: int = 20, captures: int = 5, store: str = "etcd") -> dict[str, object]:
    spread = _measured(changefeeds, tables, captures, store, format=formats.NEWEST)
    peer = _measured(changefeeds, tables, captures, store, format=Feature.OWNERS - 1)
    return {
        "what": f"{changefeeds} changefeeds of {tables} tables on {captures} captures; {store}",
        **spread,
        "peer": "the elected capture owns all changefeeds",
        **{f"peer_{name}": value for name, value in peer.items()},
        "ratio": round(float(str(spread["tick_p99_ms"])) / float(str(peer["tick_p99_ms"])), 3),
    }


def _measured(changefeeds: int, tables: int, captures: int, store: str, *, format: int) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        directory.chmod(0o755)  # a database server may run as another user
        options = ["--log-moves", "1", "--format", str(format)]
        with STORES[store](directory) as url:
            return anyio.run(_run, url, directory, changefeeds, tables, captures, options)


async def _run(
    url: str, directory: Path, changefeeds: int, tables: int, captures: int, options: Sequence[str]
) -> dict[str, object]:
    client = await connect(url)
    try:
        revision = await store_feeds(client, changefeeds, tables)
        with running(url, directory, captures, options=options):
            return await _measure(client, revision, url, directory, changefeeds, captures, options)
    finally:
        await client.close()


async def _measure(
    client: MetaStore,
    revision: int,
    url: str,
    directory: Path,
    changefeeds: int,
    captures: int,
    options: Sequence[str],
) -> dict[str, object]:
    watcher = Watcher(client)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watcher.run, revision)
        began = anyio.current_time()
        started_s = await watcher.wait_flow(changefeeds, Ts(0), _START_TIMEOUT_S) - began
        await watcher.wait_flow(changefeeds, position_now(), _FLOW_TIMEOUT_S)
        figures: dict[str, object] = {"all_flow_after_start_s": round(started_s, 2)}
        figures |= await _observed(watcher, directory)
        figures |= await _fail_over(watcher, changefeeds)
        if watcher.owners:
            with running(url, directory, 1, first=captures, options=options):
                figures |= await _evened_out(watcher, changefeeds, captures)
        tasks.cancel_scope.cancel()
    return figures


async def _observed(watcher: Watcher, directory: Path) -> dict[str, object]:
    """All is quiet, but for sources' logs that advance."""
    processes = [psutil.Process(info.pid) for info in watcher.captures.values()]
    writes, cpu, began, began_time = watcher.writes, _cpu_s(processes), anyio.current_time(), time.time()
    await anyio.sleep(_OBSERVED_S)
    took_s = anyio.current_time() - began
    ticks = _ticks(directory, began_time)
    return {
        "writes_per_s": round((watcher.writes - writes) / took_s, 1),
        "cpu_of_all_percent": round(100 * (_cpu_s(processes) - cpu) / took_s, 1),
        "tick_start_max_ms": round(1e3 * max(_ticks(directory, 0.0)), 2),
        "tick_p50_ms": round(1e3 * statistics.median(ticks), 2),
        "tick_p99_ms": round(1e3 * statistics.quantiles(ticks, n=100)[98], 2),
    }


async def _fail_over(watcher: Watcher, changefeeds: int) -> dict[str, object]:
    """SIGKILL to the elected capture, or to another one with changefeeds of its own."""
    victim = min(set(watcher.owners.values()) - {watcher.owner}, default=watcher.owner)
    killed_ts, killed = position_now(), anyio.current_time()
    psutil.Process(watcher.captures[victim].pid).kill()
    gone = await watcher.wait_gone(victim)
    again = await watcher.wait_flow(changefeeds, killed_ts, _FLOW_TIMEOUT_S)
    return {
        "lease_ttl_s": ReactorSettings().session_ttl_s,
        "lease_over_s": round(gone - killed, 2),
        "all_flow_again_s": round(again - killed, 2),
    }


async def _evened_out(watcher: Watcher, changefeeds: int, captures: int) -> dict[str, object]:
    before, began = {id: len(places) for id, places in watcher.launches.items()}, anyio.current_time()
    share = changefeeds // captures
    with anyio.move_on_after(_EVEN_TIMEOUT_S):
        while min(_loads(watcher, captures)) < share:  # noqa: ASYNC110 - it polls the watcher
            await anyio.sleep(_POLL_S)
    moves = [len(places) - before[id] for id, places in watcher.launches.items()]
    return {
        "evened_out_s": round(anyio.current_time() - began, 2),
        "loads": sorted(_loads(watcher, captures)),
        "moved": sum(moves),
        "moved_twice": sum(count > 1 for count in moves),
    }


def _ticks(directory: Path, since: float) -> list[float]:
    ticks = [tick for file in directory.glob("capture-*/ticks") for tick in json.loads(file.read_text())]
    return [seconds for began, seconds in ticks if began >= since]


def _loads(watcher: Watcher, captures: int) -> list[int]:
    counted = Counter[CaptureId](watcher.owners.values())
    return [*counted.values(), *([0] * (captures - len(counted)))]


def _cpu_s(processes: Sequence[psutil.Process]) -> float:
    times = [process.cpu_times() for process in processes]
    return float(sum(one.user + one.system for one in times))

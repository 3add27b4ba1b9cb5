"""store: decisions committed per second, and how soon others hear of them, on each store.

A decision is a transaction that compares one key and puts it. Each store is durable here: etcd, PostgreSQL and MariaDB
(with a binary log) flush to the disk, SQLite runs as always. ``one``: one capture decides, one decision after the
other; ``sixteen``: one capture makes up to sixteen at once, of as many keys, as the changefeeds of a busy one do;
``four``: four captures, each with its own key. A watch's delay is from before the put until another client's watch has
brought it, with a put every 10 ms. The peer is pgbench, whose one client updates one row of the same PostgreSQL;
``ratio`` compares one capture on PostgreSQL, with sixteen at once, with it, in turns.
"""

import re
import subprocess
import tempfile
import time
from pathlib import Path
from statistics import median

import anyio

from benchmarks.support.metadata import STORES, client_of
from capture.embedded import EmbeddedPostgres
from capture.embedded.postgres import tool
from reactor import loop
from reactor.store.port import Compare, MetaStore, Put, Target

_SECONDS = 5.0
_WATCHED = 500
_ROUNDS = 3
_AT_ONCE = 16
_VALUE = b"x" * 500
_ROW = "CREATE TABLE row (id int PRIMARY KEY, value bytea); INSERT INTO row VALUES (1, '')"
_UPDATE = f"UPDATE row SET value = decode('{_VALUE.hex()}', 'hex') WHERE id = 1;\n"


def run() -> dict[str, object]:
    figures: dict[str, object] = {}
    with tempfile.TemporaryDirectory(dir=".") as name:  # beside the project: /tmp may be no disk
        directory = Path(name).absolute()
        directory.chmod(0o755)
        for store, running in STORES.items():
            with running(directory) as url:
                found = loop.run(_measure, url)
            figures |= {f"{store}_{figure}": value for figure, value in found.items()}
        ours, peer = _beside_pgbench(directory)
    return {
        "ratio": ours / peer,
        **figures,
        "postgres_beside_pgbench_per_second": ours,
        "pgbench_one_row_per_second": peer,
        "workload": f"transactions that compare and put one key of {len(_VALUE)} bytes, for {_SECONDS:g} s",
    }


async def _measure(url: str) -> dict[str, float]:
    one, four, sixteen = await _decisions(url, 1), await _decisions(url, 4), await _decisions(url, 1, at_once=_AT_ONCE)
    delays = sorted(await _delays(url))
    return {
        "one_per_second": one,
        "sixteen_at_once_per_second": sixteen,
        "four_per_second": four,
        "watch_p50_ms": delays[len(delays) // 2] * 1000,
        "watch_p99_ms": delays[len(delays) * 99 // 100] * 1000,
    }


async def _decisions(url: str, captures: int, at_once: int = 1) -> float:
    committed = 0

    async def decide(client: MetaStore, key: str) -> None:
        nonlocal committed
        revision = await client.put(key, _VALUE)
        while time.perf_counter() < until:
            result = await client.txn([Compare(key, Target.MOD_REVISION, revision)], [Put(key, _VALUE)])
            assert result.succeeded
            revision = result.revision
            committed += 1

    async def work(capture: int) -> None:
        async with client_of(url) as client, anyio.create_task_group() as tasks:
            for number in range(at_once):
                tasks.start_soon(decide, client, f"/weir/bench/{captures}/{capture}/{number}")

    until = time.perf_counter() + _SECONDS
    async with anyio.create_task_group() as tasks:
        for capture in range(captures):
            tasks.start_soon(work, capture)
    return committed / _SECONDS


async def _delays(url: str) -> list[float]:
    delays: list[float] = []
    async with client_of(url) as writer, client_of(url) as reader:
        start = await writer.put("/weir/watched", b"")
        async with reader.watch_prefix("/weir/watched", start_revision=start) as watch:
            await anext(watch)
            for _ in range(_WATCHED):
                await anyio.sleep(0.01)
                sent = time.perf_counter()
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(writer.put, "/weir/watched", _VALUE)
                    while not (await anext(watch)).events:
                        pass
                    delays.append(time.perf_counter() - sent)
    return delays


def _beside_pgbench(directory: Path) -> tuple[float, float]:
    """Return our decisions and pgbench's transactions per second: medians of rounds that take turns, since the speed of
    a disk changes within a minute."""
    script = directory / "update.sql"
    script.write_text(_UPDATE)
    with EmbeddedPostgres(directory / "postgres", wal_level="replica") as server:
        for statement in _ROW.split(";"):
            server.execute(statement)
        rounds = [(loop.run(_decisions, server.uri(), 1, _AT_ONCE), _pgbench(server, script)) for _ in range(_ROUNDS)]
    ours, theirs = zip(*rounds, strict=True)
    return median(ours), median(theirs)


def _pgbench(server: EmbeddedPostgres, script: Path) -> float:
    """Return the transactions per second."""
    command = [str(tool("pgbench")), "-n", "-M", "prepared", "-c", "1", "-T", f"{_SECONDS:g}", "-f", str(script)]
    done = subprocess.run(command, env=server.environment(), capture_output=True, text=True, check=True)
    found = re.search(r"tps = ([\d.]+)", done.stdout)
    assert found is not None, done.stdout
    return float(found[1])

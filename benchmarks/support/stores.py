"""Benchmark stores: a bed whose log and tables are on a real S3 server, behind a proxy that counts and delays."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.support.bed import Bed, bed
from benchmarks.support.store_proxy import StoreProxy
from capture.embedded import EmbeddedS3

TABLES = 8
_BUCKET = "s3://weir"
_ROWS = 10_000


@contextmanager
def s3_bed(delay_s: float = 0.0) -> Iterator[tuple[Bed, StoreProxy]]:
    """``delay_s`` is added to each request."""
    with (
        tempfile.TemporaryDirectory(prefix="weir-s3-") as name,
        EmbeddedS3(Path(name) / "s3") as server,
        StoreProxy(server.port).running() as proxy,
    ):
        proxy.delay_s = delay_s
        environment = server.options(proxy.endpoint) | {"WEIR_HOST_CACHE": str(Path(name) / "cache")}
        with bed(settings={"log-storage": f"{_BUCKET}/log"}, environment=environment) as found:
            found.bucket = _BUCKET
            yield found, proxy


def make_tables(found: Bed, *, tables: int = TABLES) -> None:
    for number in range(tables):
        found.execute(f"CREATE TABLE account_{number} (id int PRIMARY KEY, balance bigint NOT NULL, note text)")
        found.execute(f"INSERT INTO account_{number} SELECT i, 0, 'note ' || i FROM generate_series(1, {_ROWS}) AS i")


def load(found: Bed, *, seconds: int, rate: int, tables: int = TABLES) -> list[str]:
    """Return commands for ``rate`` transactions a second; each updates one row of every even, or of every odd,
    table."""
    files: list[str] = []
    for first in (0, 1):
        numbers = range(first, tables, 2)
        lines = [f"\\set k{number} random(1, {_ROWS})" for number in numbers]
        updates = [f"UPDATE account_{number} SET balance = balance + 1 WHERE id = :k{number};" for number in numbers]
        script = found.directory / f"load-{first}.sql"
        script.write_text("\n".join([*lines, "BEGIN;", *updates, "END;"]))
        files += ["--file", str(script)]
    return ["pgbench", "--no-vacuum", "--client", "1", "--time", str(seconds), "--rate", str(rate), *files]

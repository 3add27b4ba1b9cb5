"""first-row: how long ``capture.local`` takes until a table of the quickstart's data has its rows in Python.

One capture with a store and a Spark of its own starts in a process of its own, and a changefeed copies pgbench's tables
(a million accounts). Caches are warm. The peer is the copy of the same tables to CSV files by PostgreSQL's COPY, which
starts nothing.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.support.servers import PostgresServer

SCALE = 10
TARGET_S = 25.0
#: prints the seconds until the capture has started, until the first row is there, and until all tables are copied
_PROGRAM = """
import json, sys, time
began = time.monotonic()
import capture
directory, uri = sys.argv[1:]
with capture.local(f"{directory}/weir") as cluster:
    started = time.monotonic()
    # a table without a key (pgbench_history) is appended to, as in the quickstart
    feed = cluster.create("shop", source=uri, sink=f"delta+file://{directory}/lake", config={"force-replicate": True})
    feed.wait(timeout=300)
    first = next(iter(feed.table("public.pgbench_accounts").to_batches()))
    assert first.num_rows
    print(json.dumps([started - began, time.monotonic() - began]))
"""


def run(scale: int = SCALE) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="weir-first-") as name, PostgresServer(Path(name)) as server:
        argv, environment = server.command("pgbench", "--initialize", "--quiet", "--scale", str(scale))
        subprocess.run(argv, env=dict(environment), check=True, capture_output=True)
        started = time.monotonic()
        for table in ("accounts", "branches", "tellers", "history"):
            argv, environment = server.command("psql", "--command", f"COPY pgbench_{table} TO STDOUT")
            with (Path(name) / f"{table}.csv").open("wb") as output:
                subprocess.run(argv, env=dict(environment), check=True, stdout=output)
        peer_s = time.monotonic() - started
        done = subprocess.run(
            [sys.executable, "-c", _PROGRAM, name, server.uri], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr[-2000:]
    started_s, first_s = json.loads(done.stdout)
    return {
        "what": f"capture.local to the first row of {scale * 100_000:,} accounts in a Delta table",
        "seconds": first_s,
        "seconds_to_start": started_s,
        "seconds_aimed_at": TARGET_S,
        "copy_seconds": peer_s,
        "ratio": TARGET_S / first_s,
    }

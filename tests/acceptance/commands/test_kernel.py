"""A kernel of a notebook: cells are interrupted at any moment, and it is restarted; nothing is lost or left behind."""

import queue
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.patience import patient

pytestmark = [pytest.mark.acceptance, pytest.mark.spark, pytest.mark.matrix, pytest.mark.timeout(600)]

_CELL_S = 120.0
SETUP = """
import capture
from capture.embedded import EmbeddedPostgres
postgres = EmbeddedPostgres(r"{directory}/postgres")
postgres.start()
"""
TABLES = """
postgres.create_database("shop")
postgres.execute("CREATE TABLE item (id int PRIMARY KEY, n int)", database="shop")
postgres.execute("INSERT INTO item SELECT i, 0 FROM generate_series(1, 100) AS i", database="shop");
"""
START = """cluster = await capture.start(r"{directory}/weir")"""
CREATE = """
feed = await cluster.create("shop", source=postgres.uri("shop"), sink=r"delta+file://{directory}/lake")
await feed.wait(timeout=120)
seen = []
"""
CHANGE = """
postgres.execute("UPDATE item SET n = n + 1", database="shop")
[[end]] = postgres.execute("SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint", database="shop")
await feed.wait(ts=int(end) - 1, timeout=60)
"""
FOLLOW = """
async for rows in feed.changes("public.item", name="cell", from_ts="earliest"):
    seen += zip(*(rows.column(name).to_pylist() for name in ("id", "_commit_version", "_change_type")))
    print("has seen", len(seen))
"""
REST = FOLLOW.replace('"earliest")', '"earliest", follow=False)')
CHECK = """
from collections import Counter
rows = dict(postgres.execute("SELECT id, n FROM item", database="shop"))
assert set(rows.values()) == {2} and Counter(id for id, _, _ in set(seen)) == rows, len(set(seen))
assert {kind for _, _, kind in seen} == {"update_postimage"}
assert [(table.table, table.equal) for table in await feed.diff()] == [("public.item", True)]
"""
#: cells that last, or take their time
LONG = ("await feed.wait(ts=2**62)", "await feed.watch()", "await feed.diff()", "await feed.query()", FOLLOW)


class Kernel:
    """A real one; ``run`` raises what a cell raised as an AssertionError."""

    def __init__(self, directory: Path) -> None:
        from jupyter_client.manager import KernelManager

        self.manager: Any = KernelManager(kernel_name="python3")
        self.manager.start_kernel(cwd=str(directory))
        self._client: Any = None
        self._connect()

    def _connect(self) -> None:
        self._client = self.manager.blocking_client()
        self._client.start_channels()
        self._client.wait_for_ready(timeout=patient(60))

    def run(self, cell: str) -> None:
        error = self.result(self._client.execute(cell))
        assert not error, error

    def interrupted(self, cell: str, *, after_s: float, until: str = "") -> str:
        """Run a cell and interrupt it after a while, or once it prints something; what it raised, empty if nothing."""
        asked = self._client.execute(cell)
        if until:
            self._read(asked, until)
        time.sleep(after_s)
        self.manager.interrupt_kernel()
        return self.result(asked)

    def result(self, asked: str) -> str:
        return self._read(asked, "")

    def _read(self, asked: str, until: str) -> str:
        error, deadline = "", time.monotonic() + patient(_CELL_S)
        while time.monotonic() < deadline:
            try:
                message = self._client.get_iopub_msg(timeout=1.0)
            except queue.Empty:
                continue
            if message["parent_header"].get("msg_id") != asked:
                continue
            content = message["content"]
            if message["msg_type"] == "error":
                error = f"{content['ename']}: {content['evalue']}"
            if until and until in content.get("text", ""):
                return ""
            if message["msg_type"] == "status" and content["execution_state"] == "idle":
                return error
        raise AssertionError(f"a cell has not ended: {error}")

    def restart(self) -> None:
        """At once, as a person does whose kernel does not answer."""
        self._client.stop_channels()
        self.manager.restart_kernel(now=True)
        self._connect()

    def children(self) -> list[psutil.Process]:
        found: list[psutil.Process] = psutil.Process(self.manager.provisioner.process.pid).children(recursive=True)
        return found

    def close(self) -> None:
        self._client.stop_channels()
        self.manager.shutdown_kernel(now=True)


@contextmanager
def kernel(directory: Path) -> Iterator[Kernel]:
    found = Kernel(directory)
    try:
        yield found
    finally:
        found.close()


def test_cells_are_interrupted_and_the_kernel_is_restarted(tmp_path: Path) -> None:
    def cell(text: str) -> str:
        return text.replace("{directory}", str(tmp_path))

    with kernel(tmp_path) as notebook:
        for text in (SETUP, TABLES, START, CREATE, CHANGE):
            notebook.run(cell(text))
        error = notebook.interrupted(FOLLOW, after_s=0.0, until="has seen")
        assert error.startswith(("KeyboardInterrupt", "CancelledError")), error
        for number, text in enumerate(LONG):
            notebook.interrupted(text, after_s=(0.05, 0.3, 1.0)[number % 3])
            notebook.run("assert (await feed.query()).state == 'normal'")
        for after_s in (0.02, 0.1, 0.3, 1.0):
            error = notebook.interrupted(f'other = await capture.start(r"{tmp_path}/other")', after_s=after_s)
            if not error:  # it has started meanwhile
                notebook.run("await other.stop()")
            names = Counter(process.name() for process in notebook.children())
            assert names["etcd"] == names["java"] == 1, "it leaves no process behind, and takes nobody else's"
        notebook.run(f'other = await capture.start(r"{tmp_path}/other")\nawait other.stop()')
        notebook.run(CHANGE)
        notebook.run(REST)
        notebook.run(CHECK)
        left = notebook.children()
        assert {"etcd", "java", "postgres"} <= {process.name() for process in left}
        notebook.restart()
        _, alive = psutil.wait_procs(left, timeout=patient(30))
        assert alive == [], "they end with the kernel"
        for text in (SETUP, START, 'feed = cluster.changefeed("shop")', CHANGE):
            notebook.run(cell(text))
        notebook.run("assert [table.equal for table in await feed.diff()] == [True]")
        notebook.run("await cluster.stop()\npostgres.stop()")

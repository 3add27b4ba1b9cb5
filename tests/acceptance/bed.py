"""A test bed of processes: one etcd, one PostgreSQL, several captures, a load that writes while things are broken.

Captures are real processes (``python -m capture server``) in a session of their own that die with this one. What
happens to them is said here in words (``kill``, ``pause``, ``owner``, ``sync_worker``); what must hold afterwards is in
the tests.
"""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import anyio
import psutil
import psycopg

from agent.ports.source import Scope
from agent.sources import open_source
from capture.api.client import Client
from capture.api.port import CaptureView, ChangefeedSpec
from capture.embedded import EmbeddedEtcd, EmbeddedPostgres, children, places
from capture.embedded.postgres import tool
from reactor.errors import WeirError
from reactor.records.changefeed import ChangefeedConfig, FeedState, SinkMode, Unit
from reactor.store.etcd import connect
from reactor.views import ChangefeedView
from tests.acceptance.network import Host, Network
from tests.acceptance.sql_store import SqlStore
from tests.patience import patient

T = TypeVar("T")

DATABASE = "bank"
SESSION_TTL_S = 10
_POLL_S = 0.1
_TIMEOUT_S = 120.0
#: three drivers start side by side, on a machine that does other things too
_JOIN_TIMEOUT_S = 240.0
_ANSWER_TIMEOUT_S = patient(5.0)
#: of each capture's log, in the words of a failure
_LOG_LINES = 12
#: source and sink are looked at, and kernels may be compiled
_CREATE_TIMEOUT_S = patient(60.0)

_SCHEMA = """
CREATE TABLE account (id int PRIMARY KEY, balance bigint NOT NULL, note text);
CREATE TABLE audit (id bigserial PRIMARY KEY, account int NOT NULL, delta int NOT NULL);
CREATE TABLE item (id int PRIMARY KEY, value int NOT NULL);
INSERT INTO account SELECT i, 0, repeat('x', i % 50) FROM generate_series(1, 2000) AS i;
"""
#: Every transaction leaves one row in audit: what the changelog must show exactly once.
_SCRIPT = """
\\set account random(1, 2000)
\\set delta random(-5000, 5000)
\\set item random(1, 500)
BEGIN;
UPDATE account SET balance = balance + :delta WHERE id = :account;
INSERT INTO audit (account, delta) VALUES (:account, :delta);
INSERT INTO item VALUES (:item, :delta) ON CONFLICT (id) DO UPDATE SET value = excluded.value;
DELETE FROM item WHERE id = 1 + (:item * 7) % 500;
END;
"""


@dataclass(slots=True)
class Process:
    """One capture's process. ``address`` and ``data_dir`` stay when it is started again."""

    name: str
    address: str
    data_dir: Path
    host: Host | None = None
    child: children.Child | None = None
    #: of what it knows nothing is asked
    is_cut_off: bool = False

    @property
    def pid(self) -> int:
        assert self.child is not None
        return self.child.pid

    @property
    def is_running(self) -> bool:
        return self.child is not None and self.child.poll() is None

    @property
    def is_stopped(self) -> bool:
        try:
            return self.is_running and psutil.Process(self.pid).status() == psutil.STATUS_STOPPED
        except psutil.NoSuchProcess:  # another thread has just ended it
            return False

    @property
    def has_fallen(self) -> bool:
        """It has died, or stands still."""
        return self.child is not None and (self.is_stopped or not self.is_running)


class Load:
    """A pgbench (or another writer), and the next one when the database was away."""

    def __init__(self, start: Callable[[], children.Child]) -> None:
        self._start = start
        self._child = start()

    def again(self) -> None:
        self.stop()
        self._child = self._start()

    def stop(self) -> None:
        children.stop(self._child, signal.SIGTERM)


class Bed:
    """A context manager: everything is started and ends with the block. ``environment``: for all captures.

    With a ``network`` every capture is on a host of its own, and etcd and PostgreSQL are reached through that.
    ``sink`` is the scheme of the changefeeds' sinks.
    """

    def __init__(
        self,
        directory: Path,
        *,
        captures: int,
        environment: Mapping[str, str] | None = None,
        session_ttl_s: int = SESSION_TTL_S,
        spark_master: str = "local[1]",
        network: Network | None = None,
        sink: str = "delta+file",
        store: str = "etcd",
    ) -> None:
        self.directory = directory
        self.database = DATABASE
        self.lakes = directory / "lake"
        self.sink = sink
        self.environment = dict(environment or {})
        self.session_ttl_s = session_ttl_s
        self.spark_master = spark_master
        self.is_networked = network is not None
        #: URL of the cluster's store, if it is not etcd
        self.store = ""
        self.etcd = EmbeddedEtcd(directory / "etcd", host=network.etcd if network else "127.0.0.1")
        self.sql_store = SqlStore(directory / "store") if store == "postgres" else None
        self.postgres = EmbeddedPostgres(directory / "postgres", host=network.postgres if network else "127.0.0.1")
        self.processes = [self._process(f"capture-{index}", network) for index in range(captures)]

    def __enter__(self) -> Self:
        try:
            self.store_server.start()
            self.store = self.sql_store.url if self.sql_store else ""
            self.start_source()
            for process in self.processes:
                self.start(process)
            self.wait_for("every capture is a member", self._all_joined, timeout_s=_JOIN_TIMEOUT_S)
        except BaseException:
            self.close()
            raise
        return self

    def _all_joined(self) -> bool:
        """:raises AssertionError: one has ended, and will not join."""
        ended = [process.name for process in self.processes if not process.is_running]
        assert not ended, f"{' and '.join(ended)} ended while joining: {self._last_lines()}"
        return len(self.captures()) == len(self.processes)

    def _last_lines(self) -> str:
        """The end of each capture's log: the directory may be gone when a failure is read."""
        logs = [self.directory / f"{process.name}.log" for process in self.processes]
        ends = [(log.name, log.read_text(errors="replace").splitlines()[-_LOG_LINES:]) for log in logs if log.exists()]
        return "\n".join([str(self.directory), *(f"{name}: {line}" for name, lines in ends for line in lines)])

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        for process in self.processes:
            self.kill(process)
        self.stop_source()
        self.store_server.stop()

    @property
    def store_server(self) -> EmbeddedEtcd | SqlStore:
        return self.sql_store or self.etcd

    @contextmanager
    def on_database(self, name: str) -> Iterator[Self]:
        """The bed for one of several modules that share it: with a database, tables and sinks of its own. Its
        changefeeds go with the block."""
        self.database, self.lakes = name, self.directory / f"lake-{name}"
        self._make_database()
        yield self
        self.mend()
        self.wait_for("its changefeeds are removed", self._are_removed)

    def _are_removed(self) -> bool:
        """Remove what is still there; nobody may answer while an owner is elected."""
        views = self.ask(lambda client: client.list())
        for view in views:
            self.ask(lambda client, feed=view.id: client.remove(feed), timeout_s=_CREATE_TIMEOUT_S)  # type: ignore[misc]
        return not views

    # Captures

    def start(self, process: Process) -> None:
        command = process.host.inside if process.host else []
        command += [*self.interpreter(process), "-m", "capture", "server"]
        command += ["--store", self.store] if self.store else ["--etcd", self.etcd.url]
        command += ["--addr", process.address]
        command += ["--data-dir", str(process.data_dir), "--log-storage", self.log_storage]
        command += ["--secret-key-file", str(self._secret_key()), "--config", str(self._config())]
        with (self.directory / f"{process.name}.log").open("ab") as output:
            process.child = children.spawn(command, output=output, environment=self.environment)

    @property
    def log_storage(self) -> str:
        """Where the change log is."""
        return str(self.directory / "log")

    def interpreter(self, process: Process) -> list[str]:
        """What runs its code."""
        return [sys.executable]

    def kill(self, process: Process) -> None:
        """``kill -9``, also of one that is stopped."""
        if process.child is not None:
            children.stop(process.child)
            process.child = None

    def terminate(self, process: Process, *, timeout_s: float = _TIMEOUT_S) -> int:
        """SIGTERM; its exit code."""
        assert process.child is not None
        os.kill(process.pid, signal.SIGTERM)
        code = process.child.wait(patient(timeout_s))
        process.child = None
        return code

    def pause(self, process: Process) -> None:
        os.kill(process.pid, signal.SIGSTOP)

    def proceed(self, process: Process) -> None:
        os.kill(process.pid, signal.SIGCONT)

    def mend(self) -> None:
        """Whatever has been done to captures is undone: all of them run, and are members."""
        for process in self.processes:
            if process.is_running:
                self.proceed(process)
            else:
                self.start(process)
        self.wait_for("all captures again", self._all_joined, timeout_s=_JOIN_TIMEOUT_S)

    def by_id(self, capture_id: str) -> Process:
        address = next(view.address for view in self.captures() if view.id == capture_id)
        return next(process for process in self.processes if process.address == address)

    def id_of(self, process: Process) -> str:
        return next(view.id for view in self.captures() if view.address == process.address)

    def controller(self) -> Process:
        """The elected capture."""
        return self.found("a controller", lambda: self._one(lambda view: view.is_owner))

    def owner(self, feed: str) -> Process:
        """The capture that owns the changefeed."""
        return self.found(f"the owner of {feed}", lambda: self._one(lambda view: feed in view.owns))

    def _one(self, condition: Callable[[CaptureView], bool]) -> Process:
        return self.by_id(next(view.id for view in self.captures() if condition(view)))

    def found(self, what: str, look: Callable[[], T]) -> T:
        """What ``look`` returns when it finds it: for moments an owner or a worker is on no capture.

        ``look`` raises StopIteration while it finds nothing.
        """
        answers = list[T]()

        def is_found() -> bool:
            answers.append(look())
            return True

        self.wait_for(f"{what} is found", is_found)
        return answers[-1]

    def own(self, owner: Process, *feeds: str) -> None:
        """Have a capture own all of them."""
        for feed in feeds:
            if self.owner(feed) is not owner:
                self.ask(lambda client, feed=feed: client.move_owner(feed, self.id_of(owner)))  # type: ignore[misc]
                self.wait_for(f"{feed} has moved", lambda feed=feed: self.owner(feed) is owner)  # type: ignore[misc]

    def sync_worker(self, feed: str) -> Process:
        return self.found(f"the worker of {feed}", lambda: self.by_id(self.query(feed).worker))

    def span_holders(self, feed: str) -> list[Process]:
        return self.found(f"the captures of {feed}'s spans", lambda: self._span_holders(feed))

    def _span_holders(self, feed: str) -> list[Process]:
        tables = self.ask(lambda client: client.tables(feed))
        ids = {span.capture for table in tables for span in table.spans if span.capture}
        return [self.by_id(capture_id) for capture_id in sorted(ids)]

    # Questions, to whichever capture answers

    def captures(self) -> list[CaptureView]:
        return self.ask(lambda client: client.captures())

    def stored(self, key: str) -> bytes | None:
        """What etcd has under the key."""

        async def read() -> bytes | None:
            client = await connect([self.etcd.url])
            try:
                item = await client.get(key)
                return item.value if item else None
            finally:
                await client.close()

        return anyio.run(read)

    def query(self, feed: str) -> ChangefeedView:
        return self.ask(lambda client: client.query(feed))

    def ask(self, question: Callable[[Client], T], *, timeout_s: float = _ANSWER_TIMEOUT_S) -> T:
        """The first answer.

        :raises WeirError: nobody answers.
        """
        error: WeirError | None = None
        for process in self.processes:
            if not process.is_running or process.is_stopped or process.is_cut_off:
                continue
            try:
                with Client(process.address, token=self.token_of(process), timeout_s=timeout_s) as client:
                    return question(client)
            except WeirError as refused:
                error = refused
        raise error or WeirError("no capture runs; start one")

    def token_of(self, process: Process) -> str:
        """The server's own, or another's of the cluster, which is good there too."""
        files = [one.data_dir / "api-token" for one in (process, *self.processes)]
        return next((file.read_text().strip() for file in files if file.exists()), "")

    def wait_for(self, what: str, condition: Callable[[], bool], *, timeout_s: float = _TIMEOUT_S) -> float:
        """Seconds it took. A question that nobody can answer yet is a condition that does not hold yet."""
        started = time.monotonic()
        while True:
            last = ""
            try:
                if condition():
                    return time.monotonic() - started
            except (WeirError, StopIteration) as error:
                last = f" ({error})"
            assert time.monotonic() - started < patient(timeout_s), (
                f"not in {patient(timeout_s):.0f} s: {what}{last}; {self._last_lines()}"
            )
            time.sleep(_POLL_S)

    # Changefeeds

    def create_feed(self, name: str, sink_mode: SinkMode = SinkMode.UPSERT, **fields: object) -> None:
        """A changefeed over everything, in sync; ``fields`` of ``ChangefeedSpec`` win."""
        self.create(name, sink_mode=sink_mode, **fields)
        self.wait_for(f"{name} is in sync", lambda: self._is_synced(name))

    def _is_synced(self, name: str) -> bool:
        """What is written from now on is followed: before a stream has begun there is no position."""
        view = self.query(name)
        return view.unit is Unit.SYNC and view.checkpoint_ts > 0

    def create(self, name: str, **fields: object) -> None:
        usual = {"source_uri": self.source_uri, "sink_uri": f"{self.sink}://{self.lake(name)}"}
        spec = ChangefeedSpec.model_validate({"changefeed_id": name} | usual | fields)
        self.ask(lambda client: client.create(spec), timeout_s=_CREATE_TIMEOUT_S)

    def lake(self, feed: str) -> Path:
        return self.lakes / feed

    def covers(self, feed: str, ts: int) -> bool:
        view = self.query(feed)
        assert view.state not in (FeedState.FAILED, FeedState.STOPPED), f"{feed} is {view.state}: {view.error}"
        return view.checkpoint_ts >= ts

    # The source

    @property
    def source_uri(self) -> str:
        return self.postgres.uri(self.database)

    def start_source(self) -> None:
        self.postgres.start()
        self._make_database()
        (self.directory / "load.sql").write_text(_SCRIPT)

    def _make_database(self) -> None:
        self.postgres.create_database(self.database)
        with psycopg.connect(self.postgres.dsn(self.database)) as connection:
            connection.execute(_SCHEMA)

    def stop_source(self) -> None:
        self.postgres.stop()

    def last_ts(self) -> int:
        """No commit of the past lies above it."""
        return open_source(self.source_uri, Scope("bed", "bed", SinkMode.UPSERT, ChangefeedConfig())).current_ts()

    def execute(self, sql: str) -> list[list[object]]:
        return self.postgres.execute(sql, database=self.database)

    def transactions(self) -> int:
        return int(self.postgres.execute("SELECT count(*) FROM audit", database=self.database)[0][0])

    @contextmanager
    def load(self, *, rate: int = 100) -> Iterator["Load"]:
        """pgbench in the background for as long as the block takes."""
        load = Load(lambda: self._writer(rate))
        try:
            yield load
        finally:
            load.stop()

    def _writer(self, rate: int) -> children.Child:
        command = [str(tool("pgbench")), "--no-vacuum", "--client", "2", "--time", "7200", "--rate", str(rate)]
        command += ["--file", str(self.directory / "load.sql")]
        with (self.directory / "pgbench.log").open("ab") as output:
            return children.spawn(command, output=output, environment=self.postgres.environment(self.database))

    def _process(self, name: str, network: Network | None) -> Process:
        host = network.hosts[name] if network else None
        address = f"{host.address if host else '127.0.0.1'}:{places.free_port()}"
        return Process(name, address, self.directory / name, host)

    def _secret_key(self) -> Path:
        from capture.security.key_file import new_key

        path = self.directory / "secret.key"
        if not path.exists():
            path.write_bytes(new_key())
        return path

    def _config(self) -> Path:
        path = self.directory / "weir.toml"
        settings = [f"session-ttl-seconds = {self.session_ttl_s}", f'spark-master = "{self.spark_master}"']
        if self.is_networked:
            settings.append("insecure = true")
        if self.spark_master.startswith("spark://"):
            settings.append("insecure-spark = true")
        path.write_text("\n".join([*settings, "[spark]", '"spark.driver.memory" = "512m"']))
        return path

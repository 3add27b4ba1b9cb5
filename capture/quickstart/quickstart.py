"""Quickstart: a database under load, replicated into lakehouse tables by a cluster of one capture, on one machine.

Everything is stored below one directory: the database, the store, ``log``, ``lake``, the key for secrets. A second run
there continues from the first, however that ended. Optionally jobs run on a Spark cluster, and log and tables are
stored on an S3 server (``parts``). All parts are children of this process and die with it.

start parts → tables (once) → changefeed (once) → snapshot → load for N seconds → checkpoint covers it → compare
"""

import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal, TypeVar

import anyio
import structlog
from anyio import to_thread
from pydantic import BaseModel

from agent.ports.source import Scope
from agent.sources import open_source
from agent.spark.java import find_java
from capture import logs
from capture.address import DEFAULT_ADDRESS, split_address
from capture.api import port as views
from capture.config import ServerSettings, load_server_settings
from capture.directory import locked, make_directory
from capture.embedded import places
from capture.errors import ChangefeedNotFoundError, ConfigError
from capture.quickstart.lag import LagMeter
from capture.quickstart.load import Workload
from capture.quickstart.parts import FormatKind, Parts, SparkKind, StorageKind, StoreKind
from capture.quickstart.pgbench import Pgbench
from capture.quickstart.sysbench import Sysbench
from capture.server import NewMember, running
from capture.terminal import console
from capture.terminal.progress import Reporter
from reactor import loop
from reactor.errors import NotOwnerError, WeirError
from reactor.records.changefeed import ChangefeedConfig, FeedState, FilterConfig, SinkMode, Unit
from reactor.views import ChangefeedView

FEED = "quickstart"
_POLL_S = 0.1
_RETRY_S = 0.2
_RETRY_LIMIT_S = 60.0
_RATE_WINDOW_S = 2.0
_ENDED = (FeedState.FAILED, FeedState.STOPPED, FeedState.FINISHED, FeedState.REMOVED)

T = TypeVar("T")
_log = structlog.get_logger()


SourceKind = Literal["postgres", "mariadb"]
_DIRECTORIES: Mapping[SourceKind, Path] = {"postgres": Path("weir-data"), "mariadb": Path("weir-data-mariadb")}


class Summary(BaseModel):
    """The output of ``--json``."""

    equal: bool
    tables: int
    rows_snapshot: int
    changes: int
    changes_per_second: float
    lag_p50_ms: float | None
    lag_p99_ms: float | None
    #: the first differing keys, by table; empty if equal
    differences: dict[str, tuple[str, ...]] = {}


def run(
    source: SourceKind,
    directory: Path | None,
    new_member: NewMember,
    *,
    seconds: int,
    scale: int,
    rate: int,
    spark: SparkKind,
    storage: StorageKind,
    format: FormatKind,
    store: StoreKind,
    json: bool,
) -> int:
    """Run the quickstart, and return the exit code: 0 if source and sink are equal at the end, 130 after Ctrl-C.

    :raises WeirError: a part cannot start, or the changefeed failed.
    """
    directory = directory or _default_directory(source, storage, format, store)
    _refuse_other_source(directory, source)
    _refuse_other_storage(directory, storage)
    _refuse_other_format(directory, format)
    _refuse_other_store(directory, store)
    make_directory(directory)
    settings = _settings(directory, store)
    workload = Pgbench(directory) if source == "postgres" else Sysbench(directory)
    parts = Parts(directory, spark, storage, format, store)
    logs.configure(settings.log_level, file=directory / "weir.log")
    with locked(directory / "quickstart.lock", what="a quickstart"), Reporter() as reporter:
        session = Quickstart(
            settings,
            workload,
            reporter=reporter,
            seconds=seconds,
            scale=scale,
            rate=rate,
            new_member=new_member,
            parts=parts,
        )
        summary = loop.run(_until_signalled, session.run)
    if summary is None:
        return 130
    if json:
        console.print_json(summary)
    else:
        _print(summary, parts)
    return 0 if summary.equal else 1


class Quickstart:
    """One run. ``new_member`` creates the capture."""

    def __init__(
        self,
        settings: ServerSettings,
        workload: Workload,
        *,
        reporter: Reporter,
        seconds: int,
        scale: int,
        rate: int,
        new_member: NewMember,
        parts: Parts | None = None,
    ) -> None:
        self._settings = settings
        self._reporter = reporter
        self._seconds = seconds
        self._scale = scale
        self._rate = rate
        self._new_member = new_member
        self._workload = workload
        self._parts = parts or Parts(settings.data_dir)

    async def run(self) -> Summary:
        await to_thread.run_sync(find_java)
        async with self._source(), self._running_parts() as settings:
            own = "" if settings.sql_store else "etcd, "
            self._reporter.step(f"starting {own}Spark and a capture")
            async with running(settings, new_member=self._new_member) as member:
                self._reporter.finish()
                feed = await self._changefeed(member.cluster)
                feed = await self._snapshot(member.cluster, feed)
                meter, changes, elapsed_s = await self._stream(member.cluster)
                diffs = await self._compare(member.cluster)
        return Summary(
            equal=bool(diffs) and all(diff.equal for diff in diffs),
            tables=len(diffs),
            rows_snapshot=feed.rows_done,
            changes=changes,
            changes_per_second=round(changes / elapsed_s, 1),
            lag_p50_ms=meter.percentile_ms(50),
            lag_p99_ms=meter.percentile_ms(99),
            differences={diff.table: diff.differences for diff in diffs if not diff.equal},
        )

    @asynccontextmanager
    async def _source(self) -> AsyncIterator[None]:
        """Run the database, with its tables."""
        workload = self._workload
        self._reporter.step(f"starting {workload.server}")
        try:
            await to_thread.run_sync(workload.start)
            self._reporter.finish()
            if not await to_thread.run_sync(workload.is_prepared):
                self._reporter.step(workload.describe(self._scale))
                await workload.prepare(self._scale)
                self._reporter.finish()
            yield
        finally:
            with anyio.CancelScope(shield=True):
                await to_thread.run_sync(workload.stop)

    @asynccontextmanager
    async def _running_parts(self) -> AsyncIterator[ServerSettings]:
        """Run the parts, and yield the capture's settings with them."""
        parts = self._parts.running(self._settings, self._reporter)
        try:
            yield await to_thread.run_sync(parts.__enter__)
        finally:
            with anyio.CancelScope(shield=True):
                await to_thread.run_sync(parts.__exit__, None, None, None)

    async def _changefeed(self, cluster: views.Cluster) -> ChangefeedView:
        """Return the changefeed of an earlier run, or a new one."""
        try:
            feed = await _when_owner(lambda: cluster.query(FEED, tables=False))
        except ChangefeedNotFoundError:
            return await _when_owner(lambda: cluster.create(self._spec()))
        if feed.state in (FeedState.STOPPED, FeedState.FAILED):
            return await _when_owner(lambda: cluster.resume(FEED))
        return feed

    def _spec(self) -> views.ChangefeedSpec:
        return views.ChangefeedSpec(
            changefeed_id=FEED,
            source_uri=self._workload.uri,
            sink_uri=self._parts.sink_uri,
            # a table without a key (pgbench_history) is appended to
            config=ChangefeedConfig(filter=FilterConfig(rules=self._workload.rules), force_replicate=True),
        )

    async def _snapshot(self, cluster: views.Cluster, feed: ChangefeedView) -> ChangefeedView:
        """Wait until sync has started."""
        self._reporter.step("snapshot")
        started = time.monotonic()
        while feed.unit is not Unit.SYNC:
            await anyio.sleep(_POLL_S)
            feed = _healthy(await _when_owner(lambda: cluster.query(FEED, tables=False)))
            rate = feed.rows_done / (time.monotonic() - started)
            self._reporter.show(feed.rows_done, feed.rows_total, f"{feed.rows_done:,} rows, {rate:,.0f} rows/s")
        self._reporter.finish(f"{feed.rows_done:,} rows")
        return feed

    async def _stream(self, cluster: views.Cluster) -> tuple[LagMeter, int, float]:
        """Write, watch, and wait until the checkpoint covers what was written."""
        self._reporter.step("replicating")
        before = (await _when_owner(lambda: cluster.query(FEED, tables=False))).changes
        started, meter, rate = time.monotonic(), LagMeter(since=time.time()), _Rate()
        last_ts: int | None = None
        async with self._workload.writing(seconds=self._seconds, rate=self._rate) as writing:
            while True:
                feed = _healthy(await _when_owner(lambda: cluster.query(FEED, tables=False)))
                meter.observe(time.time(), feed.checkpoint_time)
                self._report(feed, time.monotonic() - started, rate)
                if last_ts is None and not writing.is_running():
                    last_ts = await to_thread.run_sync(self._last_ts)
                if last_ts is not None and feed.checkpoint_ts >= last_ts:
                    break
                await anyio.sleep(_POLL_S)
        self._reporter.finish(f"{feed.changes - before:,} changes")
        return meter, feed.changes - before, time.monotonic() - started

    def _report(self, feed: ChangefeedView, elapsed_s: float, rate: "_Rate") -> None:
        lag = "" if feed.lag_seconds is None else f", lag {feed.lag_seconds:.1f} s"
        blocked = f", held up by {feed.blocked_by}" if feed.blocked_by else ""
        per_second = rate.of(feed.changes)
        self._reporter.show(min(elapsed_s, self._seconds), self._seconds, f"{per_second:,.0f} changes/s{lag}{blocked}")

    def _last_ts(self) -> int:
        spec = self._spec()
        return open_source(spec.source_uri, Scope("quickstart", FEED, SinkMode.UPSERT, spec.config)).current_ts()

    async def _compare(self, cluster: views.Cluster) -> list[views.TableDiff]:
        self._reporter.step("comparing source and sink")
        diffs = await _when_owner(lambda: cluster.diff(FEED))
        self._reporter.finish("equal" if all(diff.equal for diff in diffs) else "NOT equal")
        return diffs


class _Rate:
    """Changes per second over about the last two seconds."""

    def __init__(self) -> None:
        self._seen: list[tuple[float, int]] = []

    def of(self, changes: int) -> float:
        now = time.monotonic()
        self._seen = [item for item in self._seen if item[0] > now - _RATE_WINDOW_S] + [(now, changes)]
        (start, first), (end, last) = self._seen[0], self._seen[-1]
        return (last - first) / (end - start) if end > start else 0.0


async def _until_signalled(work: Callable[[], Awaitable[T]]) -> T | None:
    """Return the result of ``work``, or None if SIGINT or SIGTERM came first (everything is cleaned up by then)."""
    result: T | None = None
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_cancel_when_signalled, signals, tasks.cancel_scope)
            result = await work()
            tasks.cancel_scope.cancel()
    return result


async def _cancel_when_signalled(signals: AsyncIterator[signal.Signals], scope: anyio.CancelScope) -> None:
    async for number in signals:
        _log.info("signal", name=number.name)
        scope.cancel()


async def _when_owner(ask: Callable[[], Awaitable[T]]) -> T:
    """Retry while there is no owner, or after a transient failure."""
    deadline = time.monotonic() + _RETRY_LIMIT_S
    while True:
        try:
            return await ask()
        except WeirError as error:
            if not (error.retryable or isinstance(error, NotOwnerError)) or time.monotonic() > deadline:
                raise
            await anyio.sleep(_RETRY_S)


def _healthy(feed: ChangefeedView) -> ChangefeedView:
    """:raises WeirError: the changefeed has stopped for good."""
    if feed.state in _ENDED:
        why = f": {feed.error.message}" if feed.error is not None else ""
        raise WeirError(f"changefeed {FEED} is {feed.state}{why}; see weir.log")
    return feed


def _refuse_other_source(directory: Path, source: SourceKind) -> None:
    """:raises ConfigError: the directory was used with another source."""
    for other in _DIRECTORIES:
        if other != source and (directory / other).exists():
            raise ConfigError(f"{directory} holds a quickstart of {other}; choose another --dir for {source}")


def _refuse_other_storage(directory: Path, storage: StorageKind) -> None:
    """:raises ConfigError: the directory was used with its log and tables elsewhere."""
    was = "s3" if (directory / "s3").exists() else "directory" if (directory / "log").exists() else storage
    if was != storage:
        where = "on an S3 server" if was == "s3" else "in directories"
        raise ConfigError(
            f"{directory} holds a quickstart with its log and tables {where}; "
            f"choose another --dir for --storage {storage}"
        )


def _refuse_other_format(directory: Path, format: FormatKind) -> None:
    """:raises ConfigError: the directory was used with another table format."""
    is_iceberg = any(path.exists() for path in (directory / "lake" / "catalog.db", directory / "catalog.db"))
    is_used = any((directory / place).exists() for place in ("lake", "s3"))
    was = "iceberg" if is_iceberg else "delta" if is_used else format
    if was != format:
        raise ConfigError(f"{directory} holds a quickstart with {was} tables; choose another --dir for {format}")


def _refuse_other_store(directory: Path, store: StoreKind) -> None:
    """:raises ConfigError: the directory was used with another store."""
    files: Mapping[StoreKind, str] = {"etcd": "etcd", "sqlite": "store.db", "postgresql": "store"}
    for was, file in files.items():
        if was != store and (directory / file).exists():
            raise ConfigError(
                f"{directory} holds a quickstart with {was} as its store; choose another --dir for {store}"
            )


def _default_directory(source: SourceKind, storage: StorageKind, format: FormatKind, store: StoreKind) -> Path:
    directory = _DIRECTORIES[source]
    kinds = (storage, "directory"), (format, "delta"), (store, "etcd")
    suffixes = [kind for kind, usual in kinds if kind != usual]
    return directory.with_name("-".join((directory.name, *suffixes)))


def _settings(directory: Path, store: StoreKind) -> ServerSettings:
    """Use the default address if it is free, so that ``weir changefeed query`` finds it; otherwise any."""
    host, port = split_address(DEFAULT_ADDRESS)
    address = DEFAULT_ADDRESS if places.is_free(port, host) else f"{host}:0"
    return load_server_settings(etcd="", store="sqlite" if store == "sqlite" else "", addr=address, data_dir=directory)


def _print(summary: Summary, parts: Parts) -> None:
    rows = [(name.replace("_", " "), _shown(value)) for name, value in summary if name != "differences"]
    console.print_table(("quickstart", "result"), rows)
    for table, keys in summary.differences.items():
        console.print_table((f"{table}: first differences",), [(key,) for key in keys])
    console.print_line(f"{parts.format.capitalize()} tables: {parts.lake}")


def _shown(value: object) -> str:
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    return f"{value:,}"

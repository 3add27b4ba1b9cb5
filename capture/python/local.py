"""Blocking interface: a cluster and its changefeeds, for scripts, REPLs and notebooks without ``await``."""

import builtins
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

import pyarrow as pa

from capture.api import port as views
from capture.api.client import Client
from capture.api.connection import Connection
from capture.api.inputs import Config, config_of, model_of, one_of, spec_of
from capture.api.subscriptions import EXPIRES_DEFAULT_S
from capture.errors import CaptureNotEmptyError
from capture.python import html, live, waiting
from capture.python.changes import Subscription
from capture.python.moment import Moment
from capture.python.samples import Samples
from capture.python.table import Table
from capture.python.waiting import Goal
from reactor.records.changefeed import FeedState, Mode, SinkMode
from reactor.records.sync_point import SyncPoint
from reactor.views import ChangefeedView, MaintainedView, OwnerMoveView, SubscriptionView, TableFilesView, TableView

_DRAIN_POLL_S = 0.5
T = TypeVar("T")


class Host(Protocol):
    """A capture that runs in this process."""

    def stop(self) -> None:
        """Let it leave the cluster; return when it has."""
        ...


class LocalChangefeed:
    """One changefeed. ``view``: as the last answer showed it; None before the first. ``samples``: lag and throughput in
    the answers so far."""

    def __init__(self, connection: Connection, id: str, view: ChangefeedView | None = None) -> None:
        self.id = id
        self.view = view
        self.samples = Samples()
        self._connection = connection

    def query(self, *, tables: bool = True) -> ChangefeedView:
        """Return state, positions, lag, errors, and with ``tables`` each of these. Without, the answer is small however
        many there are (``table_count``)."""
        return self._seen(self._call(lambda client: client.query(self.id, tables=tables)))

    def poll(self) -> ChangefeedView:
        """As ``query`` without tables."""
        return self.query(tables=False)

    def with_tables(self, view: ChangefeedView) -> ChangefeedView:
        """Return an answer to ``poll`` with its tables as they are now."""
        return view if view.tables else self._seen(view.model_copy(update={"tables": tuple(self.tables())}))

    def pause(self) -> ChangefeedView:
        return self._seen(self._call(lambda client: client.pause(self.id)))

    def resume(self, *, overwrite_checkpoint_ts: int | None = None, resync: bool = False) -> ChangefeedView:
        """Resume, or retry held tables. ``resync``: its position is lost; take a new one and copy every table again."""
        ts = overwrite_checkpoint_ts
        return self._seen(self._call(lambda client: client.resume(self.id, overwrite_checkpoint_ts=ts, resync=resync)))

    def update(
        self,
        *,
        source: str | None = None,
        sink: str | None = None,
        mode: Mode | str | None = None,
        target_ts: int | None = None,
        config: Config = None,
        resync: bool = False,
        dry_run: bool = False,
    ) -> views.UpdateView:
        """Change its parameters; None: unchanged. ``target_ts`` 0: none. ``resync``: copy tables again whose rows or
        columns are filtered otherwise. ``dry_run``: only show the changes."""
        asked = model_of(
            views.ChangefeedUpdate,
            source_uri=source,
            sink_uri=sink,
            mode=None if mode is None else one_of(Mode, mode, "mode"),
            target_ts=target_ts,
            config=None if config is None else config_of(config),
            resync=resync,
            dry_run=dry_run,
        )
        return self._call(lambda client: client.update(self.id, asked))

    def rewind(self, ts: int) -> views.RewindView:
        return self._call(lambda client: client.rewind(self.id, ts))

    def remove(self) -> None:
        """Remove it; the sink's tables stay."""
        self._call(lambda client: client.remove(self.id))

    def tables(self) -> list[TableView]:
        return self._call(lambda client: client.tables(self.id))

    def table(self, name: str, *, storage_options: Mapping[str, str] | None = None) -> Table:
        """Return a table (schema.name) to read. ``storage_options``: credentials, if the storage does not find them by
        itself.

        :raises TableNotFoundError: the changefeed has no such table.
        """
        found = self._call(lambda client: client.table(self.id, name))
        return Table.of(self.query(tables=found is None), name, storage_options, found=found)

    def changes(
        self,
        table: str,
        *,
        from_ts: int | str = "latest",
        follow: bool = True,
        name: str | None = None,
        expires: float = EXPIRES_DEFAULT_S,
    ) -> Iterator[pa.Table]:
        """Iterate over the changes of a table (schema.name), read directly from the log storage: the columns of a
        changelog table, which are those that the source had then.

        ``from_ts``: behind a Ts (of a ``Moment``, for example), "earliest" or "latest". ``follow``: wait for further
        changes; otherwise end where the log ends. ``name``: a reader of that name continues behind what it has been
        given before; changes that it had not finished with come again. Its position is kept ``expires`` seconds
        without a request.

        :raises WeirError: the log does not reach back to there, or cannot be read.
        """
        with self.subscription(table, from_ts=from_ts, name=name, expires=expires) as reader:
            yield from reader.batches(follow=follow)

    def subscription(self, table: str, **asked: Any) -> Subscription:
        """Open a reader; ``asked``: as ``Subscription`` has it."""
        return Subscription(self._connection, self.id, table, **asked)

    def subscriptions(self) -> list[SubscriptionView]:
        """Return the readers of its changes."""
        return self._call(lambda client: client.subscriptions(self.id))

    def close_subscription(self, name: str) -> None:
        """Forget a reader's position, so that the log is not kept for it."""
        self._call(lambda client: client.close_subscription(self.id, name))

    def sync_points(self) -> list[SyncPoint]:
        """Return the sync points that are kept, oldest first."""
        return self._call(lambda client: client.sync_points(self.id))

    def at(self, ts: int | SyncPoint | None = None, *, storage_options: Mapping[str, str] | None = None) -> Moment:
        """Return all tables as of the newest sync point, or the newest one at or before ``ts``.

        :raises SyncPointNotFoundError: there is none.
        """
        return Moment.of(self.query(), self.sync_points(), ts, storage_options)

    def move(self, table: str, capture_id: str) -> views.MoveView:
        return self._call(lambda client: client.move_table(self.id, table, capture_id))

    def move_owner(self, capture_id: str) -> OwnerMoveView:
        """Let another capture own the changefeed."""
        return self._call(lambda client: client.move_owner(self.id, capture_id))

    def split(self, table: str, spans: int | None = None) -> views.CutView:
        """Divide a table into ``spans`` spans, or as many as the captures can share evenly."""
        return self._call(lambda client: client.split(self.id, table, spans))

    def join(self, table: str) -> views.CutView:
        """Undo ``split``."""
        return self._call(lambda client: client.split(self.id, table, 1))

    def rebalance(self) -> None:
        self._call(lambda client: client.rebalance(self.id))

    def resync(self, table: str, *, rows_per_second: int | None = None) -> views.TableResyncView:
        """Copy a table (schema.name) again from its source, while all others flow. ``rows_per_second``: to read at
        most."""
        return self._call(lambda client: client.resync_table(self.id, table, rows_per_second=rows_per_second))

    def cancel_resync(self, table: str) -> views.TableResyncView:
        return self._call(lambda client: client.cancel_resync(self.id, table))

    def maintain_table(self, table: str) -> MaintainedView:
        """Join small files of a table (schema.name) at the sink, and remove what nobody reads any more, at once."""
        return self._call(lambda client: client.maintain_table(self.id, table))

    def table_files(self, table: str) -> TableFilesView:
        """Return how many data files, bytes and rows a table (schema.name) has at the sink, how many of the rows are
        deleted, and when its files were last joined."""
        return self._call(lambda client: client.table_files(self.id, table))

    def add_table(self, table: str) -> views.UpdateView:
        """Take a table (schema.name) of the source in, with the rows that it has, while all others flow."""
        return self._call(lambda client: client.add_table(self.id, table))

    def remove_table(self, table: str) -> views.UpdateView:
        """Leave a table (schema.name) out from now on; the sink keeps what it has of it."""
        return self._call(lambda client: client.remove_table(self.id, table))

    def pause_table(self, table: str) -> views.TableStepView:
        """Hold a table (schema.name) until ``resume_table``, while all others flow."""
        return self._call(lambda client: client.pause_table(self.id, table))

    def resume_table(self, table: str) -> views.TableStepView:
        """Let a paused table continue, or try a held one at once."""
        return self._call(lambda client: client.resume_table(self.id, table))

    def skip_table(self, table: str, ts: int, *, confirmed: bool = False) -> views.TableStepView:
        """Let a held table continue behind ``ts`` without the changes before; they are lost, hence ``confirmed``."""
        return self._call(lambda client: client.skip_table(self.id, table, ts, confirmed=confirmed))

    def diff(
        self, *, sample: float = 1.0, rows_per_second: int | None = None, resume: bool = False
    ) -> list[views.TableDiff]:
        """Compare source and sink, table by table, at one position. ``sample``: such a share of each table, in ranges
        of its key that are chosen at random; ``rows_per_second``: to read from the source at most; ``resume``:
        continue a comparison that has not ended."""
        asked = model_of(views.DiffAsked, sample=sample, rows_per_second=rows_per_second, resume=resume)
        return self._call(lambda client: client.diff(self.id, asked))

    def repair(
        self,
        tables: Sequence[str] = (),
        *,
        dry_run: bool = False,
        where: str = "",
        rows_per_second: int | None = None,
    ) -> list[views.TableRepair]:
        """Make rows of the sink equal to the source's, of some tables or all; ``dry_run``: only say which. ``where``:
        of one table only those whose keys match a condition on either side."""
        asked = model_of(
            views.RepairAsked, tables=tuple(tables), dry_run=dry_run, where=where, rows_per_second=rows_per_second
        )
        return self._call(lambda client: client.repair(self.id, asked))

    def wait(
        self, *, state: FeedState | str | None = None, ts: int | None = None, timeout: float | None = None
    ) -> ChangefeedView:
        """Wait until it is in ``state``, or its checkpoint has reached ``ts``; without both, until its snapshot is in
        the sink. ``timeout`` in seconds.

        :raises WeirError: it has ended otherwise. :raises TimeoutError: not reached in time.
        """
        return self.with_tables(waiting.wait(Goal.of(self.id, state, ts, timeout), self.poll))

    def watch(self, *, seconds: float | None = None, every: float = 1.0) -> ChangefeedView:
        """Show state, lag, throughput, snapshot and held tables live in this cell: for ``seconds``, or until the cell
        is interrupted or the changefeed has ended. ``every``: seconds between updates.

        :raises ConfigError: the extra "notebook" is not installed.
        """
        live.check_interval(every)
        widget = live.Live(self.id, seconds)
        try:
            while widget.show(view := self.poll(), self.samples):
                time.sleep(every)
        except KeyboardInterrupt:  # how a cell is interrupted
            if self.view is None:
                raise
            return self.view
        finally:
            widget.end(self.view, self.samples)
        return self.with_tables(view)

    def plot_lag(self, axes: Any = None) -> Any:
        """Plot the lag that this object has seen in ``watch``, ``wait`` and ``query`` into matplotlib's ``axes`` (None:
        new ones); return the axes.

        :raises ConfigError: the extra "notebook" is not installed.
        """
        return live.plot_lag(self.id, self.samples, axes)

    def __repr__(self) -> str:
        return html.one_line(f"<Changefeed {self.id}{html.described(self.view)}>")

    def _repr_html_(self) -> str:
        return html.changefeeds([self.view]) if self.view else html.escape(repr(self))

    def _seen(self, view: ChangefeedView) -> ChangefeedView:
        self.view = view
        self.samples.add(view)
        return view

    def _call(self, question: Callable[[Client], T]) -> T:
        return self._connection.call(question)


class LocalCluster:
    """A cluster, reached over HTTP. ``url``: of one of its captures. A capture that was started with it is stopped by
    ``stop``, or by the end of a ``with`` block."""

    def __init__(self, connection: Connection, host: Host | None = None) -> None:
        self.url = connection.server
        self._connection = connection
        self._host = host

    def create(
        self,
        changefeed_id: str,
        *,
        source: str,
        sink: str,
        mode: Mode | str = Mode.ALL,
        sink_mode: SinkMode | str = SinkMode.UPSERT,
        start_ts: int | None = None,
        target_ts: int | None = None,
        config: Config = None,
    ) -> LocalChangefeed:
        """Check source and sink, then create the changefeed; nothing is created if a check fails. ``config``: a model,
        a mapping, or the path of a TOML file."""
        spec = spec_of(
            changefeed_id,
            source,
            sink,
            mode=mode,
            sink_mode=sink_mode,
            start_ts=start_ts,
            target_ts=target_ts,
            config=config,
        )
        view = self._connection.call(lambda client: client.create(spec))
        return LocalChangefeed(self._connection, view.id, view)

    def check(
        self,
        changefeed_id: str,
        *,
        source: str,
        sink: str,
        mode: Mode | str = Mode.ALL,
        sink_mode: SinkMode | str = SinkMode.UPSERT,
        start_ts: int | None = None,
        target_ts: int | None = None,
        config: Config = None,
    ) -> views.CheckView:
        """Run all checks of ``create``; creates nothing."""
        spec = spec_of(
            changefeed_id,
            source,
            sink,
            mode=mode,
            sink_mode=sink_mode,
            start_ts=start_ts,
            target_ts=target_ts,
            config=config,
        )
        return self._connection.call(lambda client: client.check(spec))

    def changefeed(self, changefeed_id: str) -> LocalChangefeed:
        """Return a changefeed of the cluster, without a request."""
        return LocalChangefeed(self._connection, changefeed_id)

    def changefeeds(self) -> builtins.list[LocalChangefeed]:
        found = self._connection.call(lambda client: client.list(tables=False))
        return [LocalChangefeed(self._connection, view.id, view) for view in found]

    def captures(self) -> builtins.list[views.CaptureView]:
        return self._connection.call(lambda client: client.captures())

    def status(self) -> views.StatusView:
        """Return what the capture at ``url`` says of itself."""
        return self._connection.call(lambda client: client.status())

    def drain(self, capture_id: str, *, timeout: float = 600.0) -> views.DrainView:
        """Give all spans and workers of a capture to the others. ``timeout``: seconds until it is empty, 0: only begin.

        :raises CaptureNotEmptyError: it is not empty in time.
        """
        deadline = time.monotonic() + timeout
        while True:
            view = self._connection.call(lambda client: client.drain(capture_id))
            if not view.remaining or not timeout:
                return view
            if time.monotonic() >= deadline:
                raise CaptureNotEmptyError.after(capture_id, view.remaining, timeout=timeout)
            time.sleep(_DRAIN_POLL_S)

    def resign_owner(self) -> views.ResignView:
        return self._connection.call(lambda client: client.resign_owner())

    def stop(self) -> None:
        """Let the capture that was started with this object leave its cluster; does nothing for any other."""
        host, self._host = self._host, None
        if host is not None:
            host.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.stop()

    def __repr__(self) -> str:
        return html.one_line(f"<Cluster at {self.url}>")

    def _repr_html_(self) -> str:
        return html.escape(repr(self))

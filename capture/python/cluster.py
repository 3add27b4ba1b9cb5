"""Asynchronous interface: a cluster and its changefeeds, for notebooks and asyncio programs.

Each method is that of ``capture.python.local`` in a thread, so a cluster may run in the caller's own event loop. A
cancelled call stops waiting; what it asked for may still be executed.
"""

import builtins
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from functools import partial, wraps
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Protocol, Self, TypeVar

import anyio
import pyarrow as pa
from anyio import CapacityLimiter, to_thread

from capture.api.inputs import Config
from capture.api.subscriptions import EXPIRES_DEFAULT_S
from capture.python import live
from capture.python.changes import Reading
from capture.python.local import LocalChangefeed, LocalCluster
from capture.python.moment import Moment
from capture.python.table import Table
from capture.python.waiting import POLL_S, Goal
from reactor.errors import WeirError
from reactor.records.changefeed import FeedState, Mode, SinkMode
from reactor.records.sync_point import SyncPoint
from reactor.views import ChangefeedView

P = ParamSpec("P")
T = TypeVar("T")
L = TypeVar("L")


class AsyncHost(Protocol):
    """A capture that runs in the caller's event loop."""

    async def stop(self) -> None:
        """Let it leave the cluster; return when it has.

        :raises WeirError: it had failed.
        """
        ...


async def _in_thread(call: Callable[[], T]) -> T:
    # a limiter of its own: a comparison may take hours, and must not keep the others' threads
    return await to_thread.run_sync(call, abandon_on_cancel=True, limiter=CapacityLimiter(1))


def _awaited(method: Callable[Concatenate[L, P], T]) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """Return the asynchronous method that runs ``method`` of the object's ``local`` in a thread."""

    @wraps(method)
    async def awaited(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await _in_thread(partial(method, self.local, *args, **kwargs))

    return awaited


class Changefeed:
    """One changefeed. ``local``: the same with blocking methods."""

    def __init__(self, local: LocalChangefeed) -> None:
        self.id = local.id
        self.local = local

    @property
    def view(self) -> ChangefeedView | None:
        """The changefeed as the last answer showed it; None before the first."""
        return self.local.view

    query = _awaited(LocalChangefeed.query)
    poll = _awaited(LocalChangefeed.poll)
    with_tables = _awaited(LocalChangefeed.with_tables)
    pause = _awaited(LocalChangefeed.pause)
    resume = _awaited(LocalChangefeed.resume)
    update = _awaited(LocalChangefeed.update)
    rewind = _awaited(LocalChangefeed.rewind)
    remove = _awaited(LocalChangefeed.remove)
    tables = _awaited(LocalChangefeed.tables)
    subscriptions = _awaited(LocalChangefeed.subscriptions)
    close_subscription = _awaited(LocalChangefeed.close_subscription)
    sync_points = _awaited(LocalChangefeed.sync_points)
    move = _awaited(LocalChangefeed.move)
    move_owner = _awaited(LocalChangefeed.move_owner)
    split = _awaited(LocalChangefeed.split)
    join = _awaited(LocalChangefeed.join)
    rebalance = _awaited(LocalChangefeed.rebalance)
    resync = _awaited(LocalChangefeed.resync)
    cancel_resync = _awaited(LocalChangefeed.cancel_resync)
    add_table = _awaited(LocalChangefeed.add_table)
    remove_table = _awaited(LocalChangefeed.remove_table)
    pause_table = _awaited(LocalChangefeed.pause_table)
    resume_table = _awaited(LocalChangefeed.resume_table)
    skip_table = _awaited(LocalChangefeed.skip_table)
    maintain_table = _awaited(LocalChangefeed.maintain_table)
    table_files = _awaited(LocalChangefeed.table_files)
    diff = _awaited(LocalChangefeed.diff)
    repair = _awaited(LocalChangefeed.repair)

    async def changes(
        self,
        table: str,
        *,
        from_ts: int | str = "latest",
        follow: bool = True,
        name: str | None = None,
        expires: float = EXPIRES_DEFAULT_S,
    ) -> AsyncIterator[pa.Table]:
        """As ``LocalChangefeed.changes``."""
        asked = partial(self.local.subscription, table, from_ts=from_ts, name=name, expires=expires)
        reading = Reading(lambda over: asked(over=over), follow=follow)
        try:
            while (rows := await _in_thread(reading.next)) is not None:
                yield rows
        finally:
            if reading.end():
                with anyio.CancelScope(shield=True):
                    await _in_thread(reading.close)

    async def table(self, name: str, *, storage_options: Mapping[str, str] | None = None) -> Table:
        """As ``LocalChangefeed.table``; the table's own methods block while they read."""
        return await _in_thread(partial(self.local.table, name, storage_options=storage_options))

    async def at(
        self, ts: int | SyncPoint | None = None, *, storage_options: Mapping[str, str] | None = None
    ) -> Moment:
        """As ``LocalChangefeed.at``; the methods of its tables block while they read."""
        return Moment.of(await self.query(), await self.sync_points(), ts, storage_options)

    async def wait(
        self, *, state: FeedState | str | None = None, ts: int | None = None, timeout: float | None = None
    ) -> ChangefeedView:
        """As ``LocalChangefeed.wait``."""
        goal = Goal.of(self.id, state, ts, timeout)
        while True:
            try:
                if goal.is_reached(view := await self.poll()):
                    return await self.with_tables(view)
                goal.refuse_timeout(view)
            except WeirError as error:
                goal.wait_out(error)
            await anyio.sleep(POLL_S)

    async def watch(self, *, seconds: float | None = None, every: float = 1.0) -> ChangefeedView:
        """As ``LocalChangefeed.watch``; other tasks of the event loop run meanwhile."""
        live.check_interval(every)
        widget = live.Live(self.id, seconds)
        try:
            while widget.show(view := await self.poll(), self.local.samples):  # noqa: ASYNC110 - it polls the server
                await anyio.sleep(every)
        finally:
            widget.end(self.local.view, self.local.samples)
        return await self.with_tables(view)

    def plot_lag(self, axes: Any = None) -> Any:
        """As ``LocalChangefeed.plot_lag``."""
        return self.local.plot_lag(axes)

    def __repr__(self) -> str:
        return repr(self.local)

    def _repr_html_(self) -> str:
        return self.local._repr_html_()


class Cluster:
    """A cluster, reached over HTTP. ``local``: the same with blocking methods, for other threads than the one whose
    event loop runs the capture."""

    def __init__(self, local: LocalCluster, host: AsyncHost | None = None) -> None:
        self.url = local.url
        self.local = local
        self._host = host

    async def create(
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
    ) -> Changefeed:
        """As ``LocalCluster.create``."""
        create = partial(self.local.create, changefeed_id, source=source, sink=sink, mode=mode, sink_mode=sink_mode)
        return Changefeed(await _in_thread(partial(create, start_ts=start_ts, target_ts=target_ts, config=config)))

    def changefeed(self, changefeed_id: str) -> Changefeed:
        """Return a changefeed of the cluster, without a request."""
        return Changefeed(self.local.changefeed(changefeed_id))

    async def changefeeds(self) -> builtins.list[Changefeed]:
        return [Changefeed(local) for local in await _in_thread(self.local.changefeeds)]

    check = _awaited(LocalCluster.check)
    captures = _awaited(LocalCluster.captures)
    status = _awaited(LocalCluster.status)
    drain = _awaited(LocalCluster.drain)
    resign_owner = _awaited(LocalCluster.resign_owner)

    async def stop(self) -> None:
        """Let the capture that was started with this object leave its cluster; does nothing for any other. May be
        called from another task, and repeatedly.

        :raises WeirError: the capture had failed.
        """
        host, self._host = self._host, None
        if host is not None:
            await host.stop()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        await self.stop()

    def __repr__(self) -> str:
        return repr(self.local)

    def _repr_html_(self) -> str:
        return self.local._repr_html_()

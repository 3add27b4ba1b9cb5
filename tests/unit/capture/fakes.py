"""A cluster in memory: the port's behaviour without captures, for the interfaces that stand on it."""

import builtins

import anyio

from capture.api import port as views
from capture.config import ServerSettings
from capture.errors import CaptureNotFoundError, ChangefeedExistsError, ChangefeedNotFoundError, JobRefusedError
from capture.security.secrets import mask
from reactor.errors import NotOwnerError, OwnerNotFoundError
from reactor.records.changefeed import FeedState
from reactor.views import ChangefeedView, TableView


class MemoryCluster:
    """Satisfies ``capture.api.port.Cluster``. ``specs`` is what was asked for; ``breaks_with`` fails the next call."""

    def __init__(self, *, is_owner: bool = True, owner: str = "") -> None:
        self.owner = owner
        self.specs: dict[str, views.ChangefeedSpec] = {}
        self.feeds: dict[str, ChangefeedView] = {}
        self.diffs: list[views.TableDiff] = []
        self.updates: list[views.ChangefeedUpdate] = []
        self.notices: tuple[str, ...] = ()
        #: spans and workers of capture-1, one less each time it is drained
        self.load = 3
        self.breaks_with: Exception | None = None
        self._is_owner = is_owner

    @property
    def is_owner(self) -> bool:
        return self._is_owner

    async def owner_address(self) -> str:
        if not self.owner:
            raise OwnerNotFoundError("no owner is elected at the moment; try again")
        return self.owner

    async def status(self) -> views.StatusView:
        return views.StatusView(version="1", id="capture-1", cluster_id="test", pid=1, is_owner=self._is_owner)

    async def health(self) -> views.HealthView:
        return views.HealthView(healthy=self._is_owner, problem="" if self._is_owner else "no owner")

    async def captures(self) -> builtins.list[views.CaptureView]:
        return [views.CaptureView(id="capture-1", address="127.0.0.1:8300", is_owner=self._is_owner)]

    async def create(self, spec: views.ChangefeedSpec) -> ChangefeedView:
        self._check()
        if spec.changefeed_id in self.feeds:
            raise ChangefeedExistsError(f"changefeed {spec.changefeed_id} exists; choose another id")
        self.specs[spec.changefeed_id] = spec
        view = ChangefeedView(
            id=spec.changefeed_id,
            state=FeedState.NORMAL,
            mode=spec.mode,
            sink_mode=spec.sink_mode,
            source=mask(spec.source_uri),
            sink=mask(spec.sink_uri),
        )
        return self._put(view).model_copy(update={"notices": self.notices})

    async def list(self) -> builtins.list[ChangefeedView]:
        self._check()
        return list(self.feeds.values())

    async def query(self, changefeed_id: str) -> ChangefeedView:
        self._check()
        if changefeed_id not in self.feeds:
            raise ChangefeedNotFoundError(f"no changefeed {changefeed_id}; see `weir changefeed list`")
        return self.feeds[changefeed_id]

    async def pause(self, changefeed_id: str) -> ChangefeedView:
        feed = await self.query(changefeed_id)
        return self._put(feed.model_copy(update={"state": FeedState.STOPPED}))

    async def resume(self, changefeed_id: str, *, overwrite_checkpoint_ts: int | None = None) -> ChangefeedView:
        feed = await self.query(changefeed_id)
        if feed.state is FeedState.NORMAL:
            raise JobRefusedError(f"changefeed {changefeed_id} is running; pause it first")
        checkpoint = feed.checkpoint_ts if overwrite_checkpoint_ts is None else overwrite_checkpoint_ts
        return self._put(feed.model_copy(update={"state": FeedState.NORMAL, "checkpoint_ts": checkpoint}))

    async def update(self, changefeed_id: str, asked: views.ChangefeedUpdate) -> views.UpdateView:
        feed = await self._standing(changefeed_id)
        self.updates.append(asked)
        changes = [] if asked.sink_uri is None else [views.FieldChange(field="sink", before=feed.sink, after="new")]
        return views.UpdateView(changefeed=feed, changes=tuple(changes), dry_run=asked.dry_run)

    async def rewind(self, changefeed_id: str, ts: int) -> views.RewindView:
        feed = self._put((await self._standing(changefeed_id)).model_copy(update={"checkpoint_ts": ts}))
        return views.RewindView(changefeed=feed, tables=(views.TablePosition(table="public.t", ts=ts),))

    async def move_table(self, changefeed_id: str, table: str, capture_id: str) -> views.MoveView:
        await self.query(changefeed_id)
        return views.MoveView(changefeed_id=changefeed_id, table=table, capture=capture_id, spans=1)

    async def split(self, changefeed_id: str, table: str, spans: int | None = None) -> views.CutView:
        await self.query(changefeed_id)
        return views.CutView(changefeed_id=changefeed_id, table=table, spans=1, wanted=spans or 6)

    async def rebalance(self, changefeed_id: str) -> None:
        await self.query(changefeed_id)

    async def drain(self, capture_id: str) -> views.DrainView:
        self._check()
        if capture_id != "capture-1":
            raise CaptureNotFoundError(f"no capture {capture_id}; see `weir capture list`")
        self.load = max(0, self.load - 1)
        return views.DrainView(capture=capture_id, remaining=self.load)

    async def resign_owner(self) -> views.ResignView:
        self._check()
        return views.ResignView(capture="capture-1", owner="capture-2")

    async def remove(self, changefeed_id: str) -> None:
        await self.query(changefeed_id)
        del self.feeds[changefeed_id]

    async def tables(self, changefeed_id: str) -> builtins.list[TableView]:
        return list((await self.query(changefeed_id)).tables)

    async def diff(self, changefeed_id: str) -> builtins.list[views.TableDiff]:
        await self.query(changefeed_id)
        return self.diffs

    async def _standing(self, changefeed_id: str) -> ChangefeedView:
        feed = await self.query(changefeed_id)
        if feed.state is FeedState.NORMAL:
            raise JobRefusedError(f"changefeed {changefeed_id} is running; pause it first")
        return feed

    def _check(self) -> None:
        if self.breaks_with is not None:
            raise self.breaks_with
        if not self._is_owner:
            raise NotOwnerError("this capture is not the owner")

    def _put(self, view: ChangefeedView) -> ChangefeedView:
        self.feeds[view.id] = view
        return view


class MemoryMember:
    """Satisfies ``capture.server.Member``: registers nowhere, leaves when asked."""

    def __init__(self, settings: ServerSettings) -> None:
        self.settings = settings
        self.cluster = MemoryCluster()
        self.events: list[str] = []
        self.fails_with: Exception | None = None
        self._leaving = anyio.Event()
        self._ready = anyio.Event()

    async def run(self) -> None:
        self.events.append("run")
        if self.fails_with is not None:
            raise self.fails_with
        self._ready.set()
        await self._leaving.wait()
        self.events.append("ran")

    async def ready(self) -> None:
        await self._ready.wait()

    async def leave(self) -> None:
        self.events.append("leave")
        self._leaving.set()

"""A cluster in memory: the port's behaviour without captures, for the interfaces that stand on it."""

import builtins
from dataclasses import asdict

import anyio

from agent.ports.sink import Maintained
from agent.ports.table_files import TableFiles
from capture.api import port as views
from capture.api.access import AuditView, Caller, TokenAsked, TokenView
from capture.config import ServerSettings
from capture.errors import (
    CaptureNotFoundError,
    ChangefeedExistsError,
    ChangefeedNotFoundError,
    JobRefusedError,
    TokenNotFoundError,
)
from capture.member.access import OwnToken
from capture.security.secrets import mask
from reactor.errors import NotOwnerError, OwnerNotFoundError
from reactor.records.access import Role
from reactor.records.changefeed import FeedState
from reactor.records.sync_point import SyncPoint
from reactor.views import ChangefeedView, MaintainedView, OwnerMoveView, TableFilesView, TableView


class MemoryCluster:
    """Satisfies ``capture.api.port.Cluster``. ``specs`` is what was asked for; ``breaks_with`` fails the next call."""

    def __init__(self, *, is_owner: bool = True, owner: str = "") -> None:
        self.owner = owner
        self.specs: dict[str, views.ChangefeedSpec] = {}
        self.feeds: dict[str, ChangefeedView] = {}
        self.diffs: list[views.TableDiff] = []
        self.repairs: list[views.TableRepair] = []
        self.updates: list[views.ChangefeedUpdate] = []
        self.notices: tuple[str, ...] = ()
        #: tables that are copied again
        self.resynced: list[str] = []
        #: of resyncs, comparisons and repairs
        self.limits: list[int | None] = []
        #: of repairs
        self.conditions: list[str] = []
        self.steps: list[str] = []
        #: spans and workers of capture-1, one less each time it is drained
        self.load = 3
        #: captures without the new secret key, one less each time it is asked for
        self.lacking: tuple[str, ...] = ()
        self.breaks_with: Exception | None = None
        #: what the check of source and sink waits for, and how far it is
        self.checking: anyio.Event | None = None
        self.checked = ""
        #: if not empty: the changefeeds that this capture owns
        self.owned_ids: set[str] = set()
        self.waited_for: list[str] = []
        #: limits of the requests for tables; 0: none
        self.pages: builtins.list[int] = []
        self._is_owner = is_owner

    @property
    def is_owner(self) -> bool:
        return self._is_owner

    def answers(self, changefeed_id: str = "") -> bool:
        return changefeed_id in self.owned_ids if self.owned_ids and changefeed_id else self._is_owner

    async def wait_for_owner(self, changefeed_id: str) -> None:
        self.waited_for.append(changefeed_id)

    async def owned(self, *, tables: bool = True) -> builtins.list[ChangefeedView]:
        return await self.list(tables=tables) if self._is_owner else []

    async def move_owner(self, changefeed_id: str, capture_id: str) -> OwnerMoveView:
        await self.query(changefeed_id)
        return OwnerMoveView(changefeed_id=changefeed_id, capture=capture_id)

    async def owner_endpoint(self, changefeed_id: str = "") -> views.Endpoint:
        if not self.owner:
            raise OwnerNotFoundError("no owner is elected at the moment; try again")
        return views.Endpoint(self.owner)

    async def status(self) -> views.StatusView:
        return views.StatusView(version="1", id="capture-1", cluster_id="test", pid=1, is_owner=self._is_owner)

    async def health(self) -> views.HealthView:
        return views.HealthView(healthy=self._is_owner, problem="" if self._is_owner else "no owner")

    async def ready(self) -> views.ReadyView:
        return views.ReadyView(ready=self._is_owner, waits_for="" if self._is_owner else "this capture waits for Spark")

    async def captures(self) -> builtins.list[views.CaptureView]:
        return [views.CaptureView(id="capture-1", address="127.0.0.1:8300", is_owner=self._is_owner)]

    async def create(self, spec: views.ChangefeedSpec) -> ChangefeedView:
        await self.check(spec)
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

    async def check(self, spec: views.ChangefeedSpec) -> views.CheckView:
        self._check()
        if spec.changefeed_id in self.feeds:
            raise ChangefeedExistsError(f"changefeed {spec.changefeed_id} exists; choose another id")
        if self.checking is not None:
            self.checked = "begun"
            try:
                await self.checking.wait()
            except anyio.get_cancelled_exc_class():
                self.checked = "cancelled"
                raise
        self.checked = "done"
        source, sink = mask(spec.source_uri), mask(spec.sink_uri)
        return views.CheckView(id=spec.changefeed_id, source=source, sink=sink, notices=self.notices)

    async def list(self, *, tables: bool = True) -> builtins.list[ChangefeedView]:
        self._check()
        return [_shown(feed, tables=tables) for feed in self.feeds.values()]

    async def query(self, changefeed_id: str, *, tables: bool = True) -> ChangefeedView:
        self._check()
        if changefeed_id not in self.feeds:
            raise ChangefeedNotFoundError(f"no changefeed {changefeed_id}; see `weir changefeed list`")
        return _shown(self.feeds[changefeed_id], tables=tables)

    async def pause(self, changefeed_id: str) -> ChangefeedView:
        feed = await self.query(changefeed_id)
        return self._put(feed.model_copy(update={"state": FeedState.STOPPED}))

    async def resume(
        self, changefeed_id: str, *, overwrite_checkpoint_ts: int | None = None, resync: bool = False
    ) -> ChangefeedView:
        self.resynced += [changefeed_id] if resync else []
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

    async def resync_table(
        self, changefeed_id: str, table: str, *, rows_per_second: int | None = None
    ) -> views.TableResyncView:
        await self.query(changefeed_id)
        self.resynced.append(table)
        self.limits.append(rows_per_second)
        return views.TableResyncView(changefeed_id=changefeed_id, table=table)

    async def cancel_resync(self, changefeed_id: str, table: str) -> views.TableResyncView:
        if table not in self.resynced:
            raise JobRefusedError(f"{table} is not being copied; see `weir tables -c {changefeed_id}`")
        self.resynced.remove(table)
        return views.TableResyncView(changefeed_id=changefeed_id, table=table, resyncing=False)

    async def pause_table(self, changefeed_id: str, table: str) -> views.TableStepView:
        return await self._step(changefeed_id, "pause", table)

    async def resume_table(self, changefeed_id: str, table: str) -> views.TableStepView:
        return await self._step(changefeed_id, "resume", table)

    async def skip_table(
        self, changefeed_id: str, table: str, ts: int, *, confirmed: bool = False
    ) -> views.TableStepView:
        if not confirmed:
            raise JobRefusedError("confirm that")
        return await self._step(changefeed_id, f"skip to {ts}", table)

    async def maintain_table(self, changefeed_id: str, table: str) -> MaintainedView:
        await self.query(changefeed_id)
        self.steps.append(f"maintain {table}")
        done = Maintained(files_before=9, files=1, bytes_before=90, bytes=80, joined=9, removed=3, expired=2)
        return MaintainedView(changefeed_id=changefeed_id, table=table, **asdict(done))

    async def table_files(self, changefeed_id: str, table: str) -> TableFilesView:
        await self.query(changefeed_id)
        found = TableFiles(files=3, bytes=4096, rows=200, deleted_rows=25, compacted_time=1.8e9)
        return TableFilesView(changefeed_id=changefeed_id, table=table, **asdict(found))

    async def add_table(self, changefeed_id: str, table: str) -> views.UpdateView:
        return await self._move(changefeed_id, f"add {table}")

    async def remove_table(self, changefeed_id: str, table: str) -> views.UpdateView:
        return await self._move(changefeed_id, f"remove {table}")

    async def _move(self, changefeed_id: str, what: str) -> views.UpdateView:
        self.steps.append(what)
        return views.UpdateView(changefeed=await self.query(changefeed_id))

    async def _step(self, changefeed_id: str, what: str, table: str) -> views.TableStepView:
        await self.query(changefeed_id)
        self.steps.append(f"{what} {table}")
        notices = ("changes are left out",) if what.startswith("skip") else ()
        return views.TableStepView(changefeed_id=changefeed_id, table=table, ts=7, notices=notices)

    async def rebalance(self, changefeed_id: str) -> None:
        await self.query(changefeed_id)

    async def drain(self, capture_id: str) -> views.DrainView:
        self._check()
        if capture_id != "capture-1":
            raise CaptureNotFoundError(f"no capture {capture_id}; see `weir capture list`")
        self.load = max(0, self.load - 1)
        return views.DrainView(capture=capture_id, remaining=self.load)

    async def rotate_secret(self) -> views.RotationView:
        self._check()
        self.lacking = self.lacking[1:]
        return views.RotationView(fingerprint="f" * 16, lacking=self.lacking, resealed=2, done=not self.lacking)

    async def resign_owner(self) -> views.ResignView:
        self._check()
        return views.ResignView(capture="capture-1", owner="capture-2")

    async def remove(self, changefeed_id: str) -> None:
        await self.query(changefeed_id)
        del self.feeds[changefeed_id]

    async def tables(
        self, changefeed_id: str, *, after: int | None = None, limit: int | None = None, name: str = ""
    ) -> builtins.list[TableView]:
        found = [table for table in (await self.query(changefeed_id)).tables if name in ("", table.table)]
        self.pages.append(limit or 0)
        if limit is None:
            return found
        return sorted((t for t in found if after is None or t.table_id > after), key=lambda t: t.table_id)[:limit]

    async def sync_points(self, changefeed_id: str) -> builtins.list[SyncPoint]:
        point = (await self.query(changefeed_id)).sync_point
        return [point] if point else []

    async def diff(self, changefeed_id: str, asked: views.DiffAsked = views.WHOLE) -> builtins.list[views.TableDiff]:
        await self.query(changefeed_id)
        self.limits.append(asked.rows_per_second)
        return [one if one.waiting else one.model_copy(update={"share": asked.sample}) for one in self.diffs]

    async def repair(self, changefeed_id: str, asked: views.RepairAsked) -> builtins.list[views.TableRepair]:
        await self.query(changefeed_id)
        self.limits.append(asked.rows_per_second)
        self.conditions.append(asked.where)
        wanted = (one for one in self.repairs if not asked.tables or one.table in asked.tables)
        return [one.model_copy(update={"dry_run": asked.dry_run}) for one in wanted]

    async def _standing(self, changefeed_id: str) -> ChangefeedView:
        feed = await self.query(changefeed_id)
        if feed.state is FeedState.NORMAL:
            raise JobRefusedError(f"changefeed {changefeed_id} is running; pause it first")
        return feed

    def _check(self) -> None:
        if self.breaks_with is not None:
            raise self.breaks_with
        if not (self._is_owner or self.owned_ids):
            raise NotOwnerError("this capture is not the owner")

    def _put(self, view: ChangefeedView) -> ChangefeedView:
        self.feeds[view.id] = view
        return view


ADMIN = Caller("admin", Role.ADMIN, "t0")


def _shown(feed: ChangefeedView, *, tables: bool) -> ChangefeedView:
    return feed.model_copy(update={"table_count": len(feed.tables)} | ({} if tables else {"tables": ()}))


class MemoryAccess:
    """Satisfies ``capture.api.access.Access``. ``callers``: by token; ``entries``: of the trail."""

    def __init__(self, **callers: Caller) -> None:
        self.callers = {"secret": ADMIN} | callers
        self.views: dict[str, TokenView] = {}
        self.entries: list[AuditView] = []
        self.breaks_with: Exception | None = None

    async def caller(self, token: str) -> Caller | None:
        return self.callers.get(token)

    async def create(self, asked: TokenAsked, by: Caller) -> TokenView:
        token = f"weir_{len(self.views)}"
        view = TokenView(
            id=f"t{len(self.callers)}", name=asked.name, role=asked.role, created_at=1.0, created_by=by.name
        )
        self.views[view.id] = view
        self.callers[token] = Caller(asked.name, asked.role, view.id)
        return view.model_copy(update={"token": token})

    async def list(self) -> builtins.list[TokenView]:
        return [*self.views.values()]

    async def revoke(self, token_id: str) -> TokenView:
        if token_id not in self.views:
            raise TokenNotFoundError(f"no token {token_id!r}; `weir token list` shows which there are")
        self.callers = {token: caller for token, caller in self.callers.items() if caller.token != token_id}
        self.views[token_id] = self.views[token_id].model_copy(update={"revoked_at": 2.0})
        return self.views[token_id]

    async def begin(self, caller: Caller, method: str, path: str, source: str, *, detail: str = "") -> str:
        if self.breaks_with is not None:
            raise self.breaks_with
        named = {"name": caller.name, "role": caller.role, "token": caller.token}
        self.entries.append(AuditView(time=1.0, method=method, path=path, source=source, detail=detail, **named))
        return str(len(self.entries) - 1)

    async def end(self, entry: str, status: int) -> None:
        self.entries[int(entry)] = self.entries[int(entry)].model_copy(update={"status": status})

    async def trail(self, limit: int) -> builtins.list[AuditView]:
        return self.entries[-limit:]


class MemoryMember:
    """Satisfies ``capture.server.Member``: registers nowhere, leaves when asked."""

    def __init__(self, settings: ServerSettings) -> None:
        self.settings = settings
        self.cluster = MemoryCluster()
        self.access = MemoryAccess()
        self.subscriptions = None
        self.own_token = OwnToken()
        self.events: list[str] = []
        self.fails_with: Exception | None = None
        self._leaving = anyio.Event()
        self._ready = anyio.Event()

    async def run(self) -> None:
        self.events.append("run")
        self.access.callers[self.own_token.value] = ADMIN
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

"""Worker loop: watches a prefix, applies updates, ticks and commits (after TiCDC's etcd worker).

    wait ─► apply what the watch brought ─► commit what is pending ─► tick ─► commit at once ─┐
      ▲       (not before all up to our       (after a conflict, on                           │
      │        own last commit is known)       fresh values)                                  │
      └───────────────────────────────────────────────────────────────────────────────────────┘

``reactor.worker.pace`` decides when to tick. A tick sees the state complete up to our own last commit, and there is no
tick while patches of the previous one are pending.

Order of effects. Patches are committed right after their tick. ``Send`` and ``Log`` are performed at once, whether or
not the patches commit: messages carry epochs, are fenced by their receivers, and are repeated by later ticks.
``Answer`` and ``Resign`` are performed only after every patch group of their tick has committed
(``reactor.worker.pending``), in the tick's order.

The worker ends with ``SessionDoneError`` when the session does, with ``NotOwnerError`` when the owner's key is deleted,
with any other failure, or normally when the reactor is finished. ``fences`` are compares added to every transaction
(``Elector.proof``): a worker that has lost its ownership without knowing it cannot write.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import anyio
import anyio.lowlevel
import structlog
from prometheus_client import Histogram

from reactor import failpoints, keys
from reactor.effects import Answer, Commit, Perform, Resign, WakeAt
from reactor.errors import (
    ConflictError,
    FailPointError,
    NotOwnerError,
    ReactorFinishedError,
    StoreError,
    StoreUnreachableError,
)
from reactor.failpoints import Point
from reactor.membership.progress import holds_progress
from reactor.membership.session import Session
from reactor.state import ClusterState
from reactor.store.port import Compare, MetaStore, Target, TxnResult, WatchBatch
from reactor.txn import Plan, Seen, Txn
from reactor.worker.pace import Pace
from reactor.worker.pending import Pending
from reactor.worker.protocol import Reactor
from reactor.worker.watch import WatchCursor

_BURST = 2
#: delay after a refused or unanswered transaction, unless the watch delivers something before
_RETRY_S = 0.2
_SLOW_TICK_S = 1.0
#: maximum number of others' events that wait for a tick
INBOX_SIZE = 10_000

_TICKS = Histogram(
    "weir_owner_tick_seconds",
    "time of one tick in which an owner decides for its changefeeds",
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0),
)
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class WorkerStatistics:
    """Counts since the start. ``conflicts``: transactions and groups rejected because a key had changed."""

    ticks: int = 0
    commits: int = 0
    conflicts: int = 0
    resyncs: int = 0


class ReactorWorker:
    """One reactor over one cluster's state. ``run`` it once; ``post`` to it from the same loop.

    ``now`` and ``WakeAt`` use the loop's time. ``take`` bounds the inbox; ``post`` does not, since it delivers only
    what this reactor asked for. ``is_owner``: it decides for changefeeds, so the owner's fail-points are in it.
    """

    def __init__(
        self,
        client: MetaStore,
        reactor: Reactor,
        *,
        state: ClusterState,
        session: Session,
        perform: Perform,
        owner_key: str | None = None,
        fences: Sequence[Compare] = (),
        is_owner: bool = False,
        interval_s: float = 0.05,
        idle_interval_s: float = 0.5,
    ) -> None:
        self.state = state
        self._client, self._reactor = client, reactor
        self._session = session
        self._perform = perform
        self._owner_key = owner_key
        self._fences = tuple(fences)
        self._is_owner = is_owner or owner_key is not None
        self._pace = Pace(interval_s, burst=_BURST, idle_interval_s=idle_interval_s)
        self._cursor = WatchCursor()
        self._pending = Pending(str(keys.DeleteCountKey(state.cluster)))
        self._inbox: deque[object] = deque()
        #: set when there is room in the inbox, if a task waits for it
        self._room = anyio.Event()
        self._is_over = False
        self._wake = anyio.Event()
        #: set by the next tick, if a task waits for it
        self._news: anyio.Event | None = None
        #: set when the outcome of the transaction in progress is known
        self._outcome = anyio.Event()
        self._outcome.set()
        self._held: list[WatchBatch] = []
        #: no other client has written before our last commit
        self._is_alone = False
        self._is_loaded = False
        self._retry_at = 0.0
        self._failure: Exception | None = None
        self._ticks = self._commits = self._conflicts = self._resyncs = 0

    def statistics(self) -> WorkerStatistics:
        return WorkerStatistics(self._ticks, self._commits, self._conflicts, self._resyncs)

    def post(self, event: object) -> None:
        """Pass ``event`` to the next tick."""
        self._inbox.append(event)
        self.wake()

    async def take(self, event: object) -> None:
        """Pass ``event`` to a tick once there is room, which there is not while etcd is silent. Dropped if the worker
        has ended."""
        while len(self._inbox) >= INBOX_SIZE and not self._is_over:
            self._room = anyio.Event()
            await self._room.wait()
        if not self._is_over:
            self.post(event)

    async def wait_tick(self) -> bool:
        """Wait for the next tick; return False if the worker has ended: its state never changes again."""
        if not self._is_over:
            self._news = self._news or anyio.Event()
            await self._news.wait()
        return not self._is_over

    def wake(self) -> None:
        """Tick soon."""
        self._pace.note_news()
        self._wake.set()

    async def run(self) -> None:
        """Run until the reactor is finished.

        :raises SessionDoneError: the session ended.
        :raises NotOwnerError: the owner's key was deleted.
        :raises StoreError: etcd refused a call permanently.
        """
        try:
            await self._session.run(self._run)
        finally:
            self._is_over = True
            self._room.set()
            self._announce()
        if self._failure is not None:
            raise self._failure

    async def _run(self) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._end_all_after, self._follow, tasks.cancel_scope)
            await self._end_all_after(self._loop, tasks.cancel_scope)

    async def _end_all_after(self, work: Callable[[], Awaitable[None]], scope: anyio.CancelScope) -> None:
        """Failures are kept out of the task group, which would wrap them."""
        try:
            await work()
        except Exception as error:
            self._failure = self._failure or error
        scope.cancel()

    # The watch: fills buffers, decides nothing. What arrives while a transaction is in progress is held until its
    # outcome is known: only then is it clear whether its answer was lost, and the watch may just have shown that it was
    # applied. This delays nothing, since there is no tick meanwhile.

    async def _follow(self) -> None:
        """Read the prefix, then watch it; start over when the history is gone or etcd fails."""
        while True:
            try:
                await self._load()
                await self._watch()
            except StoreError as error:
                if not error.retryable:
                    raise
                _log.info("reading the prefix again", prefix=self.state.prefix, error=str(error))
            self._resyncs += 1
            await anyio.sleep(_RETRY_S)

    async def _load(self) -> None:
        snapshot = await self._client.get_prefix(self.state.prefix)
        await self._settled()
        self._cursor.reset(snapshot.revision)
        self.state.load(snapshot)
        if self._owner_key is not None and self._owner_key not in self.state.raw:
            raise self._not_owner()
        self._pending.observe_snapshot(self.state.raw)
        self._is_loaded = True
        self._note_fresh()

    async def _watch(self) -> None:
        start = self._cursor.revision + 1
        async with self._client.watch_prefix(self.state.prefix, start_revision=start) as batches:
            async for batch in batches:
                if self._outcome.is_set():
                    self._take_in(batch)
                else:
                    self._held.append(batch)
                if self._is_alone:
                    # the next message will be our own commit's: left unread, it cannot delay the tick's transaction
                    await self._settled()

    async def _settled(self) -> None:
        """Wait for the outcome of the transaction in progress, but not for one that begins then."""
        if not self._outcome.is_set():
            await self._outcome.wait()

    def _take_in_held(self) -> None:
        held, self._held = self._held, []
        for batch in held:
            self._take_in(batch)

    def _take_in(self, batch: WatchBatch) -> None:
        fresh = self._cursor.push(batch)
        if any(event.key == self._owner_key and event.value is None for event in fresh):
            raise self._not_owner()
        if fresh:
            self._pending.observe(fresh)
            self._note_fresh()

    def _note_fresh(self) -> None:
        self._retry_at = 0.0
        self.wake()

    def _not_owner(self) -> NotOwnerError:
        return NotOwnerError(f"{self._owner_key} is gone: this capture is no longer the owner; campaign again")

    # The loop: makes all decisions.

    async def _loop(self) -> None:
        while not await self._step():
            await self._wait()

    async def _step(self) -> bool:
        """Run one round; return True when the reactor is finished."""
        now = anyio.current_time()
        self._session.check(now)
        if not (self._is_loaded and self._cursor.is_caught_up):
            return False
        self.state.apply(self._cursor.drain())
        if self._pending:
            if now >= self._retry_at:
                await self._commit()
            return False
        self._finish()
        if not self._pace.take(now):
            return False
        if self._tick(now):
            return True
        await self._commit()
        return False

    async def _wait(self) -> None:
        """Wait until there may be something to do; yield to other tasks in any case."""
        now = anyio.current_time()
        delay_s = max(0.0, self._retry_at - now) if self._pending else self._pace.delay_s(now)
        if not (self._is_loaded and self._cursor.is_caught_up):
            delay_s = _RETRY_S
        if delay_s <= 0:
            await anyio.lowlevel.checkpoint()  # a scope that ends at once costs more than the rest of a round
            return
        with anyio.move_on_after(delay_s):
            await self._wake.wait()
        self._wake = anyio.Event()

    def _tick(self, now: float) -> bool:
        """Tick once; return True when the reactor has finished."""
        self.state.begin_tick(now)
        self._announce()
        inbox = tuple(self._inbox)
        self._inbox.clear()
        self._room.set()
        try:
            effects = self._reactor.tick(self.state, inbox, now)
        except ReactorFinishedError:
            return True
        self._ticks += 1
        self._sort(effects)
        took_s = anyio.current_time() - now
        if self._is_owner:
            _TICKS.observe(took_s)
        if took_s > _SLOW_TICK_S:
            _log.warning("slow tick", seconds=round(took_s, 3), effects=len(effects))
        return False

    def _announce(self) -> None:
        if self._news is not None:
            self._news.set()
            self._news = None

    def _sort(self, effects: Sequence[object]) -> None:
        """Pass each effect to its performer, see "order of effects" above."""
        groups: list[Seen] = []
        last: list[Answer | Resign] = []
        for effect in effects:
            match effect:
                case Commit(group, jobs):
                    groups.append(Seen.of(group, self.state.raw, jobs))
                case Answer() | Resign():
                    last.append(effect)
                case WakeAt(at):
                    self._pace.note_wake(at)
                case _:
                    self._perform(effect)
        self._pending.begin(groups, last)

    async def _commit(self) -> None:
        """Send one transaction with as many pending groups as fit."""
        planned = self._pending.plan(self.state.raw, self._fences, format=self.state.format)
        self._report(planned)
        if not planned.txn.is_empty:
            self._outcome = anyio.Event()
            try:
                self._is_alone = await self._send(planned)
            finally:
                self._outcome.set()
            self._take_in_held()
        self._finish()

    async def _send(self, planned: Plan) -> bool:
        """Return True if it was committed and no other client has written before it."""
        self._session.check()
        try:
            result = await self._ask(planned)
        except (StoreUnreachableError, FailPointError) as error:
            _log.warning("no answer to a transaction", error=str(error))
            self._pending.lost(planned)
            self._retry_at = anyio.current_time() + _RETRY_S
            return False
        if not result.succeeded:
            self._conflicts += 1
            if not self._cursor.has_pending:
                self._retry_at = anyio.current_time() + _RETRY_S
            return False
        self._commits += 1
        self._pending.committed(planned)
        is_alone = self._cursor.commit(result.revision)
        if is_alone:
            self._take_in(WatchBatch(planned.txn.events(self.state.raw, result.revision), result.revision))
        return is_alone

    async def _ask(self, planned: Plan) -> TxnResult:
        """Send one transaction. An error of the fail-point behind it counts as a lost answer."""
        self._reach(planned, Point.OWNER_BEFORE_COMMIT, Point.OWNER_BEFORE_STATUS)
        fences = await self._write_early(planned.txn)
        if fences is None:
            return TxnResult(succeeded=False, revision=0)
        result = await self._client.txn((*planned.txn.compares, *fences), planned.txn.operations)
        self._reach(planned, Point.OWNER_AFTER_COMMIT, Point.OWNER_AFTER_STATUS)
        return result

    async def _write_early(self, txn: Txn) -> list[Compare] | None:
        """Write what comes before, and return the compares that fence it; None: this capture is fenced itself."""
        revisions = []
        for puts in txn.early:
            result = await self._client.txn(self._fences, puts)
            if not result.succeeded:
                return None
            revisions.append(result.revision)
        return [Compare(key, Target.MOD_REVISION, revisions[0]) for key in txn.fenced]

    def _reach(self, planned: Plan, commit: Point, status: Point) -> None:
        if not (self._is_owner and failpoints.armed()):
            return
        failpoints.reach(commit)
        if any(holds_progress(key) for key in planned.txn.writes):
            failpoints.reach(status)

    def _report(self, planned: Plan) -> None:
        """Drop groups that can never commit: the next tick sees why, and decides again."""
        for rejected in planned.rejected:
            self._pace.note_news()
            if isinstance(rejected.error, ConflictError):
                self._conflicts += 1
            else:
                _log.error("a change was refused", code=rejected.error.code, error=str(rejected.error))

    def _finish(self) -> None:
        for effect in self._pending.take_last():
            self._perform(effect)

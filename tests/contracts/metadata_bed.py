"""Captures on a store under test: their election, controllers and owners, on clients that can be cut off."""

import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import anyio

from capture.member.ownership.candidacy import Candidacy
from capture.member.ownership.owners import Owners
from capture.member.ownership.performer import OwnerSite
from reactor import keys
from reactor.errors import StoreUnreachableError
from reactor.ids import CaptureId, ChangefeedId, Ts
from reactor.membership.session import Session, open_session
from reactor.questions import Answered, Ask
from reactor.records.capture import Assignment, CaptureInfo
from reactor.records.changefeed import ChangefeedInfo, ChangefeedStatus, FeedState, SealedUri
from reactor.records.formats import ClusterFormat, Feature
from reactor.settings import ReactorSettings
from reactor.store.port import Compare, MetaStore, Put, Target, WatchBatch
from tests.contracts.store_bed import Store
from tests.patience import patient

TTL_S = 5
_NS = keys.DEFAULT_NAMESPACE


class Line:
    """A client over a line that can be cut: then no call is answered, and no watch brings anything."""

    def __init__(self, client: MetaStore) -> None:
        self._client = client
        self.is_cut = False

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._client, name)

        async def through(*args: Any, **options: Any) -> Any:
            self._check()
            found = await call(*args, **options)
            self._check()
            return found

        return through

    @asynccontextmanager
    async def watch_prefix(self, prefix: str, *, start_revision: int) -> AsyncIterator[AsyncIterator[WatchBatch]]:
        async with (
            self._client.watch_prefix(prefix, start_revision=start_revision) as batches,
            aclosing(self._batches(batches)) as checked,
        ):
            yield checked

    async def _batches(self, batches: AsyncIterator[WatchBatch]) -> Any:
        async for batch in batches:
            self._check()
            yield batch

    def _check(self) -> None:
        if self.is_cut:
            raise StoreUnreachableError("the line is cut")


@dataclass
class Member:
    """One capture's controller and owners."""

    name: str
    site: OwnerSite
    line: Line
    scope: anyio.CancelScope
    candidacy: Candidacy = field(init=False)
    owners: Owners = field(init=False)
    #: the loop's time at which its session ended, 0 before
    ended_at: float = 0.0

    def __post_init__(self) -> None:
        self.candidacy, self.owners = Candidacy(self.site), Owners(self.site)


class Cluster:
    """``client``: of an operator."""

    def __init__(self, store: Store, client: MetaStore, stack: AsyncExitStack) -> None:
        self.id = f"m-{uuid4().hex[:8]}"
        self.client = client
        self.members: dict[str, Member] = {}
        self._store = store
        self._stack = stack

    def owner_key(self, feed: ChangefeedId) -> str:
        return str(keys.AssignmentKey(self.id, _NS, feed))

    def status_key(self, feed: ChangefeedId) -> str:
        return str(keys.StatusKey(self.id, _NS, feed))

    async def create(self, *names: str, checkpoint_ts: int = 5) -> None:
        uri = SealedUri(masked="x://", sealed="")
        for name in names:
            id = ChangefeedId(name)
            info = ChangefeedInfo(
                id=id, source=uri, sink=uri, start_ts=Ts(1), state=FeedState.STOPPED, state_since=time.time()
            )
            puts = [Put(str(keys.InfoKey(self.id, _NS, id)), info.with_(incarnation=uuid4().hex).encode())]
            puts.append(Put(self.status_key(id), ChangefeedStatus(checkpoint_ts=Ts(checkpoint_ts)).encode()))
            await self.client.txn([], puts)

    async def start(self, *names: str) -> None:
        for name in names:
            tasks = await self._stack.enter_async_context(anyio.create_task_group())
            self._stack.callback(tasks.cancel_scope.cancel)
            self.members[name] = await tasks.start(self._live, name)

    async def _live(self, name: str, *, task_status: Any) -> None:
        capture = CaptureId(name)
        with anyio.CancelScope() as scope:
            async with self._store.connect() as client, _session(line := Line(client)) as session:
                info = CaptureInfo(
                    id=capture,
                    address=name,
                    peer_address="",
                    version="1",
                    cluster_id=self.id,
                    started_at=0.0,
                    format=Feature.OWNERS,
                )
                key = str(keys.CaptureKey(self.id, capture))
                revision = await client.put(key, info.encode(), lease=session.lease)
                site = OwnerSite(
                    capture=capture,
                    cluster=self.id,
                    client=line,
                    session=session,
                    registered=Compare(key, Target.CREATE_REVISION, revision),
                    peers=_NoPeers(),
                    settings=ReactorSettings(session_ttl_s=TTL_S),
                    ask=_answer,
                )
                member = Member(name, site, line, scope)
                try:
                    async with anyio.create_task_group() as tasks:
                        tasks.start_soon(member.candidacy.run)
                        tasks.start_soon(member.owners.run)
                        task_status.started(member)
                except* Exception:
                    member.ended_at = anyio.current_time()  # its session, which is what a capture begins again after

    async def assignments(self) -> dict[str, Assignment]:
        found = (await self.client.get_prefix(f"/weir/{self.id}/{_NS}/owner-of/")).items
        return {item.key.rpartition("/")[2]: Assignment.decode(item.value, key=item.key) for item in found}

    async def owners(self) -> dict[str, int]:
        return dict(Counter(str(one.capture) for one in (await self.assignments()).values()))

    async def revision(self, feed: str) -> int:
        item = await self.client.get(self.owner_key(ChangefeedId(feed)))
        return item.create_revision if item else 0

    async def controller(self) -> Member:
        """The elected capture, as the store has it."""
        while True:
            found = (await self.client.get_prefix(f"{keys.owner_prefix(self.id)}/")).items
            name = min(found, key=lambda item: item.create_revision).value.decode() if found else ""
            if name in self.members and self.members[name].candidacy.is_owner:
                return self.members[name]
            await anyio.sleep(0.05)

    async def until_launched(self, feed: str) -> CaptureId:
        """Return its owner."""
        with anyio.fail_after(patient(60)):
            while not (found := (await self.assignments()).get(feed)):  # noqa: ASYNC110 - of other clients
                await anyio.sleep(0.05)
        return found.capture

    async def until_gone(self, feed: str) -> None:
        with anyio.fail_after(patient(60)):
            while await self.revision(feed):  # noqa: ASYNC110 - of other clients
                await anyio.sleep(0.05)

    async def until_owned(self, count: int, names: Collection[str]) -> None:
        """Return when the captures of these names own that many changefeeds, all together."""
        with anyio.fail_after(patient(60)):
            owned = 0
            while owned != count:
                await anyio.sleep(0.05)
                owners = await self.owners()
                owned = sum(owners.get(name, 0) for name in names)

    async def until_owners(self, expected: dict[str, int], *, within_s: float = 60.0) -> None:
        found: dict[str, int] = {}
        with anyio.move_on_after(patient(within_s)):
            while (found := await self.owners()) != expected:  # noqa: ASYNC110 - of other clients
                await anyio.sleep(0.1)
            return
        raise AssertionError(f"owners are {found} and not {expected}")


class _NoPeers:
    def set_peers(self, peers: Any) -> None: ...

    def send_nowait(self, topic: str, message: Any) -> None: ...


def _answer(asked: Ask[Any], post: Callable[[Answered[Any]], None]) -> None:
    """There is nothing at sources and sinks: all that is asked of them is done."""
    post(Answered(asked.changefeed, asked.question))


@asynccontextmanager
async def _session(line: Line) -> AsyncIterator[Session]:
    """A session whose lease is not revoked when its process dies."""
    async with open_session(line, ttl_s=TTL_S) as session:
        try:
            yield session
        finally:
            line.is_cut = True


@asynccontextmanager
async def cluster(store: Store, names: Sequence[str]) -> AsyncIterator[Cluster]:
    async with store.connect() as client, AsyncExitStack() as stack:
        made = Cluster(store, client, stack)
        await client.put(str(keys.FormatKey(made.id)), ClusterFormat(number=Feature.OWNERS).encode())
        await made.start(*names)
        yield made


async def until(condition: Callable[[], bool], *, within_s: float = 60.0) -> None:
    with anyio.fail_after(patient(within_s)):
        while not condition():  # noqa: ASYNC110 - of other tasks
            await anyio.sleep(0.05)

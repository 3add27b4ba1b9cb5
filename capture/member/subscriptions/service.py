"""Subscription service: implements ``capture.api.subscriptions.Subscriptions`` on the owner's capture.

A position is one key in the metadata store. Whoever removes segments leaves those behind a position that has not
expired (``agent.log.retention``), within the limits for held tables. A reader whose changes are gone anyway is refused:
it never continues with a gap.

A refusal ends a reader, so it is never given from a stale state: a capture that was stopped for a while, or has just
become the owner, may not know yet what a reader got from another one. It reads the store, waits until it has seen as
much, and answers again.
"""

import builtins
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import anyio
import structlog

from agent.rows.batches import SegmentRef
from capture.api.subscriptions import (
    AdvanceAsked,
    Begin,
    LogAsked,
    LogPart,
    OpenedSubscription,
    SegmentView,
    SubscriptionAsked,
)
from capture.errors import (
    JobRefusedError,
    PositionGoneError,
    SubscriptionNotFoundError,
    TableNotFoundError,
)
from capture.member.ownership import router
from capture.member.querier import Querier
from capture.member.services import CaptureState, LogRead, PresentMembership
from capture.member.subscriptions import readable_log
from capture.member.subscriptions.readable_log import ReadableLog
from owner.progress.units import SOURCE
from reactor import keys
from reactor.errors import NotOwnerError, OwnerNotFoundError
from reactor.ids import Ts
from reactor.records import formats
from reactor.records.changefeed import ChangefeedInfo
from reactor.records.formats import Feature
from reactor.records.subscription import Subscription
from reactor.state import ChangefeedState
from reactor.store.port import Compare, Delete, Put, Target
from reactor.views import SubscriptionView

T = TypeVar("T")

_SEEN_TIMEOUT_S = 10.0
#: per changefeed
_COUNT_MAX = 200
#: a reader's requests renew its position when so much of the time is over
_RENEWED_AFTER = 0.25

_log = structlog.get_logger()


class SubscriptionService:
    """See ``capture.api.subscriptions.Subscriptions`` for the methods."""

    def __init__(self, capture: CaptureState) -> None:
        self._capture = capture

    async def open(self, changefeed_id: str, asked: SubscriptionAsked) -> OpenedSubscription:
        """:raises TableNotFoundError: the changefeed has no such table.
        :raises PositionGoneError: the log does not reach back to where the reader is.
        """
        return await self._confirmed(changefeed_id, asked.name, lambda: self._open(changefeed_id, asked))

    async def _open(self, changefeed_id: str, asked: SubscriptionAsked) -> OpenedSubscription:
        membership = self._membership
        formats.refuse_early("a subscription", Feature.SUBSCRIPTIONS, membership.state.format)
        log = readable_log.of(self._feed(changefeed_id), asked.table)
        key, stored = self._key(log.info, asked.name), self._stored(changefeed_id, asked.name)
        if stored is not None and stored.table_id != log.table.table_id:
            raise PositionGoneError(
                f"subscription {asked.name} is of {stored.table}, not of {log.name}: "
                "take another name, or close it first"
            )
        if stored is None and len(self._feed(changefeed_id).subscriptions) >= _COUNT_MAX:
            await self._make_room(membership, log.info)
        ts = _begin(log, asked, stored)
        log.check(ts)
        schema = await self._capture.data_plane.table_schema(log.info, log.at_source)
        opened = Subscription(
            name=asked.name,
            table_id=log.table.table_id,
            table=log.name,
            ts=ts,
            session=uuid.uuid4().hex,
            expires_seconds=asked.expires_seconds,
            expires_at=time.time() + asked.expires_seconds,
        )
        await self._write(membership, log.info, key, opened)
        _log.info("subscription", changefeed=changefeed_id, name=asked.name, table=log.name, ts=ts)
        return OpenedSubscription(
            name=asked.name, table=log.name, ts=ts, session=opened.session, columns=schema.to_json()
        )

    async def _make_room(self, membership: PresentMembership, info: ChangefeedInfo) -> None:
        """Close the subscription that expired first. Readers that were killed close none, and may have random names.

        :raises JobRefusedError: all are in use.
        """
        known = self._feed(info.id).subscriptions.values()
        expired = [one for one in known if one.expires_at <= time.time()]
        for one in sorted(expired, key=lambda one: one.expires_at):
            key = str(self._key(info, one.name))
            as_seen = Compare(key, Target.MOD_REVISION, membership.state.raw[key].mod_revision)
            done = await membership.client.txn([as_seen], [Delete(key)])
            await _see(membership, done.revision)
            if done.succeeded:
                _log.info("an expired subscription is closed", changefeed=info.id, name=one.name, table=one.table)
                return
        raise JobRefusedError(f"changefeed {info.id} has {_COUNT_MAX} subscriptions; close some that nobody uses")

    async def list(self, changefeed_id: str) -> builtins.list[SubscriptionView]:
        found = self._feed(changefeed_id).subscriptions
        return [_view(found[name]) for name in sorted(found)]

    async def read(self, changefeed_id: str, name: str, asked: LogAsked) -> LogPart:
        """Return what can be read, and wait for a change of the table as long as the reader wishes.

        :raises SubscriptionNotFoundError: there is none, or another reader has opened it since.
        :raises PositionGoneError: changes behind ``after_ts`` are missing.
        """
        return await self._confirmed(changefeed_id, name, lambda: self._read(changefeed_id, name, asked))

    async def _read(self, changefeed_id: str, name: str, asked: LogAsked) -> LogPart:
        deadline, after = anyio.current_time() + asked.wait_seconds, Ts(asked.after_ts)
        found: Sequence[SegmentRef] = ()
        seen_ts, seen = after, None
        while True:
            stored = self._opened(changefeed_id, name, asked.session)
            feed = self._feed(changefeed_id)
            log, change = readable_log.of(feed, stored.table, stored.table_id), feed.change
            log.check(after)
            if log.stopped and after >= log.end_ts:
                raise PositionGoneError(log.stopped)
            to_ts = max(after, log.end_ts if asked.to_ts is None else min(log.end_ts, Ts(asked.to_ts)))
            if to_ts > seen_ts:
                found = await self._segments(log, after, to_ts) if log.adds_to(seen) else ()
                seen_ts, seen = to_ts, log.head if to_ts == log.head.resolved_ts else None
            if found or to_ts == asked.to_ts or log.stopped or anyio.current_time() >= deadline:
                break
            await self._wait_change(changefeed_id, change, deadline)
        if not found:
            readable_log.refuse_successor(feed, log, stored.table)
        await self._renew(changefeed_id, stored)
        found, to_ts = readable_log.limited(found, after, to_ts, asked.max_bytes)
        return LogPart(
            table=log.table,
            filter=log.info.config.filter,
            from_ts=after,
            to_ts=to_ts,
            newest_ts=log.end_ts,
            segments=tuple(SegmentView.model_validate(item, from_attributes=True) for item in found),
        )

    async def _wait_change(self, changefeed_id: str, change: int, deadline: float) -> None:
        """Return when the changefeed is no longer as it was at ``change``, or at ``deadline``.

        :raises OwnerNotFoundError: this capture is no longer a member.
        """
        membership = self._membership
        with anyio.move_on_after(max(0.0, deadline - anyio.current_time())):
            while self._feed(changefeed_id).change == change:
                await _next_state(membership)

    async def _segments(self, log: ReadableLog, after: Ts, to_ts: Ts) -> Sequence[SegmentRef]:
        """Return the segments with changes of the table in ``(after, to_ts]``."""
        segments = await self._capture.data_plane.read_log(log.info, SOURCE, LogRead(log.head, after, to_ts))
        return [item for item in segments if log.table.table_id in item.tables]

    async def advance(self, changefeed_id: str, name: str, asked: AdvanceAsked) -> SubscriptionView:
        """:raises SubscriptionNotFoundError: there is none, or another reader has opened it since.
        :raises PositionGoneError: the log does not reach there: later changes would be removed unread.
        """
        return await self._confirmed(changefeed_id, name, lambda: self._advance(changefeed_id, name, asked))

    async def _advance(self, changefeed_id: str, name: str, asked: AdvanceAsked) -> SubscriptionView:
        stored = self._opened(changefeed_id, name, asked.session)
        log = readable_log.of(self._feed(changefeed_id), stored.table, stored.table_id)
        if asked.ts > stored.ts:
            log.check_reached(asked.ts)
        info = log.info
        moved = stored.with_(ts=max(stored.ts, Ts(asked.ts)), expires_at=time.time() + stored.expires_seconds)
        await self._write(self._membership, info, self._key(info, name), moved, session=asked.session)
        return _view(moved)

    async def close(self, changefeed_id: str, name: str) -> None:
        info = readable_log.info_of(self._feed(changefeed_id))
        await self._membership.client.txn([], [Delete(str(self._key(info, name)))])

    async def _renew(self, changefeed_id: str, stored: Subscription) -> None:
        if stored.expires_at - time.time() < (1 - _RENEWED_AFTER) * stored.expires_seconds:
            await self._advance(changefeed_id, stored.name, AdvanceAsked(session=stored.session, ts=stored.ts))

    async def _confirmed(self, changefeed_id: str, name: str, answer: Callable[[], Awaitable[T]]) -> T:
        """Return the answer; a refusal is one only if this capture's state has what the store has."""
        try:
            return await answer()
        except (PositionGoneError, SubscriptionNotFoundError, TableNotFoundError):
            await self._catch_up(changefeed_id, name)
        return await answer()

    async def _catch_up(self, changefeed_id: str, name: str) -> None:
        """Wait until this capture's state has the newest records by which a reader is refused, and of who answers."""
        membership, info = self._membership, readable_log.info_of(self._feed(changefeed_id))
        place = (membership.state.cluster, info.namespace, info.id)
        kept = (
            self._key(info, name),
            keys.LogKey(*place, SOURCE),
            keys.UnitKey(*place, SOURCE),
            keys.AssignmentKey(*place),
        )
        found = [await membership.client.get(str(key)) for key in kept]
        newest = max((item.mod_revision for item in found if item is not None), default=0)
        await _see(membership, newest)

    async def _write(
        self,
        membership: PresentMembership,
        info: ChangefeedInfo,
        key: keys.SubscriptionKey,
        record: Subscription,
        *,
        session: str | None = None,
    ) -> None:
        """Store it while the changefeed exists, and (``session``) no other reader has opened it."""
        self._feed(info.id)  # it may have been removed meanwhile
        state = membership.state
        created = state.raw[str(keys.InfoKey(state.cluster, info.namespace, info.id))].create_revision
        is_there = Compare(str(keys.InfoKey(state.cluster, info.namespace, info.id)), Target.CREATE_REVISION, created)
        compares = [is_there]
        if session is not None:
            item = await membership.client.get(str(key))
            if item is None or Subscription.decode(item.value, key=str(key)).session != session:
                raise _taken(record.name)
            compares.append(Compare(str(key), Target.MOD_REVISION, item.mod_revision))
        done = await membership.client.txn(compares, [Put(str(key), record.encode())])
        if not done.succeeded:
            raise _taken(record.name)
        await _see(membership, done.revision)  # the next request is answered from this state

    def _stored(self, changefeed_id: str, name: str) -> Subscription | None:
        return self._feed(changefeed_id).subscriptions.get(name)

    def _opened(self, changefeed_id: str, name: str, session: str) -> Subscription:
        stored = self._stored(changefeed_id, name)
        if stored is None or stored.session != session:
            raise _taken(name)
        return stored

    def _key(self, info: ChangefeedInfo, name: str) -> keys.SubscriptionKey:
        return keys.SubscriptionKey(self._membership.state.cluster, info.namespace, info.id, name)

    def _feed(self, changefeed_id: str) -> ChangefeedState:
        membership = self._membership
        if not router.answers(membership, changefeed_id):
            raise NotOwnerError("this capture is not the owner; ask the owner")
        return Querier(membership.state).changefeed(changefeed_id)

    @property
    def _membership(self) -> PresentMembership:
        if self._capture.membership is None:
            raise _no_session()
        return self._capture.membership


async def _see(membership: PresentMembership, revision: int) -> None:
    """Wait until this capture has seen the store at ``revision``, or for ten seconds.

    :raises OwnerNotFoundError: the membership has ended.
    """
    with anyio.move_on_after(_SEEN_TIMEOUT_S):
        while membership.state.revision < revision:
            await _next_state(membership)


async def _next_state(membership: PresentMembership) -> None:
    """:raises OwnerNotFoundError: the membership has ended."""
    if not await membership.wait_change():
        raise _no_session()


def _no_session() -> OwnerNotFoundError:
    return OwnerNotFoundError("this capture has no session with the metadata store; try again in a few seconds")


def _begin(log: ReadableLog, asked: SubscriptionAsked, stored: Subscription | None) -> Ts:
    if asked.at_ts is not None:
        return Ts(asked.at_ts)
    if stored is not None:
        return stored.ts
    if asked.begin is Begin.EARLIEST:
        return log.first_ts
    return max(log.head.resolved_ts, log.first_ts) if asked.begin is Begin.LATEST else Ts(asked.begin)


def _view(item: Subscription) -> SubscriptionView:
    return SubscriptionView(name=item.name, table=item.table, ts=item.ts, expires_at=item.expires_at)


def _taken(name: str) -> SubscriptionNotFoundError:
    return SubscriptionNotFoundError(
        f"subscription {name} was opened by another reader, or closed; give each reader a name of its own"
    )

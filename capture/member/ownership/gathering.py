"""Gathering: the views of all changefeeds, from their owners on all captures.

What an owner does not say in time is shown as the store has it, with the reason.
"""

import time
from collections.abc import Sequence
from typing import Protocol

import anyio
import structlog
from anyio import CapacityLimiter, to_thread

from capture.api.connection import Connection
from capture.api.port import Endpoint
from capture.member.ownership import router
from owner import views
from reactor.errors import OwnerNotFoundError, WeirError
from reactor.ids import CaptureId
from reactor.state import ChangefeedState
from reactor.views import ChangefeedView

_TIMEOUT_S = 5.0
_AT_ONCE = 16

_log = structlog.get_logger()


class RemoteOwners(Protocol):
    """The owners on another capture."""

    async def owned(self, endpoint: Endpoint, *, tables: bool) -> Sequence[ChangefeedView]:
        """``tables``: with their tables. :raises WeirError: it does not answer."""
        ...

    async def remove(self, endpoint: Endpoint, changefeed: str) -> None:
        """:raises WeirError: it refuses, or does not answer."""
        ...


class HttpOwners:
    """``own_token``: this capture's; ``ca_file``: what the others' certificates are verified with."""

    def __init__(self, own_token: "OwnTokenValue", ca_file: str) -> None:
        self._own_token = own_token
        self._ca_file = ca_file
        self._limiter: CapacityLimiter | None = None

    async def owned(self, endpoint: Endpoint, *, tables: bool) -> Sequence[ChangefeedView]:
        connection = self._connection(endpoint)
        return await to_thread.run_sync(
            lambda: connection.call(lambda client: client.owned(tables=tables)),
            abandon_on_cancel=True,
            limiter=self._threads,
        )

    async def remove(self, endpoint: Endpoint, changefeed: str) -> None:
        connection = self._connection(endpoint)
        await to_thread.run_sync(
            lambda: connection.call(lambda client: client.remove(changefeed)),
            abandon_on_cancel=True,
            limiter=self._threads,
        )

    def _connection(self, endpoint: Endpoint) -> Connection:
        return Connection(endpoint.url, token=self._own_token.value, ca_file=self._ca_file, node=endpoint.node)

    @property
    def _threads(self) -> CapacityLimiter:
        self._limiter = self._limiter or CapacityLimiter(_AT_ONCE)
        return self._limiter


class OwnTokenValue(Protocol):
    @property
    def value(self) -> str: ...


class OwnedHere(Protocol):
    """The changefeeds that this capture owns."""

    async def __call__(self, *, tables: bool) -> Sequence[ChangefeedView]: ...


async def gather(
    member: router.Member, own: OwnedHere, remote: RemoteOwners, *, tables: bool = True
) -> list[ChangefeedView]:
    """Return the views of all changefeeds, by id, with their tables or only their number."""
    state, me = member.state, member.info.id
    owners = {feed.owner.capture for feed in state.changefeeds.values() if feed.owner is not None}
    found = {view.id: view for view in await own(tables=tables)}
    problems: dict[CaptureId, str] = {}

    async def ask(capture: CaptureId) -> None:
        try:
            if (info := state.captures.get(capture)) is None:
                raise OwnerNotFoundError(f"capture {capture} is gone; its changefeeds get another owner")
            with anyio.fail_after(_TIMEOUT_S):
                views = await remote.owned(Endpoint(info.address, info.node), tables=tables)
            found.update((view.id, view) for view in views)
        except (WeirError, TimeoutError) as error:
            problems[capture] = f"its owner, capture {capture}, does not answer; it is shown as the store has it"
            _log.warning("an owner does not answer", capture=capture, error=f"{type(error).__name__}: {error}")

    async with anyio.create_task_group() as tasks:
        for capture in sorted(owners - {me}):
            tasks.start_soon(ask, capture)
    for id, feed in state.changefeeds.items():
        if id not in found and (view := stored_view(feed, tables=tables)) is not None:
            owner = feed.owner.capture if feed.owner else None
            why = problems.get(owner, "") if owner else "no capture owns it at the moment"
            found[id] = view.model_copy(update={"blocked_by": why}) if why else view
    return [found[id] for id in sorted(found) if id in state.changefeeds]


def stored_view(feed: ChangefeedState, *, tables: bool = True) -> ChangefeedView | None:
    """Return a changefeed as the store has it; None for leftovers of a removed one."""
    if feed.info is None and not feed.broken:
        return None
    return views.stored(feed, wall=time.time(), with_tables=tables)

"""Departure: cancels work for a caller that has disconnected (Ctrl-C, a timeout, a lost connection)."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio
from anyio import CancelScope
from starlette.exceptions import HTTPException
from starlette.requests import Request

T = TypeVar("T")

#: only the audit trail shows it; nginx uses the same number
_CALLER_LEFT = 499


async def unless_left(request: Request, work: Callable[[], Awaitable[T]]) -> T:
    """Return the result of ``work``, which is cancelled when the caller disconnects."""
    done: list[T] = []
    failure: Exception | None = None
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(leave_with_caller, request, tasks.cancel_scope)
        try:
            done.append(await work())
        except Exception as error:
            failure = error  # kept out of the task group, which would wrap it
        tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure
    if not done:
        raise HTTPException(_CALLER_LEFT, "the caller has left")
    return done[0]


async def leave_with_caller(request: Request, scope: CancelScope) -> None:
    """Requires that the request's body has been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    scope.cancel()

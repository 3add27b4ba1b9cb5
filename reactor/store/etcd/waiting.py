"""Waiting: awaits calls of grpc under anyio.

A cancelled call of ``grpc.aio`` raises a new ``CancelledError`` that anyio does not recognise as its own: the scope
that ended (a time limit, a task group) would let it pass as if the whole task had been cancelled. A call whose channel
is closed raises the same error although nothing was cancelled. Both are distinguished here.
"""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

import anyio.lowlevel

from reactor.errors import StoreUnreachableError

T = TypeVar("T")


async def answer_of(call: Awaitable[T]) -> T:
    """Await ``call``, with anyio's cancellation.

    :raises StoreUnreachableError: the channel was closed during the call.
    """
    try:
        return await call
    except asyncio.CancelledError:
        await anyio.lowlevel.checkpoint_if_cancelled()  # raises anyio's own error if anyio cancelled
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise StoreUnreachableError("this etcd client is closed; open a new one") from None

"""Waiting: awaits calls of grpc under anyio.

A call of ``grpc.aio`` that is cancelled raises a fresh ``CancelledError``, in which anyio does not see its own: the
scope that ended (a time limit, a task group) would let it pass as if somebody had cancelled the whole task. And a
call whose channel is closed raises the same error although nobody cancelled anything. Both are distinguished here.
"""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

import anyio.lowlevel

from reactor.errors import EtcdUnreachableError

T = TypeVar("T")


async def answer_of(call: Awaitable[T]) -> T:
    """``await call``, with cancellation as anyio knows it.

    :raises EtcdUnreachableError: the channel was closed under the call.
    """
    try:
        return await call
    except asyncio.CancelledError:
        await anyio.lowlevel.checkpoint_if_cancelled()  # raises anyio's own, if it was anyio
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise EtcdUnreachableError("this etcd client is closed; open a new one") from None

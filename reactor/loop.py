"""Event loop: runs a process on uvloop.

Between two awaits of a call to etcd lie five rounds of the loop, and each costs a fraction there of what it
costs in asyncio's own. Code below relies on anyio only, and tests run it on asyncio's loop, too.
"""

from collections.abc import Awaitable, Callable
from typing import TypeVar, TypeVarTuple

import anyio

T = TypeVar("T")
Args = TypeVarTuple("Args")


def run(main: Callable[[*Args], Awaitable[T]], *args: *Args) -> T:
    """``anyio.run``."""
    return anyio.run(main, *args, backend_options={"use_uvloop": True})

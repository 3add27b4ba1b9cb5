"""Event loop: runs a process on uvloop.

A call to etcd takes five rounds of the loop, and each is several times cheaper on uvloop than on asyncio's loop. Code
uses anyio only, and tests also run on asyncio's loop.
"""

from collections.abc import Awaitable, Callable
from typing import TypeVar, TypeVarTuple

import anyio

T = TypeVar("T")
Args = TypeVarTuple("Args")


def run(main: Callable[[*Args], Awaitable[T]], *args: *Args) -> T:
    """``anyio.run``."""
    return anyio.run(main, *args, backend_options={"use_uvloop": True})

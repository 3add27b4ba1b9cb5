"""The sync unit: what ends it while it writes."""

import threading
from types import SimpleNamespace
from typing import Any, cast

import anyio
from anyio import to_thread

from agent.ports.source import Position
from agent.units.sync import SyncUnit
from reactor.ids import Ts
from tests.patience import HANG_S


class Opened:
    """A source that does not answer before ``released``."""

    def __init__(self, released: threading.Event) -> None:
        self._released = released

    def prove(self, cut: object) -> object:
        self._released.wait()
        return cut


async def test_a_unit_that_is_stopped_while_it_writes_does_not_crash() -> None:
    nothing = cast("Any", None)
    unit = SyncUnit(nothing, Position(Ts(1)), writer=nothing, directory=nothing, needs=nothing)
    writing, written, proved = threading.Event(), threading.Event(), threading.Event()
    ended: list[str] = []

    def write(cut: object, pool: object) -> None:
        writing.set()
        written.wait()

    async def prepare() -> None:
        try:
            await unit._prepare(cast("Any", SimpleNamespace(arena=object())), nothing, cast("Any", Opened(proved)))
        except anyio.get_cancelled_exc_class():
            ended.append("stopped")
            raise

    cast("Any", unit)._write = write
    try:
        with anyio.fail_after(HANG_S):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(prepare)
                await to_thread.run_sync(writing.wait)
                tasks.cancel_scope.cancel()
                written.set()
    finally:
        proved.set()
    assert ended == ["stopped"]

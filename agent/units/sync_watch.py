"""Sync watch: runs a sync unit, and reports why it waits for its source."""

import anyio

from agent.control.runtime import Progress, UnitState
from agent.units.sync import SyncUnit
from reactor.errors import WeirError
from reactor.records.changefeed import RunningError

_WATCH_S = 1.0


async def run(unit: SyncUnit, on_progress: Progress) -> None:
    """Run the sync unit; report why it waits for its source."""
    failure: list[Exception] = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_watch, unit, on_progress)
        try:
            await unit.run()
        except WeirError as error:
            failure.append(error)  # kept out of the task group, which would wrap it
        tasks.cancel_scope.cancel()
    if failure:
        raise failure[0]


async def _watch(unit: SyncUnit, on_progress: Progress) -> None:
    known = ""
    while True:
        await anyio.sleep(_WATCH_S)
        now = unit.statistics()
        if now.error != known:
            known = now.error
            trouble = RunningError(code=now.error_code, message=now.error, time=now.error_since) if known else None
            on_progress(UnitState(trouble=trouble))

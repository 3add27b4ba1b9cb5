"""A wait of a unit: each cause is reported once, and a thread that is abandoned waits no longer."""

from threading import Event

import anyio
import pytest
from anyio import to_thread

from agent.control.runtime import UnitState
from agent.ports.snapshot import Wait
from agent.units.waiting import Waiting, waiting
from reactor.records.changefeed import RunningError
from tests.patience import HANG_S


def message_of(state: UnitState) -> str | None:
    return state.trouble.message if state.trouble else None


def test_a_cause_is_reported_once_with_the_time_of_the_first() -> None:
    troubles: list[RunningError] = []
    wait = Waiting(troubles.append, Event()).wait
    for cause in ("one is open", "one is open", "another is open"):
        wait.report(cause)
    assert [trouble.message for trouble in troubles] == ["one is open", "another is open"]
    assert {trouble.code for trouble in troubles} == {"OpenTransactions"}
    assert len({trouble.time for trouble in troubles}) == 1
    wait.stopped.set()
    wait.report("a third is open")
    assert len(troubles) == 2


async def test_the_thread_of_a_cancelled_unit_waits_no_longer() -> None:
    ended, waits = Event(), anyio.Event()
    messages: list[str | None] = []

    def on_progress(state: UnitState) -> None:
        messages.append(message_of(state))
        waits.set()

    def work(wait: Wait) -> None:
        wait.report("one is open")
        assert wait.stopped.wait(HANG_S)
        wait.report("it is still open")
        ended.set()

    async def run() -> None:
        with waiting(on_progress) as wait:
            await to_thread.run_sync(work, wait, abandon_on_cancel=True)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        with anyio.fail_after(HANG_S):
            await waits.wait()
        tasks.cancel_scope.cancel()
    assert await to_thread.run_sync(ended.wait, HANG_S)
    assert messages == ["one is open"]


@pytest.mark.parametrize("causes", [(), ("one is open",)])
async def test_a_wait_that_is_over_is_no_trouble_any_more(causes: tuple[str, ...]) -> None:
    messages: list[str | None] = []
    with waiting(lambda state: messages.append(message_of(state))) as wait:
        for cause in causes:
            await to_thread.run_sync(wait.report, cause)
    assert messages == [*causes, *([None] if causes else [])]


async def test_what_a_thread_raises_is_raised() -> None:
    with pytest.raises(ValueError, match="refused"), waiting(lambda _: None) as wait:
        await to_thread.run_sync(lambda _: int("refused"), wait)
    assert wait.stopped.is_set()

"""What blocks the event loop is named."""

import threading

import anyio
import pytest
from structlog.testing import capture_logs

from capture import loop_watch
from capture.loop_watch import LoopWatch


def hold_the_loop(seconds: float) -> None:
    threading.Event().wait(seconds)


@pytest.mark.matrix
async def test_code_that_blocks_the_loop_is_named_once_with_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_watch, "LIMIT_S", 0.3)
    watch = LoopWatch()
    with capture_logs() as logs, anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch.run)
            await anyio.sleep(0.5)
            hold_the_loop(1.0)
            while not any("hold_the_loop" in line["at"] for line in logs):  # noqa: ASYNC110
                await anyio.sleep(0.01)
            await anyio.sleep(0.5)
            watch.stop()
    [line] = [line for line in logs if "hold_the_loop" in line["at"]]
    assert line["event"] == "the event loop was blocked"
    assert 1.0 <= line["seconds"] < 60.0

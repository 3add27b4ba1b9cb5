"""Health: repeats the self-test, and holds the fault of a capture that fails it.

    well ──a test fails──► unwell: takes no work ──a later test succeeds──► well

The test runs at intervals, and at once after an error that may be the capture's own (``doubt``). While the capture is
unwell, the interval grows, and it starts longer if the capture has recently been unwell: work should not move back and
forth.
"""

from collections.abc import Callable
from typing import Protocol

import anyio
import structlog
from anyio import to_thread

from agent.errors import OwnFaultError
from agent.own_faults import own_fault

_WELL_S = 10.0
#: between tests while it is unwell
_AGAIN_S, _AGAIN_MAX_S = 2.0, 60.0
#: after so long without a fault, earlier faults no longer lengthen the interval
_CALM_S = 600.0

_log = structlog.get_logger()


class Test(Protocol):
    """Blocking. Returns one line that names what is missing, or an empty text."""

    def __call__(self, *, is_again: bool) -> str: ...


class Health:
    """``test``: None if there is nothing to test, and only ``note`` changes it. ``fault``: None while it is well."""

    def __init__(self, test: Test | None = None, *, clock: Callable[[], float] = anyio.current_time) -> None:
        self.fault: OwnFaultError | None = None
        self._test = test
        self._clock = clock
        self._doubted = anyio.Event()
        self._changed = anyio.Event()
        self._again_s = _AGAIN_S
        self._recovered_at = float("-inf")

    @property
    def cause(self) -> str:
        """One line, empty while it is well."""
        return str(self.fault or "")

    def doubt(self) -> None:
        """Test soon: something has failed that may be this capture's fault."""
        self._doubted.set()

    async def run(self) -> None:
        """Test until cancelled."""
        while self._test is not None:
            await self.look()
            with anyio.move_on_after(_WELL_S if self.fault is None else self._again_s):
                await self._doubted.wait()
            self._doubted = anyio.Event()

    async def look(self) -> None:
        """Test once."""
        assert self._test is not None, "there is a test"
        test, is_again = self._test, self.fault is not None
        try:
            cause = await to_thread.run_sync(lambda: test(is_again=is_again), abandon_on_cancel=True)
        except Exception as error:
            fault = own_fault(error)
            if fault is None:  # a test that fails itself says nothing of the capture
                _log.exception("the self-test failed", error=type(error).__name__)
                return
            cause = str(fault)
        self.note(cause)

    def note(self, cause: str) -> None:
        """Take over a test's result."""
        before, now = self.fault, self._clock()
        if cause and before is None:
            self._again_s = _AGAIN_S if now - self._recovered_at >= _CALM_S else min(2 * self._again_s, _AGAIN_MAX_S)
            _log.warning("this capture takes no work", cause=cause)
        elif cause:
            self._again_s = min(2 * self._again_s, _AGAIN_MAX_S)
        elif before is not None:
            self._recovered_at = now
            _log.info("this capture is well again", was=str(before))
        self.fault = OwnFaultError(cause) if cause else None
        if cause != str(before or ""):
            self._changed.set()
            self._changed = anyio.Event()

    async def changed(self) -> None:
        """Return at the next change."""
        await self._changed.wait()

    async def well(self) -> None:
        """Return when it is well."""
        while self.fault is not None:
            await self.changed()

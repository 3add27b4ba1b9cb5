"""Event loop watch: logs what has blocked a capture's event loop, and for how long.

While the loop is blocked no lease is renewed and no request is answered, so a capture may lose its work. A thread looks
whether the loop still runs; when it does not, the thread notes where the loop's code is.
"""

import sys
import threading
import time
import traceback
from itertools import islice
from types import FrameType
from typing import Final

import anyio
import structlog

LIMIT_S: Final = 1.0
_BEAT_S: Final = 0.25
#: innermost callers that are named
_FRAMES: Final = 6

_log = structlog.get_logger()


class LoopWatch:
    """Watches the loop of the task that runs it, from then until ``stop``."""

    def __init__(self) -> None:
        self._beat = 0.0
        self._is_over = threading.Event()
        self._stopped = anyio.Event()

    async def run(self) -> None:
        self._beat = time.monotonic()
        looks = threading.Thread(target=self._look, args=(threading.get_ident(),), name="weir-loop-watch", daemon=True)
        looks.start()
        try:
            while not self._stopped.is_set():
                with anyio.move_on_after(_BEAT_S):
                    await self._stopped.wait()
                self._beat = time.monotonic()
        finally:
            self._is_over.set()

    def stop(self) -> None:
        self._stopped.set()

    def _look(self, loop: int) -> None:
        """``loop``: the thread of the loop."""
        seen, since, place = time.monotonic(), 0.0, ""
        while not self._is_over.wait(_BEAT_S):
            before, seen = seen, time.monotonic()
            if seen - before > LIMIT_S:  # the whole process was stopped
                place = ""
            elif place and self._beat > since:
                _log.warning("the event loop was blocked", seconds=round(self._beat - since, 1), at=place)
                place = ""
            elif not place and seen - self._beat > LIMIT_S:
                since, place = self._beat, _place(sys._current_frames().get(loop))


def _place(frame: FrameType | None) -> str:
    """Return the innermost callers: where they are, and no values."""
    frames = islice(traceback.walk_stack(frame), _FRAMES) if frame else ()
    return " < ".join(f"{one.f_code.co_filename}:{line} {one.f_code.co_name}" for one, line in frames)

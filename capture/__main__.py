"""Entry point: ``python -m capture``, and the command ``weir``; Ctrl-C ends it silently, even during imports."""

import signal
import sys
from types import FrameType
from typing import NoReturn


def run() -> NoReturn:
    before = signal.signal(signal.SIGINT, _leave)
    from capture import gc_settings

    with gc_settings.paused():
        from capture.cli.main import main

    signal.signal(signal.SIGINT, before)
    sys.exit(main())


def _leave(_number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(130)


if __name__ == "__main__":
    run()

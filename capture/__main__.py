"""Entry point: ``python -m capture``, and the command ``weir``; Ctrl-C ends it silently, even during imports and
the interpreter's end."""

import signal
import sys
from types import FrameType
from typing import NoReturn


def run() -> NoReturn:
    before = signal.signal(signal.SIGINT, _leave)
    try:
        from capture import gc_settings

        with gc_settings.paused():
            from capture.cli.main import main

        signal.signal(signal.SIGINT, before)
        code = main()
    except KeyboardInterrupt:  # on the way into the command, or out of it
        code = 130
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the command has ended: only the interpreter's own end is left
    sys.exit(code)


def _leave(_number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(130)


if __name__ == "__main__":
    run()

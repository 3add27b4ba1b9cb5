"""Garbage collection settings: make this process collect cyclic garbage rarely, since there is little of it.

An owner's state of 100,000 spans is half a million objects, and captures' answers create as many again every second,
freed as soon as they are read. With the interpreter's default thresholds such a stream causes a full collection more
than once a second, which takes longer than the owner's ticks. Objects that exist at the start are never scanned.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_YOUNG = 50_000
_MIDDLE, _OLD = 20, 50


@contextmanager
def paused() -> Iterator[None]:
    """Collect nothing in a block that imports modules, which live as long as the process: to traverse them again and
    again takes a fifth of the time of importing them."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def collect_seldom() -> None:
    """Call when everything is imported and before the event loop starts."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, _MIDDLE, _OLD)

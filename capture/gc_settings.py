"""Garbage collection settings: make this process look for garbage in cycles seldom, since there is little of it.

What an owner knows of 100,000 spans is half a million objects, and captures' answers are as many again every second,
gone as soon as they are read. With the interpreter's own thresholds such a stream makes it look through everything
more than once a second, which takes longer than the owner's ticks. What is there at the start is never looked at.
"""

import gc

_YOUNG = 50_000
_MIDDLE, _OLD = 20, 50


def collect_seldom() -> None:
    """Call when everything is imported and before the event loop starts."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, _MIDDLE, _OLD)

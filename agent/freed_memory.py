"""What is freed goes back to the system.

glibc's allocator learns from what is freed: after a few arrays of some mebibytes it keeps such in its own heaps, one
for each group of threads, and what they had at their peak stays there. Told once where to draw the line, it maps
everything larger by itself, and gives it back at once.
"""

import ctypes

_M_ARENA_MAX, _M_MMAP_THRESHOLD = -8, -3
_ARENAS = 2
_LARGE_BYTES = 1 << 20


def give_back() -> None:
    """Call it before threads begin; without glibc it does nothing."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, _ARENAS)
        mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)

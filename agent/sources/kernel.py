"""How numba's kernels are made here, and the types that their signatures have in common.

Every kernel is compiled for exactly the signatures it names and kept in numba's cache, so that a fresh process (a
Spark worker, say) loads machine code and compiles nothing.

The cache notices when the file of a kernel changes, not when a file does that the kernel took code or constants from:
who changes such a file removes ``__pycache__``.
"""

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from numba import njit, types

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]

#: read-only bytes; a writable array is accepted too
DATA: Final = types.Array(types.uint8, 1, "C", readonly=True)


def kernel(*signatures: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """``njit`` as all our kernels want it: cached, without the GIL, for the given signatures only."""
    return njit(list(signatures), cache=True, nogil=True)

"""Own faults: tells errors of this capture from those of the source, the sink and the log.

The capture's own errors are those of its process: no descriptor, no thread, no memory. They arise anywhere, often below
an error of ours, so the whole chain of causes is searched. The error of a full disk does not tell whose disk it is; the
self-test does (``agent.health.probe``).
"""

import errno
import re
from collections.abc import Iterator
from typing import Final

from agent.errors import OwnFaultError

_DESCRIPTORS = "has no file descriptor left; raise its limit (ulimit -n, LimitNOFILE)"
_MACHINE = "runs on a machine without a file descriptor left; raise fs.file-max, or see which process has so many open"
_THREADS = "cannot start another thread; raise its limits (ulimit -u, TasksMax)"
_MEMORY = "has no memory left; give it more, or let it do less at once"
_OF_NUMBER: Final = {errno.EMFILE: _DESCRIPTORS, errno.ENFILE: _MACHINE, errno.ENOMEM: _MEMORY}
#: these libraries write the number into the text. Texts of all others may be those of sources: a name, a message
_LIBRARIES: Final = frozenset({"_internal", "deltalake", "obstore", "pyo3_runtime"})
_NUMBER = re.compile(r"\(os error (\d+)\)")
_NO_THREAD = "can't start new thread"
_DEPTH_MAX = 20


def own_fault(error: BaseException, *, with_memory: bool = True) -> OwnFaultError | None:
    """Return the capture's own fault that is the cause of ``error``, or None if there is no such.

    ``with_memory``: a lack of memory counts as one, and not as too much work for one process.
    """
    for link in _chain(error):
        if isinstance(link, OwnFaultError):
            return link
        text = _cause(link)
        if text and (with_memory or text != _MEMORY):
            return OwnFaultError(f"this capture {text}; its work goes to others, and it tests itself again")
    return None


def of_number(number: int | None) -> str:
    """Return what the capture lacks if a call of the system fails with this number; empty if it says nothing."""
    return _OF_NUMBER.get(number, "") if number is not None else ""


def _cause(error: BaseException) -> str:
    if isinstance(error, MemoryError):
        return _MEMORY
    if isinstance(error, OSError) and error.errno is not None:
        return of_number(error.errno)
    if isinstance(error, RuntimeError) and _NO_THREAD in str(error):
        return _THREADS
    found = _NUMBER.search(str(error)) if type(error).__module__.split(".")[0] in _LIBRARIES else None
    return of_number(int(found[1])) if found else ""


def _chain(error: BaseException, depth: int = 0) -> Iterator[BaseException]:
    """Yield the error, and what it was raised from or during."""
    if depth >= _DEPTH_MAX:
        return
    yield error
    causes = [error.__cause__ or error.__context__]
    causes += error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    for cause in causes:
        if cause is not None:
            yield from _chain(cause, depth + 1)

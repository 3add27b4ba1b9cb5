"""Spark causes: extracts from a Spark failure the one line that says what happened, and where.

Spark wraps an executor's exception several times: py4j names the failed Java call, then come the aborted stage, the
last attempt's exception with its stack, and that one's cause. The first line with information about the actual failure
is what users need.
"""

import re
from typing import Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

_LENGTH_MAX: Final = 300
#: precedes the exception of the last attempt
_LAST_ATTEMPT: Final = re.compile(
    r"most recent failure: Lost task [\d.]+ in stage [\d.]+ \(TID \d+\) \((?P<where>[^)]*)\): "
)
_CLASS: Final = re.compile(r"^(?:Caused by: )?(?:[a-z]\w*\.)+(?P<name>[A-Z][\w$]*)(?::\s*|$)")
_FRAME: Final = re.compile(r"^\s*(at |\.\.\. \d+ more)")
_PYTHON_ERROR: Final = re.compile(r"^(?:[a-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Exit|Interrupt)\b")
#: classes that say nothing; only their message is used
_WRAPPERS: Final = frozenset({"SparkException", "RuntimeException", "ExecutionException", "PythonException"})
_SAYS_NOTHING: Final = re.compile(r"^$|Exception thrown in awaitResult|^Job aborted|^Failed to execute|^[A-Z][\w$]*$")
#: a worker, or an executor on a cluster, has ended; the tasks themselves raised nothing
_LOST: Final = re.compile(r"Python worker exited unexpectedly|ExecutorLostFailure|Python worker failed to connect back")
_CURES: Final = (
    (re.compile(r'Cannot run program "'), "name the executors' Python with spark.pyspark.python"),
    (re.compile(r"No module named '(agent|reactor)'"), "install Weir there, or let it be sent (spark-packages = sent)"),
    (re.compile(r"PACKAGE_NOT_INSTALLED|grpcio"), "pip install 'weir-cdc[connect]'"),
    (re.compile(r"No module named "), "install Weir's dependencies in the executors' Python"),
    (re.compile(r"PYTHON_VERSION_MISMATCH|different minor version"), "use one minor version of Python everywhere"),
)


def cause_of(error: BaseException) -> str:
    """Return one line: cause, place, and the cure if known."""
    text = _text(error)
    last = _LAST_ATTEMPT.search(text)
    where = ""
    if last is not None:
        text, where = text[last.end() :], f" (on {last['where']})"
    line = _telling(text) or type(error).__name__
    cure = next((f"; {cure}" for pattern, cure in _CURES if pattern.search(line)), "")
    return f"{line[:_LENGTH_MAX]}{where}{cure}"


def is_worker_lost(error: BaseException) -> bool:
    """Return whether a process that ran tasks ended: it was killed, or crashed."""
    return _LOST.search(_text(error)) is not None


def _text(error: BaseException) -> str:
    thrown = getattr(error, "java_exception", None)
    if thrown is not None:
        try:
            return str(error).partition("\n")[2].removeprefix(": ") or str(thrown)
        except (OSError, Py4JError):  # the text is the JVM's, which is gone
            return "its JVM has ended"
    message = error.getMessage() if isinstance(error, PySparkException) else None
    return message or str(error)


def _telling(text: str) -> str:
    """Return the last line of a Python traceback, or else of the last cause."""
    lines = [line.rstrip() for line in text.split("\nDriver stacktrace:")[0].splitlines() if line.strip()]
    if any("Traceback (most recent call last)" in line for line in lines):
        raised = [line for line in lines if _PYTHON_ERROR.match(line) and not _CLASS.match(line)]
        if raised:
            return raised[-1]
    first = next((line for line in lines if not _FRAME.match(line)), "")
    chain = [_without_class(line) for line in (first, *(line for line in lines if line.startswith("Caused by: ")))]
    return next((line for line in chain if not _SAYS_NOTHING.search(line)), chain[-1])


def _without_class(line: str) -> str:
    found = _CLASS.match(line)
    if found is None:
        return line.strip()
    rest = line[found.end() :].strip()
    if found["name"] in _WRAPPERS and rest:
        return _without_class(rest)
    return f"{found['name']}: {rest}" if rest else found["name"]

"""Care of tables: what a process does beside its flushes, as metrics, and whose turn it remembers.

They are made with the first round: executors, which care for no table, need not have their library.
"""

import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from prometheus_client import Counter, Gauge, Histogram

#: tables whose turns are remembered; others wait as new ones do
_TURNS_MAX: Final = 50_000
_SECONDS: Final = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class _Metrics(NamedTuple):
    times: "Histogram"
    lost: "Counter"
    files: "Counter"
    done: "Gauge"


@cache
def _metrics() -> _Metrics:
    from prometheus_client import Counter, Gauge, Histogram

    text = "rounds that lost against another commit, or met an error"
    return _Metrics(
        Histogram("weir_maintenance_seconds", "time of one round of maintenance", ["format"], buckets=_SECONDS),
        Counter("weir_maintenance_gave_way", text, ["format"]),
        Counter("weir_maintenance_files", "files by what maintenance did with them", ["format", "what"]),
        Gauge("weir_maintenance_done_time_seconds", "when a round last ended well, Unix seconds", ["format"]),
    )


def keep_newest(turns: OrderedDict[str, Any], table: str) -> None:
    """Count ``table`` as the one written last, and forget those that were not written for the longest time."""
    turns.move_to_end(table)
    while len(turns) > _TURNS_MAX:
        turns.popitem(last=False)


@contextmanager
def round_of(format: str) -> Iterator[None]:
    """Time one round, and note when it ended without an error."""
    started = time.perf_counter()
    try:
        yield
        _metrics().done.labels(format).set_to_current_time()
    finally:
        _metrics().times.labels(format).observe(time.perf_counter() - started)


def gave_way(format: str) -> None:
    _metrics().lost.labels(format).inc()


def note(format: str, *, joined: int = 0, removed: int = 0, expired: int = 0) -> None:
    """``joined``: files that were rewritten; ``removed``: files that no version names; ``expired``: snapshots."""
    for what, count in (("joined", joined), ("removed", removed), ("expired", expired)):
        if count:
            _metrics().files.labels(format, what).inc(count)

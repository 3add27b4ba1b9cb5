"""Families of schema changes: changefeeds follow them at once, or when all of them are over, and are compared."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

import pyarrow as pa
import structlog
from deltalake import DeltaTable
from pyiceberg.catalog.sql import SqlCatalog

from agent.sinks.common.keys.former_keys import FormerKeys
from agent.sinks.delta.alter.dropping import dropped_ts
from agent.sinks.delta.table.place import former_keys
from agent.sinks.iceberg.table.state import State

TIMEOUT_S: Final = 400.0
_POLL_S: Final = 0.5
#: codes of tables that are copied by themselves
_COPIED: Final = ("CameWithRows", "PartitionRows")


class Table(Protocol):
    """A table at the source."""

    @property
    def full_name(self) -> str: ...


T = TypeVar("T", bound=Table)


@contextmanager
def captures_log(directory: Path) -> Iterator[None]:
    """The log of captures in this process goes to a file that stays open as long as they run."""
    with (directory / "capture.log").open("a") as log:
        structlog.configure(logger_factory=structlog.PrintLoggerFactory(log))
        yield
        structlog.reset_defaults()


def follow(
    feeds: Sequence[Any],
    runs: Sequence[Callable[[], int]],
    end_ts: Callable[[], int],
    *,
    statements: int,
    is_late: bool,
    copies_s: float,
) -> None:
    """Run all families, each of which returns how many of its statements the server took, and wait until all is
    written, also copies of tables that came with rows. Late feeds are paused meanwhile."""
    for feed in feeds:
        feed.wait(timeout=TIMEOUT_S)
        if is_late:
            feed.pause()
    done = [run() for run in runs]
    assert sum(done) > 0.9 * statements
    for feed in feeds:
        if is_late:
            feed.resume()
        _catch_up(feed, end_ts, copies_s)


def _catch_up(feed: Any, end_ts: Callable[[], int], copies_s: float) -> None:
    feed.wait(ts=end_ts(), timeout=TIMEOUT_S)
    end = time.monotonic() + copies_s
    while (view := feed.query()).resyncs or view.joining or any(one.code in _COPIED for one in view.held):
        assert time.monotonic() < end, f"{feed.id}: {view.resyncs} {view.joining} {view.held}"
        time.sleep(_POLL_S)
    feed.wait(ts=end_ts(), timeout=TIMEOUT_S)


def differences(
    feed: Any,
    tables: Iterable[T],
    difference: Callable[[T, str], str],
    *,
    is_needed: Callable[[T], bool] = lambda _: True,
) -> list[str]:
    """Return what is wrong at the sink, a line each. ``difference``: of a table at the source and a location at the
    sink, empty if there is none. ``is_needed``: whether a table must be at the sink. Held tables are left out."""
    view = feed.query()
    held = {one.renamed_to or one.table for one in view.held}
    places = {one.table: one.location for one in sorted(view.tables, key=lambda one: one.held is None)}
    found, count = [], 0
    for table in tables:
        if table.full_name in held:
            continue
        count += 1
        if table.full_name in places:
            line = difference(table, places[table.full_name])
        else:
            line = "it is not at the sink" if is_needed(table) else ""
        found += [f"{feed.id}: {table.full_name}: {line}"] * bool(line)
    assert count > len(held), f"{feed.id}: most tables flow; held are {sorted(held)}"
    return found


def of_rows(wanted: Counter[Any], stored: Counter[Any]) -> str:
    """Return a line with some of the rows that only one side has; empty if both have the same."""
    missing, extra = list((wanted - stored).elements())[:3], list((stored - wanted).elements())[:3]
    return f"only at the source: {missing}, only at the sink: {extra}" if missing or extra else ""


@dataclass(frozen=True, slots=True)
class Stored:
    """A table at the sink, as its format's own reader has it. ``rows``: read when they are asked for."""

    columns: frozenset[str]
    is_dropped: bool
    former_keys: FormerKeys
    rows: Callable[[], list[dict[str, Any]]]

    @property
    def of_source(self) -> frozenset[str]:
        """The columns that the sink has not added."""
        return frozenset(name for name in self.columns if not name.startswith("_"))


def stored(lake: Path, location: str, format: str) -> Stored:
    """Open a table. ``lake``: the sink's directory; ``format``: delta or iceberg."""
    if format == "delta":
        delta = DeltaTable(str(lake / location))
        names = frozenset(item.name for item in delta.schema().fields)
        is_dropped = dropped_ts(delta) is not None
        return Stored(names, is_dropped, former_keys(delta), lambda: pa.table(delta.scan()).to_pylist())
    namespace, _, name = location.partition("/")
    table = SqlCatalog("weir", uri=f"sqlite:///{lake}/catalog.db").load_table((namespace, name))
    state = State.of(table)
    names = frozenset(table.schema().column_names)
    keys = FormerKeys.from_text(state.former_keys)
    return Stored(names, bool(state.dropped), keys, lambda: table.scan().to_arrow().to_pylist())

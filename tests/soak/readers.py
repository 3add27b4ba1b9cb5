"""Readers of a soak: each follows the changes of a table, and gets what the changelog table of the sink has.

They lose what they have not reported now and then, as a process does that is killed, and continue under their names.
"""

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import structlog

from agent.feeds import changes
from capture.api.connection import Connection, may_pass
from capture.errors import PositionGoneError, SubscriptionNotFoundError, TableNotFoundError
from capture.python.changes import Subscription, slice_of
from reactor.errors import WeirError
from reactor.ids import MAX_TS
from reactor.views import ChangefeedView

#: of rows that a copy or a repair adds to a changelog (docs/one-table-is-wrong.md); the log has none of them
_COPY_SEQ = 1 << 62
_PAUSE_S = 0.3
_PART_BYTES = 256 << 10
_SHOWN = 3

_log = structlog.get_logger()


@dataclass(slots=True)
class _Range:
    """What was read without a gap: all changes in ``(begin, reached]``."""

    begin: int
    reached: int
    rows: list[pa.Table] = field(default_factory=list)

    def forget_behind(self, ts: int) -> None:
        self.reached = ts
        self.rows = [rows.filter(pc.less_equal(rows["_commit_version"], ts)) for rows in self.rows]


class _Reader:
    """Follows one table by its id: it may get other names."""

    def __init__(self, connection: Connection, feed: str, table_id: int, over: threading.Event) -> None:
        self._connection = connection
        self._feed = feed
        self._name = f"soak-{table_id}"
        self._over = over
        self._subscription: Subscription | None = None
        self.ranges: list[_Range] = []

    def read_on(self, table: str, rng: random.Random) -> None:
        """Read the next changes, if there are any. ``table``: its name now."""
        try:
            if self._subscription is None or rng.random() < 0.03:
                self._open(table)
            self._read(rng)
        except PositionGoneError as error:
            _log.info("a reader of the soak begins again", feed=self._feed, table=table, error=str(error))
            self._begin_again(table)
        except (SubscriptionNotFoundError, TableNotFoundError):
            self._subscription = None
        except WeirError as error:
            if not may_pass(error):
                raise
            _log.info("a reader of the soak waits", feed=self._feed, table=table, error=str(error))

    def _open(self, table: str) -> None:
        opened = Subscription(self._connection, self._feed, table, name=self._name, from_ts="earliest", over=self._over)
        if self.ranges and opened.ts <= self.ranges[-1].reached:
            self.ranges[-1].forget_behind(opened.ts)
        else:
            self.ranges.append(_Range(opened.ts, opened.ts))
        self._subscription = opened

    def _read(self, rng: random.Random) -> None:
        assert self._subscription is not None
        last = self.ranges[-1]
        while True:
            part = self._subscription.part(last.reached, max_bytes=_PART_BYTES)
            if part.segments:
                last.rows += list(changes.read(slice_of(part)))
            last.reached = part.to_ts
            if part.to_ts >= part.newest_ts:
                break
        if rng.random() < 0.3:
            self._subscription.advance(part.to_ts)

    def _begin_again(self, table: str) -> None:
        """Close the position, which is not in the log any more."""
        self._connection.call(lambda client: client.close_subscription(self._feed, self._name))
        self._subscription = None


class Readers(threading.Thread):
    """The readers of one changefeed, one after the other."""

    def __init__(self, connection: Connection, view: Callable[[], ChangefeedView], feed: str, seed: int) -> None:
        super().__init__(daemon=True)
        self._connection = connection
        self._view = view
        self._feed = feed
        self._rng = random.Random(f"{seed} readers of {feed}")
        self._over = threading.Event()
        self._rounds = 0
        self._round = threading.Condition()
        self.error = ""
        self.readers: dict[int, _Reader] = {}
        self.compared = 0

    def run(self) -> None:
        while not self._over.is_set():
            try:
                self._read_all()
            except Exception as error:
                self.error = f"{self._feed}: a reader failed: {type(error).__name__}: {error}"
                _log.exception("a reader of the soak failed")
                return
            self._over.wait(_PAUSE_S)

    def _read_all(self) -> None:
        try:
            tables = self._view().tables
        except WeirError:  # captures start again
            return
        for table in tables:
            if self._over.is_set():
                return
            if table.held is not None:
                continue  # its name may be another table's at the source, or nobody's
            if table.table_id not in self.readers:
                self.readers[table.table_id] = _Reader(self._connection, self._feed, table.table_id, self._over)
            self.readers[table.table_id].read_on(table.table, self._rng)
        with self._round:
            self._rounds += 1
            self._round.notify_all()

    def stop(self) -> None:
        self._over.set()
        self.join()

    def catch_up(self, timeout_s: float) -> bool:
        """Wait until each reader has asked again."""
        with self._round:
            wanted = self._rounds + 2
            return self._round.wait_for(lambda: self._rounds >= wanted or bool(self.error), timeout_s)

    def difference(self, table_id: int, stored: Sequence[dict[str, Any]], ts: int) -> str:
        """Return in one line what a reader has and the changelog has not, or the reverse, up to ``ts``; empty if both
        are equal."""
        if self.error:
            return self.error
        reader = self.readers.get(table_id)
        if reader is None:
            return ""
        if reader.ranges and reader.ranges[-1].reached < ts and reader._subscription is not None:
            return f"a reader is at {reader.ranges[-1].reached}, not at {ts}"
        for one in reader.ranges:
            self.compared += sum(rows.num_rows for rows in one.rows)
            if line := _difference(one, stored, ts):
                return f"reader of ({one.begin}, {one.reached}]: {line}"
        return ""


def _difference(one: _Range, stored: Sequence[dict[str, Any]], ts: int) -> str:
    rows = [(number, row) for number, table in enumerate(one.rows) for row in table.to_pylist()]
    is_left_out = _left_out(stored)
    there = Counter(
        _place(row)
        for row in stored
        if one.begin < row["_commit_version"] <= min(one.reached, ts) and not is_left_out(row)
    )
    here = Counter(_place(row) for _, row in rows if row["_commit_version"] <= ts and not is_left_out(row))
    if here != there:
        return (
            f"{here.total()} changes, the changelog {there.total()}; only the reader has "
            f"{_first(here - there)}, only the changelog {_first(there - here)}"
        )
    return _other_values(one, stored, is_left_out)


def _first(places: Counter[tuple[int, int, str]]) -> list[tuple[int, int, str]]:
    return sorted(places.elements())[:_SHOWN]


def _place(row: dict[str, Any]) -> tuple[int, int, str]:
    return row["_commit_version"], row["_commit_seq"], row["_change_type"]


def _left_out(stored: Sequence[dict[str, Any]]) -> Callable[[dict[str, Any]], bool]:
    """Return whether a change is not to be compared: those that a copy has taken the place of are not in the changelog,
    which may begin with the copy, and the log does not have the copy's rows."""
    copies = sorted(
        {
            row["_commit_version"]
            for row in stored
            if row["_change_type"] == "truncate" and not 0 <= row["_commit_seq"] < _COPY_SEQ
        }
    )
    versions = sorted({row["_commit_version"] for row in stored})
    spans = [(0, versions[0] if versions else MAX_TS)]
    for copy in copies:
        before = [version for version in versions if version < copy]
        spans.append((before[-1] if before else 0, copy))
    return lambda row: any(low < row["_commit_version"] <= high for low, high in spans)


def _other_values(one: _Range, stored: Sequence[dict[str, Any]], is_left_out: Callable[[dict[str, Any]], bool]) -> str:
    """Compare the values of changes behind the last schema change: earlier ones may have other columns by now."""
    found = list(_last_ones(one.rows))
    names = found[0].schema.names if found else []
    rows = [row for table in found for row in table.to_pylist() if not is_left_out(row)]
    by_place: dict[tuple[int, int, str], list[dict[str, Any]]] = {}
    for row in stored:
        by_place.setdefault(_place(row), []).append(row)
    for row in rows:
        candidates = by_place.get(_place(row), [])
        if not candidates or not set(names) <= set(candidates[0]):
            continue
        if not any(all(_same(row[name], candidate[name]) for name in names) for candidate in candidates):
            return f"at {_place(row)} the reader has {row}, the changelog {candidates[:_SHOWN]}"
    return ""


def _last_ones(tables: Sequence[pa.Table]) -> Iterator[pa.Table]:
    for table in reversed(tables):
        if table.schema != tables[-1].schema:
            return
        yield table


def _same(one: Any, other: Any) -> bool:
    return one == other or (one is not None and other is not None and str(one) == str(other))

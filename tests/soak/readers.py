"""Readers of a soak: each follows the changes of a table, and gets what the changelog table of the sink has.

They lose what they have not reported now and then, as a process does that is killed, and continue under their names.
"""

import random
import threading
from collections.abc import Callable, Sequence
from typing import Any

import structlog

from agent.errors import DecodeError
from agent.feeds import changes
from capture.api.connection import Connection, may_pass
from capture.errors import PositionGoneError, SubscriptionNotFoundError, TableNotFoundError
from capture.python.changes import Subscription, slice_of
from reactor.errors import WeirError
from reactor.views import ChangefeedView
from tests.soak.read_range import ReadRange, difference
from tests.soak.spark_readers import SparkReader

_PAUSE_S = 0.3
_PART_BYTES = 256 << 10

_log = structlog.get_logger()


class Reader:
    """Follows one table by its id: it may get other names."""

    def __init__(self, connection: Connection, feed: str, table_id: int, over: threading.Event) -> None:
        self._connection = connection
        self._feed = feed
        self._table_id = table_id
        self._name = f"soak-{table_id}"
        self._over = over
        self._subscription: Subscription | None = None
        self.ranges: list[ReadRange] = []

    @property
    def follows(self) -> bool:
        return self._subscription is not None

    def read_on(self, table: str, rng: random.Random) -> None:
        """Read the next changes, if there are any. ``table``: its name now."""
        try:
            if self._subscription is None or rng.random() < 0.03:
                self._open(table)
            if self._subscription is not None:
                self._read(rng)
        except PositionGoneError as error:
            _log.info("a reader of the soak begins again", feed=self._feed, table=table, error=str(error))
            self._begin_again()
        except DecodeError as error:
            _log.info("a reader of the soak leaves changes out", feed=self._feed, table=table, error=str(error))
            self._begin_behind(table)
        except (SubscriptionNotFoundError, TableNotFoundError):
            self._subscription = None
        except WeirError as error:
            if not may_pass(error):
                raise
            _log.info("a reader of the soak waits", feed=self._feed, table=table, error=str(error))

    def _open(self, table: str) -> None:
        opened = Subscription(self._connection, self._feed, table, name=self._name, from_ts="earliest", over=self._over)
        if opened.part(opened.ts, opened.ts).table.table_id != self._table_id:  # two have exchanged their names
            self._begin_again()
            return
        if self.ranges and opened.ts <= self.ranges[-1].reached:
            self.ranges[-1].forget_behind(opened.ts)
        else:
            self.ranges.append(ReadRange(opened.ts, opened.ts))
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

    def _begin_behind(self, table: str) -> None:
        """Open a position behind changes that cannot be read, for which the sink holds the table."""
        self._begin_again()
        opened = Subscription(self._connection, self._feed, table, name=self._name, over=self._over)
        self.ranges.append(ReadRange(opened.ts, opened.ts))

    def _begin_again(self) -> None:
        """Close the position, which is not in the log any more."""
        self._connection.call(lambda client: client.close_subscription(self._feed, self._name))
        self._subscription = None


class Readers(threading.Thread):
    """The readers of one changefeed, one after the other."""

    def __init__(self, server: str, token: str, view: Callable[[], ChangefeedView], feed: str, seed: int) -> None:
        super().__init__(daemon=True)
        self._connection = Connection(server, token=token)
        self._token = token
        self._view = view
        self._feed = feed
        self._rng = random.Random(f"{seed} readers of {feed}")
        self._over = threading.Event()
        self._rounds = 0
        self._round = threading.Condition()
        self.error = ""
        self.readers: dict[int, Reader | SparkReader] = {}
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
                self.readers[table.table_id] = self._made(table.table_id)
            self.readers[table.table_id].read_on(table.table, self._rng)
        with self._round:
            self._rounds += 1
            self._round.notify_all()

    def _made(self, table_id: int) -> Reader | SparkReader:
        if self._rng.random() < 0.5:
            return SparkReader(self._connection, self._token, self._feed, table_id)
        return Reader(self._connection, self._feed, table_id, self._over)

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
        if reader.follows and reader.ranges and reader.ranges[-1].reached < ts:
            return f"{type(reader).__name__} is at {reader.ranges[-1].reached}, not at {ts}"
        for one in reader.ranges:
            self.compared += sum(rows.num_rows for rows in one.rows)
            if line := difference(one, stored, ts):
                return f"{type(reader).__name__} of ({one.begin}, {one.reached}]: {line}"
        return ""

"""Joining tables: tables that a changed filter selects, and the position at which the stream can begin to follow each.

A stream can follow a table from a position at which it knows the table's definition. The catalog has the current
definition, and the stream may be far behind. So the catalog is read twice: if the stream has passed the end of the
first reading, and the second one finds the same definition, the table had it at that position. Once is enough where the
stream is at the end of the log, since an idle server brings it no further. The table is copied later
(``TableRecord.to_copy``), at a position behind that one, so nothing from before it is needed.
"""

import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from agent.ports.source import StreamRestart
from agent.rows.schema import TableSchema
from reactor.ids import Ts

Name = tuple[str, str]

#: between two readings, as a table that does not come costs one each time
_PAUSE_S = 0.5


@dataclass(frozen=True, slots=True)
class Reading:
    """A reading of the catalog. ``end_ts``: not below any commit that had ended by then. ``ahead``: transactions below
    it may have begun before; ``horizon``: those below it have ended (0 where a log has all changes of a
    transaction)."""

    schemas: Mapping[Name, TableSchema]
    end_ts: Ts
    horizon: int = 0
    ahead: int = 0


@dataclass(slots=True)
class Joining:
    """The joining tables of one stream."""

    names: set[Name]
    has_joined: bool = False
    #: whether the last reading had tables that were given up
    has_given_up: bool = False
    pause_s: float = _PAUSE_S
    _read_at: float = float("-inf")
    _first: dict[Name, tuple[TableSchema, Reading]] = field(default_factory=dict)

    def restart(self) -> None:
        """:raises StreamRestart: tables have joined, and the stream does not know them."""
        if self.has_joined:
            raise StreamRestart

    def is_due(self) -> bool:
        """Return whether to read the catalog for tables that have not joined yet."""
        return bool(self.names) and time.monotonic() - self._read_at >= self.pause_s

    def leave_out(self, names: Iterable[Name]) -> None:
        """The stream has taken them in by itself: they are new."""
        self.names.difference_update(names)

    def give_up(self, there: Collection[Name]) -> tuple[Name, ...]:
        """Leave out and return the tables that the source has dropped or renamed since they were asked for; ``there``:
        the tables that can join. Whatever has such a name from here on is a new table."""
        gone = sorted(self.names.difference(there))
        self.names.difference_update(gone)
        self.has_given_up = bool(gone)
        return tuple(gone)

    def ready(self, reading: Reading, upto: Ts) -> dict[Name, TableSchema]:
        """Return the tables that join at ``upto``, a position that the stream has come to."""
        self._read_at = time.monotonic()
        ready = {}
        for name in self.names & reading.schemas.keys():
            schema = reading.schemas[name]
            if self._first.setdefault(name, (schema, reading))[0] != schema:
                self._first[name] = schema, reading
            _, first = self._first[name]
            if upto >= first.end_ts and reading.horizon >= first.ahead:
                ready[name] = schema
        self._first = {name: seen for name, seen in self._first.items() if name in reading.schemas}
        self.names.difference_update(ready)
        self.has_joined = self.has_joined or bool(ready)
        return ready

"""Change index: the schema changes of one changefeed by Ts, and what is asked of them at every turn.

Finished changes are kept as long as the log reaches back to them, so there may be thousands. Which are pending, which
are obsolete, and which is the newest of a table is kept up to date with each change, and takes no pass over all.
"""

from collections import Counter
from collections.abc import ItemsView, Iterator, Mapping, MutableMapping, ValuesView

from reactor.ids import Ts
from reactor.records.tables.schema_change import DdlRecord, TableChange

#: Ts and change by table
Newest = Mapping[int, tuple[Ts, TableChange]]


class ChangeIndex(MutableMapping[int, DdlRecord]):
    """``version``: another object after each change."""

    __slots__ = ("_counts", "_last", "_newest", "_obsolete", "_pending", "_records", "_tables", "_unjoined", "version")

    def __init__(self, records: Mapping[int, DdlRecord] | None = None) -> None:
        self.version = object()
        self._records: dict[int, DdlRecord] = {}
        self._pending: dict[int, DdlRecord] = {}
        self._unjoined: dict[int, DdlRecord] = {}
        #: the newest finished alteration of each table
        self._newest: dict[int, tuple[Ts, TableChange]] = {}
        #: table → Ts of its last change, finished or not; and back
        self._last: dict[int, int] = {}
        self._tables: dict[int, set[int]] = {}
        #: the number of records by table
        self._counts = Counter[int]()
        self._obsolete: tuple[Ts, ...] | None = ()
        self.update(records or {})

    @property
    def pending(self) -> tuple[DdlRecord, ...]:
        """The changes that some table still waits for, by Ts."""
        return tuple(self._pending[ts] for ts in sorted(self._pending))

    @property
    def unjoined(self) -> DdlRecord | None:
        """The first record of tables that are gone before they joined."""
        return self._unjoined[min(self._unjoined)] if self._unjoined else None

    @property
    def obsolete(self) -> tuple[Ts, ...]:
        """Finished changes that say nothing of any table: it has a newer one, which tells the sync unit its schema, or
        was dropped, and has no other."""
        if self._obsolete is None:
            self._obsolete = tuple(Ts(ts) for ts in sorted(self._records) if self._is_obsolete(ts))
        return self._obsolete

    def newest_done(self) -> Newest:
        """Return the newest finished alteration of each table, as it is now."""
        return dict(self._newest)

    def __getitem__(self, ts: int) -> DdlRecord:
        return self._records[ts]

    def __setitem__(self, ts: int, record: DdlRecord) -> None:
        before = self._records.get(ts)
        if before is not None and before.table_ids != record.table_ids:
            del self[ts]
            before = None
        self._records[ts] = record
        _note(self._pending, ts, record if record.pending_ids else None)
        _note(self._unjoined, ts, record if record.never_joined else None)
        if before is None:
            self._tables[ts] = set()
            self._counts.update(record.table_ids)
            for table in record.table_ids:
                self._note_last(table, ts)
        elif finished := {table for table, _ in _finished(before)}:
            self._find_newest(finished, ts)
        for table, change in _finished(record):
            if ts >= self._newest.get(table, (ts,))[0]:
                self._newest[table] = record.ts, change
        self._note_version()

    def __delitem__(self, ts: int) -> None:
        before = self._records.pop(ts)
        _note(self._pending, ts, None)
        _note(self._unjoined, ts, None)
        for table in before.table_ids:
            self._counts[table] -= 1
            if not self._counts[table]:
                del self._counts[table]
        for table in self._tables.pop(ts):
            del self._last[table]
            if table in self._counts:
                self._note_last(table, max(at for at, record in self._records.items() if table in record.table_ids))
        self._find_newest({table for table, _ in _finished(before)}, ts)
        self._note_version()

    def __iter__(self) -> Iterator[int]:
        return iter(self._records)

    def __len__(self) -> int:
        return len(self._records)

    def items(self) -> ItemsView[int, DdlRecord]:
        return self._records.items()

    def values(self) -> ValuesView[DdlRecord]:
        return self._records.values()

    def _note_version(self) -> None:
        self.version, self._obsolete = object(), None

    def _is_obsolete(self, ts: int) -> bool:
        last = self._tables[ts]
        is_alone = last <= self._records[ts].dropped_ids and all(self._counts[table] == 1 for table in last)
        return is_alone and ts not in self._pending

    def _note_last(self, table: int, ts: int) -> None:
        last = self._last.get(table)
        if last is None or last < ts:
            if last is not None:
                self._tables[last].discard(table)
            self._last[table] = ts
            self._tables[ts].add(table)

    def _find_newest(self, tables: set[int], ts: int) -> None:
        """Find the newest of these tables again if it was the one at ``ts``. It seldom is, where there are others:
        superseded changes go first."""
        for table in tables:
            if self._newest.get(table, (0,))[0] == ts:
                del self._newest[table]
                for record in self._records.values() if table in self._counts else ():
                    for id, change in _finished(record):
                        if id == table and record.ts >= self._newest.get(table, (0,))[0]:
                            self._newest[table] = record.ts, change


def _note(known: dict[int, DdlRecord], ts: int, record: DdlRecord | None) -> None:
    if record is None:
        known.pop(ts, None)
    else:
        known[ts] = record


def _finished(record: DdlRecord) -> Iterator[tuple[int, TableChange]]:
    """Yield the alterations that the sink has, by table."""
    pending = record.pending_ids
    return ((change.table_id, change) for change in record.alterations if change.table_id not in pending)

"""Sightings: what the stream shows of truncations and partitions, and how far it has come, for the prover beside it.

A table that is sent under its root's name is declared all the same, right behind its root, in front of its first row.
It is declared again where it was altered or emptied in between.
"""

import threading
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Final

from agent.rows.schema import TableSchema
from reactor.ids import Ts

#: the log is sent at once, unless the stream has to wait for memory
_WAIT_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class PartitionSighting:
    """Rows of ``leaf`` were sent as rows of ``root`` in the transaction ``xid``, 32 bits of it. ``times``: how often it
    was declared there; ``follows_truncate``: behind a TRUNCATE of the root."""

    root: int
    leaf: int
    xid: int
    times: int = 0
    follows_truncate: bool = False


@dataclass(frozen=True, slots=True)
class Declaration:
    """The transaction ``xid``, 32 bits of it, which ends at ``ts``, has rows of a replicated table, whose columns are
    those of ``schema``. ``is_again``: the stream has declared the table before, since it was opened."""

    ts: Ts
    xid: int
    schema: TableSchema
    is_again: bool


#: a declared table's columns: name, type and modifier
Shape = frozenset[tuple[str, int, int]]


class Sightings:
    """Written by the stream's thread, asked by another."""

    def __init__(self) -> None:
        #: by table, the transactions that emptied it, and where they end
        self._truncations: dict[int, dict[Ts, int]] = defaultdict(dict)
        self._partitions: dict[tuple[Ts, int, int], PartitionSighting] = {}
        #: every declaration of a partition that may be needed yet: where, of which, by whom, and with which columns
        self._declared: list[tuple[Ts, int, int, Shape]] = []
        #: declarations of replicated tables, and the tables that have ever had one
        self._tables: list[Declaration] = []
        self._ever_tables: set[int] = set()
        #: partitions that the stream has declared since it was opened
        self._ever: set[int] = set()
        #: tables that no rule wanted under the names that they had, and where the stream named them first
        self._passed_over: dict[int, Ts] = {}
        self._has_asked: set[int] = set()
        #: new tables, where the stream had their first rows, and the transactions that wrote these
        self._new: dict[int, tuple[Ts, int]] = {}
        self._reached = Ts(0)
        self._moved = threading.Condition()

    def note_truncate(self, table_ids: Collection[int], ts: Ts, xid: int) -> None:
        """The transaction ``xid``, which ends at ``ts``, has emptied the tables. What it did to their partitions before
        counts no more; and those that a TRUNCATE names are no partitions that are sent as their root."""
        with self._moved:
            for table_id in table_ids:
                self._truncations[table_id][ts] = xid
            for key in [key for key in self._partitions if key[0] == ts and not {*key[1:]}.isdisjoint(table_ids)]:
                del self._partitions[key]

    def note_partition(self, root: int, leaf: int, ts: Ts, xid: int, shape: Shape = frozenset()) -> None:
        """The transaction has a row of the partition, whose columns are ``shape``, behind this."""
        with self._moved:
            self._ever.add(leaf)
            self._declared.append((ts, leaf, xid, shape))
            found = self._partitions.get((ts, root, leaf)) or PartitionSighting(
                root, leaf, xid, follows_truncate=ts in self._truncations.get(root, {})
            )
            self._partitions[ts, root, leaf] = replace(found, times=found.times + 1)

    def note_declared(self, schema: TableSchema, ts: Ts, xid: int) -> None:
        """The transaction has rows of a replicated table behind this."""
        with self._moved:
            self._tables.append(Declaration(ts, xid, schema, schema.table_id in self._ever_tables))
            self._ever_tables.add(schema.table_id)

    def declared_tables(self, upto: Ts) -> set[int]:
        """Return the replicated tables that were declared at ``upto`` or before, and not forgotten."""
        with self._moved:
            return {one.schema.table_id for one in self._tables if one.ts <= upto}

    def declarations_of(self, table_ids: Collection[int], *, upto: Ts) -> list[Declaration]:
        """Return these tables' declarations at ``upto`` or before, as far as they are not forgotten."""
        with self._moved:
            return [one for one in self._tables if one.ts <= upto and one.schema.table_id in table_ids]

    def note_new(self, table_id: int, ts: Ts, xid: int) -> None:
        """The transaction has the first row of a new table that the stream has."""
        with self._moved:
            self._new[table_id] = ts, xid

    def first_writer(self, table_id: int) -> int | None:
        """Return which transaction wrote the first row of a new table that the stream has; None for any other."""
        with self._moved:
            return self._new[table_id][1] if table_id in self._new else None

    def note_passed_over(self, table_id: int, ts: Ts) -> None:
        """The stream has rows of the table, under a name that no rule wants."""
        with self._moved:
            if table_id not in self._has_asked:
                self._passed_over.setdefault(table_id, ts)

    def reach(self, ts: Ts) -> None:
        """The stream has come so far."""
        with self._moved:
            if ts > self._reached:
                self._reached = ts
                self._moved.notify_all()

    def has_partitions(self, upto: Ts) -> bool:
        with self._moved:
            return any(key[0] <= upto for key in self._partitions)

    def has_passed_over(self, upto: Ts) -> bool:
        with self._moved:
            return any(ts <= upto for ts in self._passed_over.values())

    def take_passed_over(self, upto: Ts) -> set[int]:
        """Return, once, the tables that were passed over at ``upto`` or before."""
        with self._moved:
            found = {table for table, ts in self._passed_over.items() if ts <= upto}
            self._passed_over = {table: ts for table, ts in self._passed_over.items() if table not in found}
            self._has_asked |= found
            return found

    def writers(self, leaf: int, *, upto: Ts) -> set[int]:
        """Return which transactions that end at ``upto`` or before had the partition's first rows, as far as they are
        not taken; waits until the stream has reached ``upto``."""
        with self._moved:
            self._moved.wait_for(lambda: self._reached >= upto - 1, _WAIT_S)
            return {one.xid for (ts, _, number), one in self._partitions.items() if number == leaf and ts <= upto}

    def declarations(self, leaf: int, *, upto: Ts) -> list[tuple[int, Shape]] | None:
        """Return the transactions (32 bits) that have declared the partition, and how, as far as they are not
        forgotten; waits until the stream has reached ``upto``, and returns None if it does not."""
        with self._moved:
            if not self._moved.wait_for(lambda: self._reached >= upto - 1, _WAIT_S):
                return None
            return [(xid, shape) for _, number, xid, shape in self._declared if number == leaf]

    def has_declared(self, leaf: int) -> bool:
        """Return whether the stream has had a row of the partition since it was opened."""
        with self._moved:
            return leaf in self._ever

    def take_partitions(self, upto: Ts) -> list[PartitionSighting]:
        """Return, once, those of transactions that end at ``upto`` or before."""
        with self._moved:
            return [self._partitions.pop(key) for key in sorted(self._partitions) if key[0] <= upto]

    def has_truncate(self, table_id: int, *, since: Ts, upto: Ts, xid: int | None = None) -> bool:
        """Return whether the table was emptied after ``since``, by the transaction ``xid`` if given; waits until the
        stream has reached ``upto``."""
        with self._moved:
            self._moved.wait_for(lambda: self._has(table_id, since, xid) or self._reached >= upto - 1, _WAIT_S)
            return self._has(table_id, since, xid)

    def _has(self, table_id: int, since: Ts, xid: int | None) -> bool:
        found = self._truncations.get(table_id, {})
        return any(ts > since and xid in (None, by) for ts, by in found.items())

    def forget(self, upto: Ts) -> None:
        """Drop what is at ``upto`` or before, which is no longer needed."""
        with self._moved:
            self._declared = [one for one in self._declared if one[0] > upto]
            self._tables = [one for one in self._tables if one.ts > upto]
            self._new = {table_id: seen for table_id, seen in self._new.items() if seen[0] > upto}
            for table_id, found in list(self._truncations.items()):
                self._truncations[table_id] = {ts: xid for ts, xid in found.items() if ts > upto}
                if not self._truncations[table_id]:
                    del self._truncations[table_id]

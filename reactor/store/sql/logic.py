"""Logic: the statements of each call, the same for every database.

Every writing transaction locks the row of ``weir_store`` first, so revisions have the order of these transactions. Then
it *settles*: leases that are over end, each with its keys in one revision, before anything else is looked at. So a
lease that is over is never extended, no key is put under it, and no compare sees its keys. A lease is over by the
database's clock, read after the lock was taken. If the clock is another one (``Database``), each lease gets its whole
time again: a lease may end later than it should, never earlier.

The first transaction under another clock also begins a new *lineage*: a row of ``weir_lineage``, never removed, with a
drawn id and the revision that the store had then. A standby is another server, with another clock. So if one takes over
that lacks revisions, its history says at which revision it left the one that a client has seen, however long ago that
was, and whatever has been compacted since.

A transaction that is killed between two statements has done nothing.
"""

import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from reactor.errors import CompactedError, LeaseExpiredError, RevisionsLostError, StoreError
from reactor.store import request
from reactor.store.port import Compare, Delete, Event, KeyValue, Operation, Put, Snapshot, Target, TxnResult
from reactor.store.sql.database import Query, Row, Statements, after

FORMAT = 1
#: revisions that watches can go back, at least; the journal is shortened in steps
KEPT_REVISIONS = 10_000
_COMPACT_EVERY = 1_000
#: revisions of the journal that are read at once
_PAGE = 500
#: added to deadlines, because the database's time is rounded down: a lease never ends before its session does
_ROUNDING_MS = 1

_HEAD = Query(
    "SELECT revision, compacted, mark, clock, {clock}, {now}, (SELECT min(deadline) FROM weir_lease),"
    " (SELECT id FROM weir_lineage ORDER BY number DESC LIMIT 1) FROM weir_store"
)
#: compares and operations of one transaction
Request = tuple[Sequence[Compare], Sequence[Operation]]
_KEY_COLUMNS = "name, value, created, modified, lease"


@dataclass(frozen=True, slots=True)
class Seen:
    """The last revision a client has seen of the store, the mark that was drawn for it, and the lineage then."""

    revision: int = 0
    mark: int = 0
    lineage: int = 0


@dataclass(frozen=True, slots=True)
class Head:
    """The store's row, with the time in ms. ``is_due``: leases have to be settled before an answer is right."""

    revision: int
    compacted: int
    mark: int
    now: int
    is_due: bool
    has_other_clock: bool
    lineage: int = 0

    @classmethod
    def of(cls, rows: Sequence[Row]) -> "Head":
        if not rows:
            raise StoreError("the store's row in weir_store is gone; restore the database")
        revision, compacted, mark, stored, clock, now, deadline, lineage = rows[0]
        has_other_clock = stored != clock
        is_due = deadline is not None and (has_other_clock or deadline <= now)
        return cls(revision, compacted, mark, now, is_due, has_other_clock, lineage)

    @property
    def seen(self) -> Seen:
        return Seen(self.revision, self.mark, self.lineage)


@dataclass(frozen=True, slots=True)
class Page:
    """Events of whole revisions, in order. ``next_revision``: where the next page begins; ``is_last``: nothing is
    there yet."""

    events: tuple[Event, ...]
    next_revision: int
    is_last: bool


def check_not_behind(head: Head, seen: Seen) -> None:
    """:raises RevisionsLostError: the store is not the one that was seen."""
    if head.revision < seen.revision or (head.revision == seen.revision and head.mark != seen.mark):
        raise _lost(seen, head.revision)


def check_same(statements: Statements, seen: Seen) -> None:
    """Compare with the lineages and the journal, on a connection to what may be another server.

    :raises RevisionsLostError: the store lacks revisions that were seen.
    """
    if not seen.revision:
        return
    heads, marks, lineages = statements.read(
        _HEAD,
        Query("SELECT mark FROM weir_change WHERE revision = ?", [seen.revision]),
        Query(
            "SELECT since FROM weir_lineage WHERE number >= (SELECT number FROM weir_lineage WHERE id = ?)"
            " ORDER BY number LIMIT 2",
            [seen.lineage],
        ),
    )
    head = Head.of(heads)
    check_not_behind(head, seen)
    has_left = not lineages or any(since < seen.revision for (since,) in lineages[1:])
    if has_left or (marks and marks[0][0] != seen.mark):
        raise _lost(seen, head.revision)


def head(statements: Statements) -> Head:
    return Head.of(statements.read(_HEAD)[0])


def get(statements: Statements, key: str) -> tuple[KeyValue | None, Head]:
    found, heads = statements.read(Query(f"SELECT {_KEY_COLUMNS} FROM weir_key WHERE name = ?", [key]), _HEAD)
    return (_key_value(found[0]) if found else None), Head.of(heads)


def get_prefix(statements: Statements, prefix: str) -> tuple[Snapshot, Head]:
    under = Query(
        f"SELECT {_KEY_COLUMNS} FROM weir_key WHERE name >= ? AND name < ? ORDER BY name", [prefix, after(prefix)]
    )
    found, heads = statements.read(under, _HEAD)
    known = Head.of(heads)
    return Snapshot(tuple(map(_key_value, found)), known.revision), known


def time_to_live(statements: Statements, lease: int) -> tuple[int | None, Head]:
    found, heads = statements.read(Query("SELECT deadline FROM weir_lease WHERE id = ?", [lease]), _HEAD)
    known = Head.of(heads)
    return (round((found[0][0] - known.now) / 1000) if found else None), known


def page(statements: Statements, prefix: str, start_revision: int) -> tuple[Page, Head]:
    """:raises CompactedError: the journal does not reach back that far."""
    end = start_revision + _PAGE
    changes = Query(
        "SELECT name, value, revision, created, lease FROM weir_change"
        " WHERE revision >= ? AND revision < ? AND name >= ? AND name < ? ORDER BY revision, place",
        [start_revision, end, prefix, after(prefix)],
    )
    found, heads = statements.read(changes, _HEAD)
    known = Head.of(heads)
    if start_revision < known.compacted:
        raise CompactedError(
            f"revision {start_revision} of {prefix} has been compacted away (the oldest is {known.compacted}); "
            "read the prefix again"
        )
    is_last = known.revision < end
    next_revision = max(start_revision, known.revision + 1) if is_last else end
    return Page(tuple(map(_event, found)), next_revision, is_last), known


class Change:
    """One writing transaction: one of the calls, then ``finish``. A call that raises has done nothing but settle."""

    def __init__(self, statements: Statements) -> None:
        self._statements = statements
        self._head = Head(0, 0, 0, 0, is_due=False, has_other_clock=False)
        self._revision = 0
        self._mark = 0

    def _begin(self, *queries: Query, seen: Seen) -> list[list[Row]]:
        """Settle, and return the rows of ``queries`` after it.

        :raises RevisionsLostError: the store is not the one that was seen.
        """
        heads, *found = self._statements.read(_HEAD, *queries)
        self._head = Head.of(heads)
        check_not_behind(self._head, seen)
        self._revision, self._mark = self._head.revision, self._head.mark
        if self._head.has_other_clock:
            self._statements.write("UPDATE weir_lease SET deadline = ttl_ms + ?", [[self._head.now + _ROUNDING_MS]])
            self._statements.write("UPDATE weir_store SET clock = {clock} WHERE id = ?", [[1]])
            lineage = secrets.randbits(62)
            self._statements.write(
                "INSERT INTO weir_lineage (number, id, since) SELECT max(number) + 1, ?, ? FROM weir_lineage",
                [[lineage, self._revision]],
            )
            self._head = replace(self._head, lineage=lineage)
        elif self._head.is_due:
            self._end_leases(Query("SELECT id FROM weir_lease WHERE deadline <= ?", [self._head.now]))
            found = self._statements.read(*queries)
        return found

    def finish(self) -> Head:
        """Write the revision, and shorten the journal now and then."""
        if self._revision > self._head.revision:
            self._statements.write(
                "UPDATE weir_store SET revision = ?, mark = ? WHERE id = ?", [[self._revision, self._mark, 1]]
            )
            if self._revision // _COMPACT_EVERY > self._head.revision // _COMPACT_EVERY:
                self._forget_before(self._revision - KEPT_REVISIONS)
            self._statements.announce(self._revision)
        return replace(self._head, revision=self._revision, mark=self._mark, is_due=False)

    def txn(self, compares: Sequence[Compare], operations: Sequence[Operation], seen: Seen) -> tuple[TxnResult, bool]:
        """Return the answer, and whether something changed.

        :raises LeaseExpiredError: an operation puts under a lease that is over.
        """
        (answer,) = self.txns([(compares, operations)], seen)
        if isinstance(answer, StoreError):
            raise answer
        return answer

    def txns(self, requests: Sequence[Request], seen: Seen) -> list[tuple[TxnResult, bool] | StoreError]:
        """Do each after the other; return what ``txn`` would return or raise.

        Of several, none compares ranges or puts under a lease, since what these depend on is read once, before all.
        """
        compares = [compare for each, _ in requests for compare in each]
        operations = [operation for _, each in requests for operation in each]
        names = {compare.key for compare in compares if not compare.last} | {each.key for each in operations}
        leases = {put.lease for put in operations if isinstance(put, Put) and put.lease}
        ranges = [compare for compare in compares if compare.last]
        assert len(requests) == 1 or not (leases or ranges), "it is done alone"
        living = [_where_in("SELECT id FROM weir_lease WHERE id", sorted(leases))] if leases else []
        found, *others = self._begin(
            _where_in("SELECT name, created, modified FROM weir_key WHERE name", sorted(names)),
            *(_range(compare) for compare in ranges),
            *living,
            seen=seen,
        )
        known = {name: (created, modified) for name, created, modified in found}
        if missing := leases - {row[0] for rows in others[len(ranges) :] for row in rows}:
            return [_over(min(missing))]
        within = zip(ranges, others[: len(ranges)], strict=True)
        if not all(_holds(compare, rows or [(0, 0)]) for compare, rows in within):
            return [(TxnResult(False, self._revision), False)]
        return [self._txn(*request, known) for request in requests]

    def _txn(
        self, compares: Sequence[Compare], operations: Sequence[Operation], known: dict[str, tuple[int, int]]
    ) -> tuple[TxnResult, bool]:
        """``known``: the creation and the last change of each key that is named and exists; brought up to date."""
        exact = (compare for compare in compares if not compare.last)
        if not all(_holds(compare, [known.get(compare.key, (0, 0))]) for compare in exact):
            return TxnResult(False, self._revision), False
        before = self._revision
        self._apply(operations, {each.key: known[each.key][0] for each in operations if each.key in known})
        if self._revision > before:
            for operation in operations:
                since = known.pop(operation.key, (self._revision, 0))[0]
                if isinstance(operation, Put):
                    known[operation.key] = since, self._revision
        return TxnResult(True, self._revision), self._revision > before

    def settle(self, seen: Seen) -> None:
        self._begin(seen=seen)

    def grant(self, ttl_s: int, seen: Seen) -> int:
        """Ids are drawn, not counted: a store that went back must not give a living session's lease to another."""
        self._begin(seen=seen)
        lease, ttl_ms = 1 + secrets.randbits(62), ttl_s * 1000
        self._statements.write(
            "INSERT INTO weir_lease (id, ttl_ms, deadline) VALUES (?, ?, ?)", [[lease, ttl_ms, self._deadline(ttl_ms)]]
        )
        return lease

    def revoke(self, lease: int, seen: Seen) -> None:
        self._begin(seen=seen)
        self._end_leases(Query("SELECT id FROM weir_lease WHERE id = ?", [lease]))

    def keep_alive(self, lease: int, seen: Seen) -> int:
        """:raises LeaseExpiredError: the lease is over."""
        (found,) = self._begin(Query("SELECT ttl_ms FROM weir_lease WHERE id = ?", [lease]), seen=seen)
        if not found:
            raise _over(lease)
        ttl_ms: int = found[0][0]
        self._statements.write("UPDATE weir_lease SET deadline = ? WHERE id = ?", [[self._deadline(ttl_ms), lease]])
        return ttl_ms // 1000

    def compact(self, revision: int, seen: Seen) -> None:
        self._begin(seen=seen)
        if revision <= self._head.compacted:
            raise CompactedError(f"revision {revision} is compacted already; the oldest is {self._head.compacted}")
        if revision > self._revision:
            raise StoreError(f"cannot compact revision {revision}: the store is at {self._revision}")
        self._forget_before(revision)

    def pass_revision(self, revision: int, seen: Seen) -> None:
        """The journal has nothing of what is passed, so watches that wait for it read their prefix again."""
        self._begin(seen=seen)
        if revision > self._revision:
            self._revision, self._mark = revision, secrets.randbits(62)
            self._forget_before(revision)

    def _apply(self, operations: Iterable[Operation], created: dict[str, int]) -> None:
        """Write all operations in one revision, which is used only if something changes."""
        revision = self._revision + 1
        updates, inserts, deletes, changes = [], [], [], list[tuple[str, bytes | None, int, int]]()
        for operation in operations:
            match operation:
                case Put(key, value, lease):
                    since = created.get(key, revision)
                    if key in created:
                        updates.append((value, revision, lease, key))
                    else:
                        inserts.append((key, value, since, revision, lease))
                    changes.append((key, value, since, lease))
                case Delete(key) if key in created:
                    deletes.append((key,))
                    changes.append((key, None, 0, 0))
        if not changes:
            return
        write = self._statements.write
        write("DELETE FROM weir_key WHERE name = ?", deletes)
        write("UPDATE weir_key SET value = ?, modified = ?, lease = ? WHERE name = ?", updates)
        write(f"INSERT INTO weir_key ({_KEY_COLUMNS}) VALUES (?, ?, ?, ?, ?)", inserts)
        self._revision, self._mark = revision, secrets.randbits(62)
        write(
            "INSERT INTO weir_change (revision, place, mark, name, value, created, lease) VALUES (?, ?, ?, ?, ?, ?, ?)",
            [(revision, place, self._mark, *change) for place, change in enumerate(changes)],
        )

    def _end_leases(self, leases: Query) -> None:
        """End the leases that the query finds, each with its keys in one revision."""
        ids, keys = self._statements.read(
            leases,
            Query(
                f"SELECT lease, name FROM weir_key WHERE lease <> 0 AND lease IN ({leases.sql}) ORDER BY lease, name",
                leases.parameters,
            ),
        )
        for _, rows in groupby(keys, key=lambda row: row[0]):
            names = [row[1] for row in rows]
            self._apply(map(Delete, names), dict.fromkeys(names, 0))
        self._statements.write("DELETE FROM weir_lease WHERE id = ?", ids)

    def _deadline(self, ttl_ms: int) -> int:
        return self._head.now + ttl_ms + _ROUNDING_MS

    def _forget_before(self, revision: int) -> None:
        if revision > self._head.compacted:
            self._statements.write("DELETE FROM weir_change WHERE revision < ?", [[revision]])
            self._statements.write("UPDATE weir_store SET compacted = ? WHERE id = ?", [[revision, 1]])
            self._head = replace(self._head, compacted=revision)


def check_request(compares: Sequence[Compare], operations: Sequence[Operation]) -> None:
    """:raises StoreError: a transaction that no store accepts."""
    request.check(compares, operations)
    for name in (*(compare.key for compare in compares), *(operation.key for operation in operations)):
        if "\0" in name:
            raise StoreError(f"the key {name!r} has a zero character, which not every database stores; leave it out")


def _where_in(sql: str, values: Sequence[object]) -> Query:
    return Query(f"{sql} IN ({', '.join('?' * len(values)) or 'NULL'})", values)


def _range(compare: Compare) -> Query:
    return Query("SELECT created, modified FROM weir_key WHERE name >= ? AND name <= ?", [compare.key, compare.last])


def _holds(compare: Compare, rows: Sequence[Row]) -> bool:
    """``rows``: the creation and the last change of every key it concerns."""
    place = 1 if compare.target is Target.MOD_REVISION else 0
    return all(row[place] == compare.revision for row in rows)


def _key_value(row: Row) -> KeyValue:
    name, value, created, modified, lease = row
    return KeyValue(name, bytes(value), created, modified, lease)


def _event(row: Row) -> Event:
    name, value, revision, created, lease = row
    return Event(name, None if value is None else bytes(value), revision, created, lease)


def _over(lease: int) -> LeaseExpiredError:
    return LeaseExpiredError(f"lease {lease:x} is over; start a new session")


def _lost(seen: Seen, revision: int) -> RevisionsLostError:
    cause = "a standby took over without it, or a backup was restored"
    return RevisionsLostError.of(revision, seen.revision, cause)

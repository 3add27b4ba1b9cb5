"""Pending schema changes: in parts that the sink can be asked for, indexed once while only spans move.

A migration may change thousands of tables at once, and all of them wait for their turn: the cost of a round must not
grow with the square of their number.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from owner.tables.sink_names import SinkNames, independent
from reactor.ids import Ts
from reactor.records.tables.held import HeldTable, HoldOrigin, HoldStage, is_parked
from reactor.records.tables.schema_change import DdlRecord, SchemaChangeKind, TableChange

if TYPE_CHECKING:
    from owner.progress.facts import Facts


#: a part of a record: its Ts and tables
Part = tuple[Ts, frozenset[int]]


class PendingChanges:
    """The schema changes of ``facts``, valid until there is more news than progress. ``divided``: records that are
    asked for in parts as small as possible. ``before``: earlier ones of the same changefeed."""

    def __init__(self, facts: "Facts", divided: Collection[Ts], *, before: "PendingChanges | None" = None) -> None:
        self.divided = frozenset(divided)
        self._version = facts.version
        self._facts = facts
        self._read = {record.ts: _read(record, before) for record in facts.pending_ddl}
        suspects = facts.tried_after_end.union(facts.suspects.tables if facts.suspects else ())
        special = suspects.union(facts.held)
        self._parts: list[tuple[_Read, _Parts, bool]] = []
        for read in self._read.values():
            is_plain = read.record.ts not in divided and read.pending.isdisjoint(special)
            parts = read.whole if is_plain else tuple(_parts(read, facts, suspects, divided))
            self._parts.append((read, parts, is_plain))

    def holds_for(self, facts: "Facts", divided: Collection[Ts]) -> bool:
        """Return whether these are the changes of ``facts`` too."""
        return self._version is facts.version and self.divided == divided

    @cached_property
    def parts(self) -> Mapping[Part, DdlRecord]:
        """The parts of all records."""
        return {name: part for _, parts, _ in self._parts for name, part in parts}

    @cached_property
    def firsts(self) -> Mapping[Part, DdlRecord]:
        """The parts that no other pending change of their tables, or of a table that still has one of their names,
        precedes, in order."""
        facts, names = self._facts, SinkNames(self._facts)
        firsts, waiting, coming = dict[Part, DdlRecord](), set[int](), set[int]()
        for read, parts, is_plain in self._parts:
            over = [] if is_plain else [change for _, part in parts if is_over(part, facts) for change in part.changes]
            names.leave(over)
            for name, part in parts:
                is_first = name[1].isdisjoint(coming if over and is_over(part, facts) else waiting)
                if is_first and not names.is_awaited(part.changes):
                    firsts[name] = part
            for _, part in parts:
                if is_plain or not _is_tried_part(part, facts):
                    names.leave(part.changes)
            waiting |= read.pending
            coming |= {change.table_id for change in over if change.table is not None}
        return firsts

    @cached_property
    def moot(self) -> Mapping[Part, DdlRecord]:
        """Those of ``firsts`` of whose tables the sink has none, and was asked to create none."""
        there, created = self._facts.table_ids, {table for read, _, _ in self._parts for table in read.created}
        firsts = self.firsts.items()
        return {name: part for name, part in firsts if name[1].isdisjoint(there) and name[1].isdisjoint(created)}

    @cached_property
    def holds(self) -> Sequence[tuple[DdlRecord, Sequence[TableChange]]]:
        """The first pending changes of tables that the source cannot follow past them, and that are not held yet."""
        found, waiting = [], set[int]()
        for read, _, _ in self._parts:
            if read.has_holds:
                pending, held = read.pending - waiting, self._facts.held
                first = [change for change in read.record.holds if change.table_id in pending]
                if here := [change for change in first if not is_parked(held.get(change.table_id))]:
                    found.append((read.record, here))
            waiting |= read.pending
        return found


_Parts = tuple[tuple[Part, DdlRecord], ...]


@dataclass(frozen=True, slots=True)
class _Read:
    """A record, and what follows from it alone. ``wanted``: what the sink is asked for; ``whole``: that as one part."""

    record: DdlRecord
    pending: frozenset[int]
    wanted: tuple[TableChange, ...]
    created: frozenset[int]
    has_holds: bool
    whole: _Parts


def _read(record: DdlRecord, before: PendingChanges | None) -> _Read:
    if before is not None and (known := before._read.get(record.ts)) is not None and known.record is record:
        return known
    pending = record.pending_ids
    wanted = tuple(change for change in record.alterations if change.table_id in pending)
    created = frozenset(change.table_id for change in record.alterations if _creates(change))
    return _Read(record, pending, wanted, created, bool(record.holds), _part(record, wanted))


def _part(record: DdlRecord, changes: tuple[TableChange, ...]) -> _Parts:
    """Return the part with these changes, if there are any."""
    if not changes:
        return ()
    part = record if len(changes) == len(record.changes) else record.with_(changes=changes)
    return (((record.ts, part.table_ids), part),)


def is_over(part: DdlRecord, facts: "Facts") -> bool:
    """Return whether the part makes the past of all its tables irrelevant."""
    return all(_starts_over(change, facts) for change in part.changes)


def _parts(
    read: _Read, facts: "Facts", suspects: Collection[int], divided: Collection[Ts]
) -> Iterator[tuple[Part, DdlRecord]]:
    """Yield the parts of a pending record that can be requested: for tables that flow, are retried, or start over; of a
    record in ``divided`` as small as possible."""
    held, wanted = facts.held, read.wanted
    alone = ((change,) for change in wanted if change.table_id in suspects and change.table_id not in facts.parked)
    others = [change for change in wanted if change.table_id not in suspects]
    flowing = tuple(change for change in others if change.table_id not in held)
    tried = tuple(change for change in others if _is_tried(held.get(change.table_id)))
    over = ((change,) for change in wanted if _starts_over(change, facts))
    together = [flowing, tried]
    if read.record.ts in divided:
        together = [group for changes in together for group in independent(changes, facts)]
    for changes in (*together, *alone, *over):
        yield from _part(read.record, changes)


def _creates(change: TableChange) -> bool:
    return change.kind is SchemaChangeKind.CREATE


def _starts_over(change: TableChange, facts: "Facts") -> bool:
    """Return whether the change makes a held table's past irrelevant: it drops the table, or creates it again after the
    source could not follow one that the sink never had."""
    held = facts.held.get(change.table_id)
    if held is None or held.stage is HoldStage.TRIED:
        return False
    is_new = _creates(change) and change.table_id not in facts.table_ids
    return change.table is None or (is_new and held.origin is HoldOrigin.SOURCE)


def _is_tried(held: HeldTable | None) -> bool:
    return held is not None and held.stage is HoldStage.TRIED


def _is_tried_part(part: DdlRecord, facts: "Facts") -> bool:
    """Return whether the part may take long, so that nothing should wait for it."""
    return any(_is_tried(facts.held.get(table)) for table in part.table_ids)

"""Pending schema changes: in parts that the sink can be asked for, indexed once while only spans move.

A migration may change thousands of tables at once, and all of them wait for their turn: the cost of a round must not
grow with the square of their number.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from owner.tables.sink_names import SinkNames, independent
from reactor.ids import Ts
from reactor.records.tables.held import HeldTable, HoldOrigin, HoldStage
from reactor.records.tables.schema_change import DdlRecord, SchemaChangeKind, TableChange

if TYPE_CHECKING:
    from owner.progress.facts import Facts


#: a part of a record: its Ts and tables
Part = tuple[Ts, frozenset[int]]


class PendingChanges:
    """The schema changes of ``facts``, valid until there is more news than progress. ``divided``: records that are
    asked for in parts as small as possible."""

    def __init__(self, facts: "Facts", divided: Collection[Ts]) -> None:
        self.divided = frozenset(divided)
        self._version = facts.version
        self._facts = facts
        self._records = [(ts, record, record.pending_ids) for ts, record in sorted(facts.ddl.items())]
        self._parts = [(ids, tuple(_parts(record, ids, facts, divided))) for _, record, ids in self._records if ids]

    def holds_for(self, facts: "Facts", divided: Collection[Ts]) -> bool:
        """Return whether these are the changes of ``facts`` too."""
        return self._version is facts.version and self.divided == divided

    @cached_property
    def parts(self) -> Mapping[Part, DdlRecord]:
        """The parts of all records."""
        return {(part.ts, part.table_ids): part for _, parts in self._parts for part in parts}

    @cached_property
    def firsts(self) -> Mapping[Part, DdlRecord]:
        """The parts that no other pending change of their tables, or of a table that still has one of their names,
        precedes, in order."""
        facts, names = self._facts, SinkNames(self._facts)
        firsts, waiting, coming = dict[Part, DdlRecord](), set[int](), set[int]()
        for ids, parts in self._parts:
            over = [change for part in parts if is_over(part, facts) for change in part.changes]
            names.leave(over)
            for part in parts:
                tables = part.table_ids
                is_first = tables.isdisjoint(coming if over and is_over(part, facts) else waiting)
                if is_first and not names.is_awaited(part.changes):
                    firsts[part.ts, tables] = part
            names.leave(change for part in parts if not _is_tried_part(part, facts) for change in part.changes)
            waiting |= ids
            coming |= {change.table_id for change in over if change.table is not None}
        return firsts

    @cached_property
    def holds(self) -> Sequence[tuple[DdlRecord, Sequence[TableChange]]]:
        """The first pending changes of tables that the source cannot follow past them, and that are not held yet."""
        found, waiting = [], set[int]()
        for _, record, ids in self._records:
            first = [change for change in record.holds if change.table_id in ids and change.table_id not in waiting]
            if here := [change for change in first if not _is_parked(self._facts.held.get(change.table_id))]:
                found.append((record, here))
            waiting |= ids
        return found

    @cached_property
    def superseded(self) -> Sequence[Ts]:
        """Finished records, each of whose tables has a newer one: a table's newest tells the sync unit its schema."""
        newest: dict[int, Ts] = {}
        for ts, record, _ in self._records:
            newest.update(dict.fromkeys(record.table_ids, Ts(ts)))
        kept = set(newest.values())
        return [Ts(ts) for ts, _, ids in self._records if not ids and ts not in kept]

    def may_be_at_sink(self, part: DdlRecord) -> bool:
        """Return whether the sink has one of its tables, or was asked to create it."""
        return not part.table_ids.isdisjoint(self._facts.table_ids) or not part.table_ids.isdisjoint(self._created)

    def is_of_none(self, part: DdlRecord) -> bool:
        """Return whether it is only about tables that have left the changefeed."""
        is_new = any(change.kind is SchemaChangeKind.CREATE for change in part.changes)
        return not is_new and not self.may_be_at_sink(part)

    @cached_property
    def _created(self) -> frozenset[int]:
        changes = (change for _, record, ids in self._records if ids for change in record.alterations)
        return frozenset(change.table_id for change in changes if change.kind is SchemaChangeKind.CREATE)


def is_over(part: DdlRecord, facts: "Facts") -> bool:
    """Return whether the part makes the past of all its tables irrelevant."""
    return all(_starts_over(change, facts) for change in part.changes)


def _is_parked(held: HeldTable | None) -> bool:
    """Return whether the table is held, and not being retried."""
    return held is not None and held.stage is not HoldStage.TRIED


def _parts(record: DdlRecord, pending: Collection[int], facts: "Facts", divided: Collection[Ts]) -> Iterator[DdlRecord]:
    """Yield the parts of a pending record that can be requested: for tables that flow, are retried, or start over; of a
    record in ``divided`` as small as possible."""
    held = facts.held
    wanted = [change for change in record.alterations if change.table_id in pending]
    suspects = {*(facts.suspects.tables if facts.suspects else ())} | facts.tried_after_end
    alone = ((change,) for change in wanted if change.table_id in suspects - facts.parked)
    others = [change for change in wanted if change.table_id not in suspects]
    flowing = tuple(change for change in others if change.table_id not in held)
    tried = tuple(change for change in others if _is_tried(held.get(change.table_id)))
    over = ((change,) for change in wanted if _starts_over(change, facts))
    together = [flowing, tried]
    if record.ts in divided:
        together = [group for changes in together for group in independent(changes, facts)]
    for changes in (*together, *alone, *over):
        if changes:
            yield record if len(changes) == len(record.changes) else record.with_(changes=changes)


def _starts_over(change: TableChange, facts: "Facts") -> bool:
    """Return whether the change makes a held table's past irrelevant: it drops the table, or creates it again after the
    source could not follow one that the sink never had."""
    held = facts.held.get(change.table_id)
    if held is None or held.stage is HoldStage.TRIED:
        return False
    is_new = change.kind is SchemaChangeKind.CREATE and change.table_id not in facts.table_ids
    return change.table is None or (is_new and held.origin is HoldOrigin.SOURCE)


def _is_tried(held: HeldTable | None) -> bool:
    return held is not None and held.stage is HoldStage.TRIED


def _is_tried_part(part: DdlRecord, facts: "Facts") -> bool:
    """Return whether the part may take long, so that nothing should wait for it."""
    return any(_is_tried(facts.held.get(table)) for table in part.table_ids)

"""Schema changes of one changefeed: applies each to the sink while all spans of its tables are right before it.

    found ──all spans of its tables at ``barrier_ts``──► asked ──the sink has applied it──► done, in etcd
                                                          ▲  │
                                                          └──┘ a transient error: asked again after 5 to 30 s

The record is in etcd as soon as the log has passed the change (``agent.log.head``), so no capture can be past it, and
other tables continue. *Done* is one transaction with the tables' new records, their names, their keys and whether they
exist: the next flush uses the new record. The sink records the change's Ts in the same step as the change, so it
recognises a change that it has applied. So asking is idempotent, for a new owner and for one that was replaced. Before
the sink is asked to move tables, the record is marked as begun: no span can open them meanwhile (``sink_names``).

Changes of one table are made one after the other; of several tables at once, up to ``_AT_ONCE``. What the sink refuses
of several tables is asked for again in parts, table by table (``owner.tables.sink_names.independent``); what it refuses
then holds its tables (``owner.feed.holds.held``), and a record that holds a table from the source on (``HOLD``) does so
as soon as the table is there. A record of held tables and others is done in parts: first for the others; each held
table's part follows when it is tried again. ``DdlRecord.left`` says for which tables a record is not done. A held table
that the source drops is dropped at the sink at once: what it lacks nobody will read. One that the sink never had is
forgotten, and created as if it had never been there. A table whose location a held one still has gets another one
(``owner.tables.sink_names``), which is in etcd before the sink is asked.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from owner.progress.units import SOURCE
from owner.progress.watermark import SpanPosition, arrived
from owner.questions import ApplySchema
from owner.tables import moves
from owner.tables.refusal import Refusal
from owner.tables.sink_names import SinkNames, begun, independent, is_begun, located, names_of, where_they_lie
from reactor import keys, patches
from reactor.effects import Commit, Effect, Log
from reactor.errors import Scope
from reactor.ids import Ts
from reactor.questions import UNDER_WAY, Answered, Ask
from reactor.records.changefeed import RunningError, UnitRecord
from reactor.records.tables.held import HeldTable, HoldOrigin, HoldStage
from reactor.records.tables.resync import needed_ts
from reactor.records.tables.schema_change import DdlRecord, SchemaChangeKind, TableChange

if TYPE_CHECKING:
    from owner.progress.facts import Facts

_AT_ONCE = 4
_RETRY_S, _RETRY_MAX_S = 5.0, 30.0
#: transient refusals after which the table is held
_REFUSALS_MAX = 3
#: records removed in one transaction
_DROPPED_AT_ONCE = 50
#: tables that the source cannot follow, held in one round
_HELD_AT_ONCE = 200
#: the code of a table that the source cannot follow
NOT_FOLLOWED = "NotFollowed"

#: a part of a record: its Ts and tables
_Part = tuple[Ts, frozenset[int]]


@dataclass(slots=True)
class _Work:
    """One change that the sink was asked to apply. ``retry_at``: when to ask again, None while there is no answer."""

    failures: int = 0
    retry_at: float | None = None
    is_applied: bool = False


class SchemaChanges:
    """The schema changes of one run. ``trouble``: Ts of a change → why the sink has not applied it yet."""

    def __init__(self, *, cluster: str, wall_offset_s: float) -> None:
        self.trouble: dict[Ts, str] = {}
        self._cluster = cluster
        self._wall_offset_s = wall_offset_s
        self._works: dict[_Part, _Work] = {}
        #: records that the sink has refused as a whole
        self._divided: set[Ts] = set()
        self._answers: list[tuple[ApplySchema, RunningError | None]] = []
        self._warnings: list[RunningError] = []
        self._refusals: list[Refusal] = []

    def handle_answer(self, answer: Answered[Any]) -> None:
        """Process the sink's answer; one to a question of an earlier run is valid too."""
        if isinstance(answer.question, ApplySchema):
            self._answers.append((answer.question, answer.error))

    def take_warnings(self) -> list[RunningError]:
        """Return the failures since the last call that are retried."""
        warnings, self._warnings = self._warnings, []
        return warnings

    @property
    def has_refusals(self) -> bool:
        return bool(self._refusals)

    def take_refusals(self) -> list[Refusal]:
        """Return tables that have to be held."""
        refusals, self._refusals = self._refusals, []
        return refusals

    def tick(self, facts: "Facts", spans: Collection[SpanPosition], now: float) -> list[Effect]:
        """Run one round."""
        if facts.tables is None:
            return []
        if noted := moves.given_up(facts, cluster=self._cluster):
            return noted
        pending = [record for _, record in sorted(facts.ddl.items()) if record.pending_ids]
        parts = [part for record in pending for part in _parts(record, facts, self._divided)]
        self._forget({_name_of(part) for part in parts})
        self._take_answers(facts, {_name_of(part): part for part in parts}, now)
        effects: list[Effect] = []
        changed: set[Ts] = set()  # a record is changed once in a round, whichever of its parts is done
        for part in _firsts(pending, facts, self._divided):
            if part.ts not in changed:
                steps = self._continue(facts, part, spans, now)
                changed |= {part.ts for step in steps if isinstance(step, Commit)}
                effects += steps
        self._hold_not_followed(facts, pending, spans, now)
        return effects or self._drop_old(facts)

    def next_at(self) -> float:
        """Return when the next step is due by time."""
        if not self._works:
            return float("inf")
        return min((work.retry_at for work in self._works.values() if work.retry_at is not None), default=float("inf"))

    def validate(self) -> None:
        """Assert the invariants between two ticks."""
        under_way = [name for name, work in self._works.items() if work.retry_at is None and not work.is_applied]
        assert len(under_way) <= _AT_ONCE, f"the sink is asked for {len(under_way)} schema changes at once"

    def _continue(self, facts: "Facts", part: DdlRecord, spans: Collection[SpanPosition], now: float) -> list[Effect]:
        work, part = self._works.get(_name_of(part)), where_they_lie(part, facts)
        if work is not None and work.is_applied:
            return [self._done(facts, part), Log("info", "the sink has a schema change", _fields(facts, part))]
        if work is not None and (work.retry_at is None or now < work.retry_at):
            return []
        under_way = sum(work.retry_at is None for work in self._works.values())
        if _is_over(part, facts) and part.changes[0].table is None and not _may_be_there(facts, part):
            return [self._done(facts, part)]  # the sink never had it
        if _is_of_none(facts, part):
            key = keys.DdlKey(self._cluster, facts.info.namespace, facts.info.id, part.ts)
            return [Commit(patches.group([moves.without(key, facts.ddl[part.ts], part.table_ids)]))]
        if under_way >= _AT_ONCE or not _is_there(facts, part, spans):
            return []
        if (record := located(part, facts) or begun(part, facts)) is not None:
            place = (self._cluster, facts.info.namespace, facts.info.id)
            change = patches.replace_record(keys.DdlKey(*place, part.ts), facts.ddl[part.ts], record)
            return [Commit(patches.group([change]))]
        if all(_is_of_copy(change) for change in part.changes):
            return [self._done(facts, part)]  # their copies make them
        self._works[_name_of(part)] = _Work(failures=work.failures if work else 0)
        there = tuple(table for table in facts.tables or () if table.table_id in part.table_ids)
        return [Ask(facts.info.id, facts.info, ApplySchema(part, there))]

    def _take_answers(self, facts: "Facts", parts: Mapping[_Part, DdlRecord], now: float) -> None:
        answers, self._answers = self._answers, []
        for question, failure in answers:
            name = ts, tables = question.subject
            work = self._works.get(name)
            if work is None or work.is_applied:
                continue
            if failure is None:
                work.is_applied, work.retry_at = True, None
                self.trouble.pop(ts, None)
                continue
            if failure.code == UNDER_WAY:
                work.retry_at, self.trouble[ts] = now + _RETRY_MAX_S, failure.message
                continue
            work.failures += 1
            work.retry_at = now + min(_RETRY_S * 2 ** (work.failures - 1), _RETRY_MAX_S)
            error = failure.with_(time=now + self._wall_offset_s)
            self.trouble[ts] = error.message
            is_tried_again = any(table in facts.held for table in tables)
            may_pass = error.retryable and (work.failures < _REFUSALS_MAX or error.scope is Scope.CAPTURE)
            if may_pass and not is_tried_again:
                self._warnings.append(error)
            elif error.table_id not in tables and len(independent(parts[name].changes, facts)) > 1:
                self._divided.add(ts)
            else:
                self._refusals += _refused(facts, parts[name], error)  # the part disappears when its tables are held

    def _hold_not_followed(
        self, facts: "Facts", pending: Iterable[DdlRecord], spans: Collection[SpanPosition], now: float
    ) -> None:
        """Hold tables that the source cannot follow any further, once everything before is in the sink."""
        waiting = set[int]()
        for record in pending:
            ids = record.pending_ids
            holds = [
                change
                for change in record.holds
                if change.table_id in ids
                and change.table_id not in waiting
                and not _is_parked(facts.held.get(change.table_id))
            ]
            there = (
                arrived({change.table_id for change in holds}, facts.table_ids, record.barrier_ts, spans)
                if holds
                else set()
            )
            for change in [change for change in holds if change.table_id in there][:_HELD_AT_ONCE]:
                error = RunningError(
                    code=change.code or NOT_FOLLOWED,
                    message=change.reason,
                    time=now + self._wall_offset_s,
                    retryable=False,
                    table_id=change.table_id,
                    scope=Scope.TABLE,
                )
                name = names_of(facts, record.with_(changes=(change,)))
                refusal = Refusal(change.table_id, name, record.barrier_ts, HoldOrigin.SOURCE, error)
                self._refusals.append(refusal)
            waiting |= ids

    def _forget(self, pending: Collection[_Part]) -> None:
        """Forget parts that are done, held, or were withdrawn by an operator."""
        for part in [part for part in self._works if part not in pending]:
            del self._works[part]
            self.trouble.pop(part[0], None)
        self._divided &= {ts for ts, _ in pending}

    def _done(self, facts: "Facts", part: DdlRecord) -> Commit:
        """Commit the record together with the tables' new records."""
        info, record = facts.info, facts.ddl[part.ts]
        place = (self._cluster, info.namespace, info.id)
        over = part.table_ids if _is_over(part, facts) else frozenset[int]()
        gone = sorted({change.table_id for change in part.changes if change.table is None} | over)
        partitionings = [
            patches.delete(keys.PartitioningKey(*place, table)) for table in gone if table in facts.partitionings
        ]
        holds = [patches.delete(keys.HeldKey(*place, table)) for table in gone if table in facts.held]
        before = [
            record,
            *(known for known in facts.ddl.values() if known.ts < part.ts and known.pending_ids & {*gone}),
        ]
        return Commit(
            patches.group(
                [
                    *(
                        patches.replace_record(keys.DdlKey(*place, old.ts), old, old.done_for(part.table_ids))
                        for old in before
                    ),
                    patches.patch_record(
                        keys.UnitKey(*place, SOURCE), UnitRecord, lambda old: moves.changed(old, part)
                    ),
                    *partitionings,
                    *holds,
                ]
            )
        )

    def _drop_old(self, facts: "Facts") -> list[Effect]:
        """Remove records that are no longer needed: the log does not reach back to them, and each table has a newer
        one.

        A table's newest record tells the sync unit the table's schema.
        """
        if facts.head is None:
            return []
        newest: dict[int, Ts] = {}
        for record in facts.ddl.values():
            newest.update({table: max(record.ts, newest.get(table, record.ts)) for table in record.table_ids})
        kept = set(newest.values())
        waited = (held.ts for held in facts.held.values() if held.stage is not HoldStage.LOST)
        copied = (needed_ts(facts.resyncs.values()),)
        limit = min([facts.head.removed_ts, facts.status.checkpoint_ts, *waited, *copied])
        done = [ts for ts, record in sorted(facts.ddl.items()) if not record.pending_ids]
        old = [ts for ts in done if ts <= limit and ts not in kept]
        place = (self._cluster, facts.info.namespace, facts.info.id)
        doomed = [patches.delete(keys.DdlKey(*place, ts)) for ts in old[:_DROPPED_AT_ONCE]]
        return [Commit(patches.group(doomed))] if doomed else []


def _parts(record: DdlRecord, facts: "Facts", divided: Collection[Ts]) -> Iterator[DdlRecord]:
    """Yield the parts of a pending record that can be requested: for tables that flow, are retried, or start over; of a
    record in ``divided`` as small as possible."""
    held, wanted = facts.held, [change for change in record.alterations if change.table_id in record.pending_ids]
    suspects = {*(facts.suspects.tables if facts.suspects else ())} | facts.tried_after_end
    alone = ((change,) for change in wanted if change.table_id in suspects - facts.parked)
    others = [change for change in wanted if change.table_id not in suspects]
    flowing = tuple(change for change in others if change.table_id not in held)
    tried = tuple(change for change in others if _is_tried(held.get(change.table_id)))
    over = ((change,) for change in wanted if _starts_over(change, facts))
    together = [flowing, tried]
    if record.ts in divided:
        together = [group for changes in together for group in independent(changes, facts)]
    yield from (record.with_(changes=changes) for changes in (*together, *alone, *over) if changes)


def _is_over(part: DdlRecord, facts: "Facts") -> bool:
    return all(_starts_over(change, facts) for change in part.changes)


def _is_there(facts: "Facts", part: DdlRecord, spans: Collection[SpanPosition]) -> bool:
    """Return whether everything before the change is in the sink, or does not matter."""
    if _is_over(part, facts) or is_begun(part):
        return True
    return arrived(part.table_ids, facts.table_ids, part.barrier_ts, spans) == part.table_ids


def _is_of_none(facts: "Facts", part: DdlRecord) -> bool:
    """Return whether it is only about tables that have left the changefeed."""
    return all(change.kind is not SchemaChangeKind.CREATE for change in part.changes) and not _may_be_there(facts, part)


def _is_of_copy(change: TableChange) -> bool:
    return change.kind is SchemaChangeKind.CREATE and change.table is not None and change.table.to_copy


def _may_be_there(facts: "Facts", part: DdlRecord) -> bool:
    """Return whether the sink has one of its tables, or was asked to create it."""
    pending = [change for record in facts.ddl.values() if record.pending_ids for change in record.alterations]
    created = {change.table_id for change in pending if change.kind is SchemaChangeKind.CREATE}
    return bool(part.table_ids & (facts.table_ids | created))


def _starts_over(change: TableChange, facts: "Facts") -> bool:
    """Return whether the change makes a held table's past irrelevant: it drops the table, or creates it again after the
    source could not follow one that the sink never had."""
    held = facts.held.get(change.table_id)
    if held is None or held.stage is HoldStage.TRIED:
        return False
    is_new = change.kind is SchemaChangeKind.CREATE and change.table_id not in facts.table_ids
    return change.table is None or (is_new and held.origin is HoldOrigin.SOURCE)


def _is_parked(held: HeldTable | None) -> bool:
    return held is not None and held.stage is not HoldStage.TRIED


def _is_tried(held: HeldTable | None) -> bool:
    return held is not None and held.stage is HoldStage.TRIED


def _is_tried_part(part: DdlRecord, facts: "Facts") -> bool:
    """Return whether the part may take long, so that nothing should wait for it."""
    return any(_is_tried(facts.held.get(table)) for table in part.table_ids)


def _firsts(pending: Iterable[DdlRecord], facts: "Facts", divided: Collection[Ts]) -> list[DdlRecord]:
    """Return the parts that no other pending change of their tables, or of a table that still has one of their names,
    precedes; ``pending`` in order."""
    firsts, waiting, coming = [], set[int](), set[int]()
    names = SinkNames(facts)
    for record in pending:
        parts = list(_parts(record, facts, divided))
        over = [change for part in parts if _is_over(part, facts) for change in part.changes]
        names.leave(over)
        for part in parts:
            is_first = not part.table_ids & (coming if _is_over(part, facts) else waiting)
            if is_first and not names.is_awaited(part.changes):
                firsts.append(part)
        names.leave(change for part in parts if not _is_tried_part(part, facts) for change in part.changes)
        waiting |= record.pending_ids
        coming |= {change.table_id for change in over if change.table is not None}
    return firsts


def _refused(facts: "Facts", part: DdlRecord, error: RunningError) -> Iterator[Refusal]:
    """Yield a refusal of the table that the error is about, or of all tables of the part."""
    for change in part.changes:
        if error.table_id in (None, change.table_id) or error.table_id not in part.table_ids:
            name = names_of(facts, part.with_(changes=(change,)))
            of_table = error.with_(table_id=change.table_id, scope=Scope.TABLE)
            yield Refusal(change.table_id, name, part.barrier_ts, HoldOrigin.SCHEMA, of_table)


def _name_of(part: DdlRecord) -> _Part:
    return part.ts, part.table_ids


def _fields(facts: "Facts", record: DdlRecord) -> tuple[tuple[str, object], ...]:
    kinds = ", ".join(dict.fromkeys(change.kind.value for change in record.changes))
    return (("changefeed", facts.info.id), ("ts", record.ts), ("tables", names_of(facts, record)), ("kinds", kinds))

"""Schema changes of one changefeed: applies each to the sink while all spans of its tables are right before it.

    found ──all spans of its tables at ``barrier_ts``──► asked ──the sink has applied it──► done, in etcd
                                                          ▲  │
                                                          └──┘ a transient error: asked again after 5 to 30 s

The record is in etcd as soon as the log has passed the change (``agent.log.head``), so no capture can be past it, and
other tables continue. *Done* is one transaction with the tables' new records, their names, their keys and whether they
exist: the next flush uses the new record. The sink records the change's Ts in the same step as the change, so it
recognises a change that it has applied. So asking is idempotent, for a new owner and for one that was replaced. Before
the sink is asked to move tables, or to put one in another's place, the record is marked as begun: no span can open them
meanwhile (``sink_names``).

Changes of one table are made one after the other; of several tables at once, up to ``_AT_ONCE``. What the sink refuses
of several tables is asked for again in parts, table by table (``owner.tables.sink_names.independent``); what it refuses
then holds its tables (``owner.feed.holds.held``), and a record that holds a table from the source on (``HOLD``) does so
as soon as the table is there. A record of held tables and others is done in parts: first for the others; each held
table's part follows when it is tried again. ``DdlRecord.left`` says for which tables a record is not done. A held table
that the source drops is dropped at the sink at once: what it lacks nobody will read. One that the sink never had is
forgotten, and created as if it had never been there. A table whose location a held one still has gets another one
(``owner.tables.sink_names``), which is in etcd before the sink is asked.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from owner.progress.units import SOURCE
from owner.progress.watermark import Arrivals, SpanPosition
from owner.questions import ApplySchema
from owner.tables import moves
from owner.tables.pending_changes import Part, PendingChanges, is_over
from owner.tables.refusal import Refusal
from owner.tables.sink_names import begun, independent, is_begun, located, names_of, where_they_lie
from reactor import keys, patches
from reactor.effects import Commit, Effect, Log
from reactor.errors import Scope
from reactor.ids import Ts
from reactor.questions import UNDER_WAY, Answered, Ask
from reactor.records.changefeed import RunningError, UnitRecord
from reactor.records.tables.held import HoldOrigin, HoldStage
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
        self._works: dict[Part, _Work] = {}
        #: records that the sink has refused as a whole
        self._divided: set[Ts] = set()
        self._pending: PendingChanges | None = None
        #: how many more changes the sink may be asked for in this round
        self._room = _AT_ONCE
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

    def tick(self, facts: "Facts", positions: Callable[[], Iterable[SpanPosition]], now: float) -> list[Effect]:
        """Run one round. ``positions``: of all spans."""
        if facts.tables is None:
            return []
        if noted := moves.given_up(facts, cluster=self._cluster):
            return noted
        pending = self._pending_of(facts)
        self._forget(pending.parts)
        self._take_answers(facts, pending.parts, now)
        pending, arrivals = self._pending_of(facts), Arrivals(facts.table_ids, positions)
        self._room = _AT_ONCE - sum(work.retry_at is None for work in self._works.values())
        effects: list[Effect] = []
        changed: set[Ts] = set()  # a record is changed once in a round, whichever of its parts is done
        for name, part in pending.firsts.items():
            has_turn = self._room > 0 or name in self._works or name in pending.moot
            if has_turn and part.ts not in changed:
                steps = self._continue(facts, pending, arrivals, name, part, now)
                changed |= {part.ts for step in steps if isinstance(step, Commit)}
                effects += steps
        self._hold_not_followed(facts, pending, arrivals, now)
        return effects or self._drop_old(facts, positions)

    def next_at(self) -> float:
        """Return when the next step is due by time."""
        if not self._works:
            return float("inf")
        return min((work.retry_at for work in self._works.values() if work.retry_at is not None), default=float("inf"))

    def validate(self) -> None:
        """Assert the invariants between two ticks."""
        under_way = [name for name, work in self._works.items() if work.retry_at is None and not work.is_applied]
        assert len(under_way) <= _AT_ONCE, f"the sink is asked for {len(under_way)} schema changes at once"

    def _pending_of(self, facts: "Facts") -> PendingChanges:
        if self._pending is None or not self._pending.holds_for(facts, self._divided):
            self._pending = PendingChanges(facts, self._divided, before=self._pending)
        return self._pending

    def _continue(
        self,
        facts: "Facts",
        pending: PendingChanges,
        arrivals: Arrivals,
        name: Part,
        part: DdlRecord,
        now: float,
    ) -> list[Effect]:
        work = self._works.get(name)
        if work is not None and work.is_applied:
            part = where_they_lie(part, facts)
            return [self._done(facts, part), Log("info", "the sink has a schema change", _fields(facts, part))]
        if work is not None and (work.retry_at is None or now < work.retry_at):
            return []
        if name in pending.moot:
            if is_over(part, facts) and part.changes[0].table is None:
                return [self._done(facts, part)]  # the sink never had it
            key = keys.DdlKey(self._cluster, facts.info.namespace, facts.info.id, part.ts)
            return [Commit(patches.group([moves.without(key, facts.ddl[part.ts], part.table_ids)]))]
        if self._room <= 0 or not _is_there(part, facts, arrivals):
            return []
        part = where_they_lie(part, facts)
        self._room -= 1
        if (record := located(part, facts) or begun(part, facts)) is not None:
            place = (self._cluster, facts.info.namespace, facts.info.id)
            change = patches.replace_record(keys.DdlKey(*place, part.ts), facts.ddl[part.ts], record)
            return [Commit(patches.group([change]))]
        if all(_is_of_copy(change) for change in part.changes):
            return [self._done(facts, part)]  # their copies make them
        self._works[name] = _Work(failures=work.failures if work else 0)
        there = tuple(facts.by_id[id] for id in sorted(part.table_ids) if id in facts.by_id)
        return [Ask(facts.info.id, facts.info, ApplySchema(part, there))]

    def _take_answers(self, facts: "Facts", parts: Mapping[Part, DdlRecord], now: float) -> None:
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

    def _hold_not_followed(self, facts: "Facts", pending: PendingChanges, arrivals: Arrivals, now: float) -> None:
        """Hold tables that the source cannot follow any further, once everything before is in the sink."""
        for record, changes in pending.holds:
            there = [change for change in changes if arrivals.is_at(change.table_id, record.barrier_ts)]
            for change in there[:_HELD_AT_ONCE]:
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

    def _forget(self, pending: Collection[Part]) -> None:
        """Forget parts that are done, held, or were withdrawn by an operator."""
        for part in [part for part in self._works if part not in pending]:
            del self._works[part]
            self.trouble.pop(part[0], None)
        self._divided &= {ts for ts, _ in pending}

    def _done(self, facts: "Facts", part: DdlRecord) -> Commit:
        """Commit the record together with the tables' new records."""
        info, record = facts.info, facts.ddl[part.ts]
        place = (self._cluster, info.namespace, info.id)
        over = part.table_ids if is_over(part, facts) else frozenset[int]()
        gone = sorted({change.table_id for change in part.changes if change.table is None} | over)
        partitionings = [
            patches.delete(keys.PartitioningKey(*place, table)) for table in gone if table in facts.partitionings
        ]
        holds = [patches.delete(keys.HeldKey(*place, table)) for table in gone if table in facts.held]
        before = [
            record,
            *(known for known in facts.pending_ddl if known.ts < part.ts and known.pending_ids & {*gone}),
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

    def _drop_old(self, facts: "Facts", positions: Callable[[], Iterable[SpanPosition]]) -> list[Effect]:
        """Remove records that are no longer needed: the log does not reach back to them."""
        obsolete = facts.ddl.obsolete
        if facts.head is None or not obsolete:
            return []
        waited = (held.ts for held in facts.held.values() if held.stage is not HoldStage.LOST)
        copied = (needed_ts(facts.resyncs.values()),)
        limit = min([facts.head.removed_ts, facts.status.checkpoint_ts, *waited, *copied])
        old = [ts for ts in obsolete if ts <= limit]
        if not old:
            return []
        # whoever still has a span of a dropped table has to know that it was dropped
        lingering = {at.span.table_id for at in positions()}.difference(facts.table_ids)
        old = [ts for ts in old if lingering.isdisjoint(facts.ddl[ts].dropped_ids)]
        place = (self._cluster, facts.info.namespace, facts.info.id)
        doomed = [patches.delete(keys.DdlKey(*place, ts)) for ts in old[:_DROPPED_AT_ONCE]]
        return [Commit(patches.group(doomed))] if doomed else []


def _is_there(part: DdlRecord, facts: "Facts", arrivals: Arrivals) -> bool:
    """Return whether everything before the change is in the sink, or does not matter."""
    return is_over(part, facts) or is_begun(part) or arrivals.are_all_at(part.table_ids, part.barrier_ts)


def _is_of_copy(change: TableChange) -> bool:
    return change.kind is SchemaChangeKind.CREATE and change.table is not None and change.table.to_copy


def _refused(facts: "Facts", part: DdlRecord, error: RunningError) -> Iterator[Refusal]:
    """Yield a refusal of the table that the error is about, or of all tables of the part."""
    for change in part.changes:
        if error.table_id in (None, change.table_id) or error.table_id not in part.table_ids:
            name = names_of(facts, part.with_(changes=(change,)))
            of_table = error.with_(table_id=change.table_id, scope=Scope.TABLE)
            yield Refusal(change.table_id, name, part.barrier_ts, HoldOrigin.SCHEMA, of_table)


def _fields(facts: "Facts", record: DdlRecord) -> tuple[tuple[str, object], ...]:
    kinds = ", ".join(dict.fromkeys(change.kind.value for change in record.changes))
    return (("changefeed", facts.info.id), ("ts", record.ts), ("tables", names_of(facts, record)), ("kinds", kinds))

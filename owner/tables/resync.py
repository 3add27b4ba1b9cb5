"""Resyncs of one changefeed: tables that are copied again, each alone, while all others flow.

    asked ──a turn is free──► stopping ──no span writes it──► copying ──all rows are staged──► placing
                                                                 ▲                               │ the log is as far
                                    the copy is of no use any more └───────────────────────────────┤ as the copy
                                                                                                 ▼
    (no record) ◄──it flows, and what the copy noted is gone── following ◄──held.py──────────── placed

The table is *held* meanwhile (``owner.feed.holds.held``): nobody writes it, so readers see it as it was, and no Ts of
it is seen twice. The copy is of a position P at which every earlier commit is visible. The sink puts it in the table's
place, in one commit with the records of all spans, which then are at P. So the table continues as a held one that is
tried: from P, out of the log, which is kept from ``floor_ts`` on, never above P.

*Placed* is one transaction with what the table is from then on and with the schema changes at or below P, which the
copy has already: so it comes only when the log, and with it every such change, is known up to P. Where chunks are of
later moments, it is known up to these too: a standby that is promoted may lack what was committed in between. A copy is
begun again where the log does not reach back to it any more, or the table began after it, or is further in the sink.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from owner.progress.units import SOURCE
from owner.questions import CopyTable, DropCopy, MeasureTables, PlaceTable, TableCopied
from owner.scheduler.replication import ReplicationSet
from owner.scheduler.spans import even_spans
from owner.tables.copy_turns import AT_ONCE, SMALL_AT_ONCE, CopyTurns
from owner.tables.resync_requests import begun_again
from reactor import keys, patches
from reactor.effects import Commit, Effect, Log
from reactor.errors import ConflictError, Scope
from reactor.ids import TableSpan
from reactor.questions import UNDER_WAY, Answered, Ask, Question
from reactor.records.changefeed import RunningError, UnitRecord
from reactor.records.tables.held import HoldStage
from reactor.records.tables.resync import ResyncStage, TableResync
from reactor.records.tables.table import TableRecord

if TYPE_CHECKING:
    from owner.progress.facts import Facts

_RETRY_S, _RETRY_MAX_S = 5.0, 300.0
_ASK_AGAIN_S = 30.0
#: codes of a sink that is ahead of the copy, and of a copy that can no longer be read
_USELESS = frozenset({"CopyBehind", "CopyLost"})
#: code of a copy that is of another table, which has the name now
NAME_TAKEN = "NameTaken"

Sets = Mapping[TableSpan, ReplicationSet]


@dataclass(slots=True)
class _Asked:
    """A question without an answer so far."""

    question: Question[Any]
    at: float


class Resyncs:
    """The resyncs of one run. ``epoch``: of its copy orders."""

    def __init__(self, *, cluster: str, epoch: int, wall_offset_s: float) -> None:
        self._cluster = cluster
        self._epoch = epoch
        self._wall_offset_s = wall_offset_s
        self._asked: dict[int, _Asked] = {}
        self._answers: list[Answered[Any]] = []
        self._next_at = float("inf")
        #: tables that cannot be copied as they are: they are tried now and then, and take no other's turn
        self._refused: frozenset[int] = frozenset()
        self._turns = CopyTurns()

    def handle_answer(self, answer: Answered[Any]) -> None:
        """Process the answer of source or sink."""
        if isinstance(answer.question, (CopyTable, PlaceTable, DropCopy, MeasureTables)):
            self._answers.append(answer)

    def next_at(self) -> float:
        """Return when the next step is due by time."""
        return self._next_at

    def validate(self) -> None:
        """Assert the invariants between two ticks."""
        alone = self._copied_alone()
        assert len(alone) <= AT_ONCE, f"{len(alone)} tables are copied at once"  # more are read if copies are lost
        together = self._copying() - alone
        assert len(together) <= SMALL_AT_ONCE, f"{len(together)} tables are copied together"

    def tick(self, facts: "Facts", sets: Sets, now: float) -> list[Effect]:
        """Run one round."""
        answers, self._answers = self._answers, []
        self._next_at = float("inf")
        if facts.tables is None or facts.head is None or facts.needs_position:
            return []
        for answer in answers:
            self._turns.handle_answer(answer, now)
        self._asked = {id: asked for id, asked in self._asked.items() if id in facts.resyncs}
        by_table = {_table_of(answer.question): answer for answer in answers if self._is_awaited(answer)}
        self._refused = facts.resyncs_refused
        turns, effects = self._turns.tick(facts, now)
        if now < self._turns.next_at():
            self._next_at = self._turns.next_at()
        for resync in [*turns, *facts.resyncs_begun]:
            effects += self._step(facts, resync, by_table.get(resync.table_id), sets, now)
        return effects

    def _copying(self) -> set[int]:
        """Return the tables that the source is asked to copy, without those that it refuses."""
        asked = ((id, asked.question) for id, asked in self._asked.items() if id not in self._refused)
        return {id for id, question in asked if isinstance(question, CopyTable)}

    def _copied_alone(self) -> set[int]:
        questions = ((id, self._asked[id].question) for id in self._copying())
        return {id for id, question in questions if isinstance(question, CopyTable) and not question.together}

    def _step(
        self, facts: "Facts", resync: TableResync, answer: Answered[Any] | None, sets: Sets, now: float
    ) -> list[Effect]:
        id = resync.table_id
        if resync.stage is not ResyncStage.FOLLOWING and id not in facts.table_ids:
            return self._enter(facts, resync, resync.with_(stage=ResyncStage.FOLLOWING), "the table is gone")
        match resync.stage:
            case ResyncStage.ASKED:
                return self._enter(facts, resync, resync.with_(stage=ResyncStage.STOPPING), "its turn")
            case ResyncStage.STOPPING:
                return self._await_stop(facts, resync, sets)
            case ResyncStage.COPYING:
                return self._await_copy(facts, resync, answer, now)
            case ResyncStage.PLACING:
                return self._await_sink(facts, resync, answer, now)
            case ResyncStage.PLACED:
                return []  # ``owner.feed.holds.held`` advances it together with the table
            case ResyncStage.FOLLOWING:
                return self._await_flow(facts, resync, answer, now)

    def _await_stop(self, facts: "Facts", resync: TableResync, sets: Sets) -> list[Effect]:
        id, held = resync.table_id, facts.held.get(resync.table_id)
        partitioning = facts.partitionings.get(id)
        is_parked = held is not None and held.stage is not HoldStage.TRIED
        if not is_parked or any(span.table_id == id for span in sets):
            return []
        if partitioning is not None and partitioning.under_way is not None:
            return []  # the sink may be changing the spans
        assert held is not None
        assert facts.head is not None
        floor_ts = max(facts.head.resolved_ts, held.ts)
        after = resync.with_(stage=ResyncStage.COPYING, floor_ts=floor_ts)
        return self._enter(facts, resync, after, "nobody writes it")

    def _await_copy(
        self, facts: "Facts", resync: TableResync, answer: Answered[Any] | None, now: float
    ) -> list[Effect]:
        if answer is None or answer.error is not None:
            id, together = resync.table_id, self._turns.is_small(resync)
            assert facts.head is not None
            order = resync.number, self._epoch, facts.head.position, resync.rows_per_second
            is_new = id not in self._asked and id not in self._refused
            if is_new and not together and len(self._copied_alone()) >= AT_ONCE:
                return []  # they began as small ones
            return self._ask_or_wait(facts, resync, CopyTable(facts.by_id[id], *order, together), answer, now)
        copied = answer.answer
        assert isinstance(copied, TableCopied), "an answer without an error is one"
        table, rows = copied.table, copied.rows
        if table.start_ts < resync.floor_ts:
            return self._begin_again(facts, resync, f"the copy is of {table.start_ts}, before the log that is kept")
        after = resync.with_(stage=ResyncStage.PLACING, table=table, rows=rows, error=None, tries=0, retry_at=0.0)
        return self._enter(facts, resync, after, f"{rows} rows are copied")

    def _await_sink(
        self, facts: "Facts", resync: TableResync, answer: Answered[Any] | None, now: float
    ) -> list[Effect]:
        table, head = resync.table, facts.head
        assert table is not None
        assert head is not None
        stored = facts.by_id[resync.table_id]
        if answer is not None and answer.error is None:
            return self._settle(facts, resync, table)
        if answer is not None and answer.error is not None and answer.error.code in _USELESS:
            return self._begin_again(facts, resync, answer.error.message)
        if head.removed_ts > table.start_ts or stored.start_ts > table.start_ts:
            return self._begin_again(facts, resync, "the change log does not reach back to the copy")
        copied_ts = max(table.start_ts, table.consistent_ts)
        if head.resolved_ts < copied_ts or _is_going(facts, resync.table_id) or _is_to_be_marked(facts, table):
            return []
        if (other := _other_name(facts, table)) is not None:
            return self._refuse_name(facts, resync, other, now)
        partitioning = facts.partitionings.get(resync.table_id)
        spans = even_spans(resync.table_id, partitioning.spans if partitioning else 1)
        cut = partitioning.number if partitioning else 0
        return self._ask_or_wait(facts, resync, PlaceTable(table, spans, resync.number, cut), answer, now)

    def _settle(self, facts: "Facts", resync: TableResync, table: TableRecord) -> list[Effect]:
        """The sink has the copy, and with it all schema changes up to its position: update the table's record.

        A table that its source does not follow since then is held for that next: the log has no rows behind the copy.
        """
        place = (self._cluster, facts.info.namespace, facts.info.id)
        passed = [
            record
            for record in facts.pending_ddl
            if record.ts <= table.start_ts
            and resync.table_id in record.pending_ids
            and all(change.table_id != resync.table_id for change in record.holds)
        ]
        done = [
            patches.replace_record(keys.DdlKey(*place, old.ts), old, old.done_for({resync.table_id})) for old in passed
        ]
        unit = patches.patch_record(keys.UnitKey(*place, SOURCE), UnitRecord, lambda old: _with_table(old, table))
        after = resync.with_(stage=ResyncStage.PLACED, error=None)
        return self._enter(facts, resync, after, "the sink has its copy", [*done, unit])

    def _await_flow(
        self, facts: "Facts", resync: TableResync, answer: Answered[Any] | None, now: float
    ) -> list[Effect]:
        held = facts.held.get(resync.table_id)
        if answer is None and held is not None and held.stage is HoldStage.TRIED:
            return []
        if answer is not None and answer.error is None:
            self._asked.pop(resync.table_id, None)
            return [Commit(patches.group([patches.delete_record(self._key(facts, resync), resync)]))]
        return self._ask_or_wait(facts, resync, DropCopy(resync.table_id, resync.number), answer, now)

    def _ask_or_wait(
        self, facts: "Facts", resync: TableResync, question: Question[Any], answer: Answered[Any] | None, now: float
    ) -> list[Effect]:
        """Ask; after an error record it, and ask again after a delay."""
        id, wall = resync.table_id, now + self._wall_offset_s
        if answer is not None and answer.error is not None:
            if answer.error.code == UNDER_WAY:
                self._asked[id] = _Asked(question, now + _ASK_AGAIN_S)
            else:
                del self._asked[id]
                return self._note(facts, resync, answer.error, now)
        asked = self._asked.get(id)
        ask_at = asked.at if asked is not None and type(asked.question) is type(question) else now
        ask_at = max(ask_at, resync.retry_at - self._wall_offset_s if resync.retry_at > wall else ask_at)
        if now < ask_at:
            self._next_at = min(self._next_at, ask_at)
            return []
        self._asked[id] = _Asked(question, float("inf"))
        return [Ask(facts.info.id, facts.info, question)]

    def _note(self, facts: "Facts", resync: TableResync, error: RunningError, now: float) -> list[Effect]:
        wall = now + self._wall_offset_s
        wait_s = min(_RETRY_S * 2 ** min(resync.tries, 10), _RETRY_MAX_S)
        after = resync.with_(error=error.with_(time=wall), tries=resync.tries + 1, retry_at=wall + wait_s)
        fields = (*_fields(facts, resync), ("code", error.code), ("error", error.message))
        return [self._replace(facts, resync, after), Log("warning", "a resync is tried again", fields)]

    def _refuse_name(self, facts: "Facts", resync: TableResync, other: str, now: float) -> list[Effect]:
        """Copies are read by name: this one is of another table, which has taken the name."""
        text = (
            f"{resync.name} has the name {other} at its source by a change that waits, and another table was copied: "
            f"copy it under that name (`weir table resync --table {other}`)"
        )
        wall = now + self._wall_offset_s
        wait_s = min(_RETRY_S * 2 ** min(resync.tries, 10), _RETRY_MAX_S)
        error = RunningError(
            code=NAME_TAKEN, message=text, time=wall, retryable=False, table_id=resync.table_id, scope=Scope.TABLE
        )
        return self._enter(facts, resync, begun_again(resync).with_(error=error, retry_at=wall + wait_s), text)

    def _begin_again(self, facts: "Facts", resync: TableResync, why: str) -> list[Effect]:
        return self._enter(facts, resync, begun_again(resync), why)

    def _enter(
        self,
        facts: "Facts",
        resync: TableResync,
        after: TableResync,
        why: str,
        others: list[patches.Patch] | None = None,
    ) -> list[Effect]:
        self._asked.pop(resync.table_id, None)
        fields = (*_fields(facts, resync), ("stage", after.stage.value), ("why", why))
        commit = self._replace(facts, resync, after, others)
        return [commit, Log("info", "a resync moves on", fields)]

    def _replace(
        self, facts: "Facts", seen: TableResync, new: TableResync, others: list[patches.Patch] | None = None
    ) -> Commit:
        patch = patches.replace_record(self._key(facts, seen), seen, new)
        return Commit(patches.group([patch, *(others or [])]))

    def _key(self, facts: "Facts", resync: TableResync) -> keys.ResyncKey:
        return keys.ResyncKey(self._cluster, facts.info.namespace, facts.info.id, resync.table_id)

    def _is_awaited(self, answer: Answered[Any]) -> bool:
        """Return whether it answers the last question about its table."""
        if isinstance(answer.question, MeasureTables):
            return False
        asked = self._asked.get(_table_of(answer.question))
        return asked is not None and asked.question == answer.question


def _is_going(facts: "Facts", table_id: int) -> bool:
    """Return whether its source has dropped it, and the sink has not."""
    pending = (record for record in facts.pending_ddl if table_id in record.pending_ids)
    changes = (change for record in pending for change in record.changes)
    return any(change.table_id == table_id and change.table is None for change in changes)


def _is_to_be_marked(facts: "Facts", copied: TableRecord) -> bool:
    """Return whether the sink has yet to mark what lies there as left: it could mark the copy, if no Ts is between."""
    name = copied.schema_name, copied.name
    left = facts.record.left if facts.record else ()
    return any((one.schema_name, one.name) == name and not (one.marked or one.message) for one in left)


def _other_name(facts: "Facts", copied: TableRecord) -> str | None:
    """Return the table's name at the copy's position, by changes that the sink lacks, if it is not the copy's.
    What waits from before a lost position says nothing of the names after it."""
    name = copied.schema_name, copied.name
    for record in facts.pending_ddl:
        is_before = record.ts <= copied.start_ts
        if is_before and copied.table_id in record.pending_ids and copied.table_id not in facts.lost:
            for change in record.changes:
                if change.table_id == copied.table_id and change.table is not None:
                    name = change.table.schema_name, change.table.name
    return None if name == (copied.schema_name, copied.name) else ".".join(name)


def _with_table(unit: UnitRecord | None, table: TableRecord) -> UnitRecord:
    """:raises ConflictError: the source's record, or the table in it, is gone."""
    if unit is None or all(known.table_id != table.table_id for known in unit.tables):
        raise ConflictError("the table's record is gone; tick again")
    placed = table.with_(to_copy=False)
    tables = (placed.keeping(known) if known.table_id == table.table_id else known for known in unit.tables)
    limits = tuple(limit for limit in unit.copy_limits if limit[:2] != (table.schema_name, table.name))
    return unit.with_(tables=tuple(tables), copy_limits=limits)


def _table_of(question: Question[Any]) -> int:
    assert isinstance(question, (CopyTable, PlaceTable, DropCopy))
    return question.table_id if isinstance(question, DropCopy) else question.table.table_id


def _fields(facts: "Facts", resync: TableResync) -> tuple[tuple[str, object], ...]:
    return (("changefeed", facts.info.id), ("table", resync.name))

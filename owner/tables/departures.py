"""Departures: tables that left, by a changed filter or in a lost range, are marked at the sink as not replicated.

    the filter leaves it out ──(one transaction)──► left ──the sink has the mark──► marked
                                                     │                                │
                                                     └──a table of its name joins────►┴──► (no record)

A table that joins again is replaced by its copy, or by a new table of its name, which takes the mark away, and refuses
that of an earlier departure. It is marked all the same: what lies there may be in the way of a new table of its name.
"""

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any

from owner.progress.units import SOURCE
from owner.questions import MarkLeft
from reactor import keys, patches
from reactor.effects import Commit, Effect, Log
from reactor.errors import ConflictError
from reactor.questions import Answered, Ask
from reactor.records.changefeed import UnitRecord
from reactor.records.tables.partitioning import LeftTable
from reactor.records.tables.table import TableRecord

if TYPE_CHECKING:
    from owner.progress.facts import Facts

_AT_ONCE = 8
_RETRY_S, _RETRY_MAX_S = 5.0, 300.0


class Departures:
    """The departures of one run."""

    def __init__(self, *, cluster: str) -> None:
        self._cluster = cluster
        #: asked of the sink, without an answer so far
        self._asked: set[MarkLeft] = set()
        self._settled: dict[MarkLeft, str] = {}
        self._tries: dict[int, int] = {}
        self._retry_at: dict[int, float] = {}
        self._failed: list[Answered[Any]] = []
        #: the source's record in which nothing has joined again: it may have thousands of tables
        self._looked_at: UnitRecord | None = None

    def handle_answer(self, answer: Answered[Any]) -> None:
        """Process the sink's answer. An error that does not pass ends the attempts."""
        question = answer.question
        if not isinstance(question, MarkLeft) or question not in self._asked:
            return
        self._asked.discard(question)
        if answer.error is None or not answer.error.retryable:
            self._settled[question] = answer.error.message if answer.error else ""
        else:
            self._failed.append(answer)

    def next_at(self) -> float:
        """Return when the next step is due by time."""
        return min(self._retry_at.values(), default=float("inf"))

    def validate(self) -> None:
        """Assert the invariants between two ticks."""
        assert len(self._asked) <= _AT_ONCE, f"{len(self._asked)} tables are marked at once"

    def tick(self, facts: "Facts", now: float) -> list[Effect]:
        """Run one round."""
        left = facts.record.left if facts.record else ()
        if not left:
            self._retry_at.clear()
            return []
        effects = self._note_failures(facts, now)
        if facts.record is not self._looked_at:
            if gone := _joined(facts, left):
                return [*effects, self._commit(facts, gone, {})]
            self._looked_at = facts.record
        open_ones = {question_of(one): one for one in left if not one.marked and not one.message}
        self._settled = {question: text for question, text in self._settled.items() if question in open_ones}
        if self._settled:
            return [*effects, self._commit(facts, frozenset(), self._settled)]
        self._retry_at = {id: at for id, at in self._retry_at.items() if at > now}
        due = (ask for ask in open_ones if ask not in self._asked and ask.table.table_id not in self._retry_at)
        for question in list(due)[: _AT_ONCE - len(self._asked)]:
            self._asked.add(question)
            effects.append(Ask(facts.info.id, facts.info, question))
        return effects

    def _note_failures(self, facts: "Facts", now: float) -> list[Effect]:
        effects: list[Effect] = []
        for answer in self._failed:
            assert isinstance(answer.question, MarkLeft)
            assert answer.error is not None
            table = answer.question.table
            tries = self._tries[table.table_id] = self._tries.get(table.table_id, 0) + 1
            self._retry_at[table.table_id] = now + min(_RETRY_S * 2 ** min(tries - 1, 10), _RETRY_MAX_S)
            fields = (("changefeed", facts.info.id), ("table", f"{table.schema_name}.{table.name}"))
            reason = (("code", answer.error.code), ("error", answer.error.message))
            effects.append(Log("warning", "a table that has left is not marked at the sink yet", (*fields, *reason)))
        self._failed = []
        return effects

    def _commit(self, facts: "Facts", gone: frozenset[int], settled: dict[MarkLeft, str]) -> Commit:
        def noted(unit: UnitRecord | None) -> UnitRecord:
            if unit is None:
                raise ConflictError("the source's record is gone; tick again")
            kept = (one for one in unit.left if one.table_id not in gone)
            return unit.with_(left=tuple(_settled(one, settled) for one in kept))

        key = keys.UnitKey(self._cluster, facts.info.namespace, facts.info.id, SOURCE)
        return Commit(patches.group([patches.patch_record(key, UnitRecord, noted)]))


def left_with(facts: "Facts", leaving: Collection[int], *, wall: float) -> list[LeftTable]:
    """Return the record of the tables that leave now, also of those that join again at once."""
    ts = max(facts.head.resolved_ts if facts.head else 0, facts.status.checkpoint_ts)
    return [
        LeftTable(
            table_id=one.table_id, schema_name=one.schema_name, name=one.name, location=one.location, ts=ts, time=wall
        )
        for one in facts.tables or ()
        if one.table_id in leaving
    ]


def question_of(left: LeftTable) -> MarkLeft:
    """Return what is asked of the sink."""
    table = TableRecord(table_id=left.table_id, schema_name=left.schema_name, name=left.name, location=left.location)
    return MarkLeft(table, left.ts, left.time)


def _settled(left: LeftTable, settled: dict[MarkLeft, str]) -> LeftTable:
    text = settled.get(question_of(left))
    return left if text is None else left.with_(marked=not text, message=text)


def _joined(facts: "Facts", left: Iterable[LeftTable]) -> frozenset[int]:
    """Return those that are settled, and whose name a table of the changefeed has, or will have."""
    settled = [one for one in left if one.marked or one.message]
    away = away_of(facts, settled)
    return frozenset(one.table_id for one in settled if one not in away)


def away_of(facts: "Facts", left: Iterable[LeftTable]) -> list[LeftTable]:
    """Return those whose name no table of the changefeed has, or will have."""
    assert facts.record is not None
    names = {(table.schema_name, table.name) for table in facts.record.tables} | set(facts.record.joining)
    return [one for one in left if (one.schema_name, one.name) not in names]

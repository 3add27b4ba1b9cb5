"""Schema changes of one changefeed: each is applied to the sink while all spans of its tables stand right before it.

    found ──all spans of its tables at ``barrier_ts``──► asked ──the sink has it──► done, in etcd
                                                          ▲  │
                                                          └──┘ an error: asked again after 5 to 30 s

The record is in etcd as soon as the log is that far (``agent.log.head``), so no capture can be past it, and tables that
it does not concern flow on. *Done* is one transaction with what the tables are from then on, their names, their keys
and whether they are there: who flushes them next does it under the new record. Whether the sink has a change already is
the sink's to know: it records the change's Ts in the same step as the change. So it is asked without fear, by a new
owner too; an owner that was replaced can do no more than find its work done.

Changes of one table are made one after the other; of several tables at once, up to ``_AT_ONCE``.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from owner.errors import JobRefusedError
from owner.jobs import SchemaApplied
from owner.units import SOURCE
from owner.watermark import SpanPosition, covers
from reactor import keys, patches
from reactor.effects import ApplySchema, Commit, Effect, Log
from reactor.errors import ConflictError
from reactor.ids import Ts
from reactor.records import DdlRecord, RunningError, TableRecord, UnitRecord

if TYPE_CHECKING:
    from owner.run import Facts

_AT_ONCE = 4
_RETRY_S, _RETRY_MAX_S = 5.0, 30.0
#: records that are dropped in one transaction
_DROPPED_AT_ONCE = 50


@dataclass(slots=True)
class _Work:
    """One change that the sink was asked for. ``retry_at``: when to ask again, None while it has not answered."""

    failures: int = 0
    retry_at: float | None = None
    is_applied: bool = False


class SchemaChanges:
    """For one run of a changefeed. ``trouble``: Ts of a change → why the sink does not have it yet."""

    def __init__(self, *, cluster: str, wall_offset_s: float) -> None:
        self.trouble: dict[Ts, str] = {}
        self._cluster = cluster
        self._wall_offset_s = wall_offset_s
        self._works: dict[Ts, _Work] = {}
        self._answers: list[SchemaApplied] = []
        self._news: list[RunningError] = []

    def handle_applied(self, answer: SchemaApplied) -> None:
        """What the sink says; the answer to a question of an earlier run is as good."""
        self._answers.append(answer)

    def take_news(self) -> tuple[list[RunningError], list[RunningError]]:
        """What went wrong since this was last asked: errors, and warnings, which are tried again."""
        news, self._news = self._news, []
        return [e for e in news if not e.retryable], [e for e in news if e.retryable]

    def tick(self, facts: "Facts", spans: Collection[SpanPosition], now: float) -> list[Effect]:
        """One round."""
        if facts.tables is None:
            return []
        pending = [record for _, record in sorted(facts.ddl.items()) if not record.done]
        self._forget({record.ts for record in pending})
        self._take_answers(now)
        effects: list[Effect] = []
        for record in _firsts(pending):
            effects += self._go_on(facts, record, spans, now)
        return effects or self._drop_old(facts)

    def next_at(self) -> float:
        """When time alone moves it on."""
        return min((work.retry_at for work in self._works.values() if work.retry_at is not None), default=float("inf"))

    def _go_on(self, facts: "Facts", record: DdlRecord, spans: Collection[SpanPosition], now: float) -> list[Effect]:
        work = self._works.get(record.ts)
        if work is not None and work.is_applied:
            return [self._done(facts, record), Log("info", "the sink has a schema change", _fields(facts, record))]
        if work is not None and (work.retry_at is None or now < work.retry_at):
            return []
        under_way = sum(work.retry_at is None for work in self._works.values())
        if record.holds or under_way >= _AT_ONCE or not _stand_there(facts, record, spans):
            return []
        self._works[record.ts] = _Work(failures=work.failures if work else 0)
        return [ApplySchema(facts.info.id, facts.info, record)]

    def _take_answers(self, now: float) -> None:
        answers, self._answers = self._answers, []
        for answer in answers:
            work = self._works.get(answer.ts)
            if work is None or work.is_applied:
                continue
            if answer.error is None:
                work.is_applied, work.retry_at = True, None
                self.trouble.pop(answer.ts, None)
                continue
            work.failures += 1
            work.retry_at = now + min(_RETRY_S * 2 ** (work.failures - 1), _RETRY_MAX_S)
            self.trouble[answer.ts] = answer.error.message
            self._news.append(answer.error.with_(time=now + self._wall_offset_s))

    def _forget(self, pending: Collection[Ts]) -> None:
        """What is done, or was taken back by an operator."""
        for ts in [ts for ts in self._works if ts not in pending]:
            del self._works[ts]
            self.trouble.pop(ts, None)

    def _done(self, facts: "Facts", record: DdlRecord) -> Commit:
        """The record, and what the tables are from now on."""
        info = facts.info
        place = (self._cluster, info.namespace, info.id)
        gone = sorted(change.table_id for change in record.alterations if change.table is None)
        cuts = [patches.delete(keys.CutKey(*place, table)) for table in gone if table in facts.cuts]
        return Commit(
            patches.group(
                [
                    patches.replace_record(keys.DdlKey(*place, record.ts), record, record.with_(done=True)),
                    patches.patch_record(keys.UnitKey(*place, SOURCE), UnitRecord, lambda old: changed(old, record)),
                    *cuts,
                ]
            )
        )

    def _drop_old(self, facts: "Facts") -> list[Effect]:
        """Records that nobody will ask for: the log does not reach back to them, and each table has a newer one.

        A table's newest tells the sync unit which schema the table has.
        """
        if facts.head is None:
            return []
        newest: dict[int, Ts] = {}
        for record in facts.ddl.values():
            newest.update({table: max(record.ts, newest.get(table, record.ts)) for table in record.table_ids})
        kept = set(newest.values())
        limit = min(facts.head.removed_ts, facts.status.checkpoint_ts)
        old = [ts for ts, record in sorted(facts.ddl.items()) if record.done and ts <= limit and ts not in kept]
        place = (self._cluster, facts.info.namespace, facts.info.id)
        doomed = [patches.delete(keys.DdlKey(*place, ts)) for ts in old[:_DROPPED_AT_ONCE]]
        return [Commit(patches.group(doomed))] if doomed else []


def changed(unit: UnitRecord | None, record: DdlRecord) -> UnitRecord:
    """A source's record with its tables as ``record`` leaves them.

    :raises ConflictError: there is no such record any more.
    """
    if unit is None:
        raise ConflictError("the source's record is gone; tick again")
    tables = {table.table_id: table for table in unit.tables}
    for change in record.alterations:
        if change.table is None:
            tables.pop(change.table_id, None)
        else:
            before = tables.get(change.table_id)
            tables[change.table_id] = change.table.keeping(before) if before is not None else change.table
    return unit.with_(tables=tuple(tables.values()))


def refuse_replay(facts: "Facts", ts: Ts) -> None:
    """:raises JobRefusedError: going on from ``ts`` would replay a schema change that the sink has already."""
    past = [at for at, record in sorted(facts.ddl.items()) if record.done and at > ts]
    if past:
        raise JobRefusedError(
            f"the schema of {_names(facts, facts.ddl[past[-1]])} was changed at {past[-1]}, behind {ts}: what was "
            f"written under the old one does not fit the sink any more; go on at {past[-1]} or later, "
            "or create another changefeed for a new snapshot"
        )


def _firsts(pending: Iterable[DdlRecord]) -> list[DdlRecord]:
    """Those before which no other change of one of their tables is waiting; ``pending`` in order."""
    firsts, waiting = [], set[int]()
    for record in pending:
        if not record.table_ids & waiting:
            firsts.append(record)
        waiting |= record.table_ids
    return firsts


def _stand_there(facts: "Facts", record: DdlRecord, spans: Collection[SpanPosition]) -> bool:
    """All that was written under the old schema is in the sink. A table that is yet to come has no spans."""
    concerned = {table.table_id for table in facts.tables or ()} & record.table_ids
    theirs = [at for at in spans if at.span.table_id in concerned]
    return covers(concerned, theirs) and all(at.checkpoint_ts >= record.barrier_ts for at in theirs)


def _names(facts: "Facts", record: DdlRecord) -> str:
    known = {table.table_id: table for table in facts.tables or ()}
    tables = (change.table or known.get(change.table_id) for change in record.changes)
    return ", ".join(_name(table) for table in tables if table is not None) or "a table"


def _name(table: TableRecord) -> str:
    return f"{table.schema_name}.{table.name}"


def _fields(facts: "Facts", record: DdlRecord) -> tuple[tuple[str, object], ...]:
    kinds = ", ".join(dict.fromkeys(change.kind.value for change in record.changes))
    return (("changefeed", facts.info.id), ("ts", record.ts), ("tables", _names(facts, record)), ("kinds", kinds))

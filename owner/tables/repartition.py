"""Repartition: changes a table's spans, by splitting it or joining it again.

Each span has a record of its own in the sink, so spans change in the sink first, in one commit, while the table is at
one Ts and not being written:

    wanted ──► together ──all spans at one Ts──► stopping ──no writer left──► under way ──the sink has done it──► done
                  ▲                                                              │
                  └─────────────────── an old span is recorded past the Ts ◄─────┘

What is wanted, and what is under way, is in etcd (``TablePartitioning``); *together* and *stopping* are this owner's
state, and start over under another one. From *under way* on only the sink's answer leads further: until it has arrived,
neither old nor new spans are replicated, whoever is owner. The sink executes each repartition once, by its number, and
fences stale writers of old spans; an old span that was faster is reported, and the spans are brought to a later Ts. So
the sink's state relies on no lease and no clock.

The table waits at its furthest span, not at the log's position: so tables can also be joined when none of several spans
can continue (``ROW_MOVED``), which happens automatically.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from owner.errors import JobRefusedError
from owner.progress.watermark import SpanPosition
from owner.questions import RepartitionTable
from owner.scheduler.replication import ReplicationSet, SetState
from owner.scheduler.spans import SPANS_MAX, TableSpans, even_spans, span_count
from owner.tables.refusal import Refusal
from reactor import keys, patches
from reactor.effects import Commit, Effect, Log, WakeAt
from reactor.errors import Scope
from reactor.ids import TableSpan, Ts
from reactor.questions import UNDER_WAY, Answered, Ask
from reactor.records.changefeed import FeedState, RunningError
from reactor.records.tables.held import HoldOrigin
from reactor.records.tables.partitioning import RepartitionUnderWay, TablePartitioning
from reactor.records.tables.table import TableRecord

if TYPE_CHECKING:
    from owner.progress.facts import Facts

Sets = Mapping[TableSpan, ReplicationSet]

#: ``agent.errors.RowMovedError``: no span can apply a row that moved between spans, but a single span can
ROW_MOVED = "RowMoved"
#: delay before the sink is asked again, after an error or without an answer
_ASK_AGAIN_S = 30.0
_RETRY_S = 5.0
#: failed answers after which the table is held
_FAILURES_MAX = 3
#: the code of its hold
SINK_REPARTITION = "SinkRepartition"
#: records that the policy writes in one transaction
_POLICY_BATCH = 50
_ALL_WHOLE: TableSpans = {}


class Repartitions:
    """The repartitions of one run. ``holds``: table → the Ts that no span may pass."""

    def __init__(self, *, cluster: str) -> None:
        self.holds: dict[int, Ts] = {}
        #: table → why the sink has not repartitioned it yet
        self.trouble: dict[int, str] = {}
        self._cluster = cluster
        self._stopping: set[int] = set()
        self._ask_at: dict[int, float] = {}
        self._answers: dict[int, tuple[RepartitionTable, Answered[Ts]]] = {}
        self._failures: dict[int, int] = {}
        self._refusals: list[Refusal] = []
        self._is_planned = False
        self._tables: dict[int, TableRecord] = {}
        self._tables_of: object = None

    def table_spans(self, stored: Mapping[int, TablePartitioning]) -> TableSpans:
        """Return the spans to replicate of tables that are not one whole span."""
        if not stored:
            return _ALL_WHOLE
        return {
            id: () if self._is_away(partitioning) else even_spans(id, partitioning.spans)
            for id, partitioning in stored.items()
        }

    def standing(self, stored: Mapping[int, TablePartitioning]) -> list[SpanPosition]:
        """Return the positions of tables that are not replicated because they are being repartitioned."""
        away = [partitioning for partitioning in stored.values() if self._is_away(partitioning)] if stored else []
        return [SpanPosition(TableSpan(partitioning.table_id), self._stopped_at(partitioning)) for partitioning in away]

    def waiting(self, stored: Mapping[int, TablePartitioning]) -> str:
        """Return which tables are not being written because of a repartition, and why it takes so long; empty if there
        are none."""
        away = sorted(partitioning.table_id for partitioning in stored.values() if self._is_away(partitioning))
        if not away:
            return ""
        trouble = [f": {self.trouble[id]}" for id in away if id in self.trouble]
        tables = ", ".join(self._name(id) for id in away)
        return f"{tables}: getting other spans{trouble[0] if trouble else ''}"

    def validate(self) -> None:
        """Assert the invariants between two ticks."""
        assert self._ask_at.keys() <= self._stopping, "the sink is asked of a table whose spans still run"

    def _name(self, table_id: int) -> str:
        table = self._tables.get(table_id)
        return f"{table.schema_name}.{table.name}" if table else f"table {table_id}"

    def handle_answer(self, answer: Answered[Any]) -> None:
        """Process the sink's answer."""
        if isinstance(answer.question, RepartitionTable):
            self._answers[answer.question.table.table_id] = answer.question, answer

    def take_refusals(self) -> list[Refusal]:
        """Return tables that the sink cannot repartition."""
        refusals, self._refusals = self._refusals, []
        return refusals

    def tick(self, facts: "Facts", sets: Sets, captures: int, now: float, *, is_held: bool) -> list[Effect]:
        """Run one round. ``captures``: the number of serving ones. ``is_held``: a sync point needs the current
        spans."""
        if facts.tables is None:
            return []
        if self._tables_of is not facts.tables:
            self._tables_of, self._tables = facts.tables, {table.table_id: table for table in facts.tables}
        effects: list[Effect] = []
        for partitioning in list(facts.partitionings.values()):
            table = self._tables.get(partitioning.table_id)
            if table is None:
                effects += self._forget(facts, partitioning, sets)
            elif partitioning.under_way is None and (
                partitioning.wanted == partitioning.spans or partitioning.table_id in facts.held
            ):
                self._rest(partitioning.table_id)
            else:
                effects += self._advance(facts, table, partitioning, sets, now, is_held=is_held)
        return effects + self._plan(facts, captures)

    def next_at(self) -> float:
        """Return when the next step is due by time."""
        return min(self._ask_at.values()) if self._ask_at else float("inf")

    def _advance(
        self,
        facts: "Facts",
        table: TableRecord,
        partitioning: TablePartitioning,
        sets: Sets,
        now: float,
        *,
        is_held: bool,
    ) -> list[Effect]:
        if partitioning.under_way is not None:
            return self._await_sink(facts, table, partitioning, partitioning.under_way, now)
        if partitioning.table_id in self._stopping:
            return self._await_stop(facts, partitioning, sets)
        return self._bring_together(partitioning, facts.status.checkpoint_ts, sets, now, is_held=is_held)

    def _bring_together(
        self, partitioning: TablePartitioning, checkpoint_ts: Ts, sets: Sets, now: float, *, is_held: bool
    ) -> list[Effect]:
        """Move the hold to the furthest span until all have received it and none is past it.

        It applies before a span runs, so that one that cannot continue (``ROW_MOVED``) does not try; but not before a
        sync point is over, which waits for the spans at a later Ts.
        """
        if is_held:
            return []
        id, spans = (
            partitioning.table_id,
            [sets.get(span) for span in even_spans(partitioning.table_id, partitioning.spans)],
        )
        known = [span for span in spans if span is not None and span.state is SetState.REPLICATING]
        positions = [span.checkpoint.checkpoint_ts for span in known]
        before = self.holds.get(id)
        self.holds[id] = max([before or checkpoint_ts, *positions])
        is_together = len(known) == partitioning.spans and min(positions) == before == self.holds[id]
        if is_together:
            self._stopping.add(id)
            return [WakeAt(now)]
        return [] if self.holds[id] == before else [WakeAt(now)]

    def _await_stop(self, facts: "Facts", partitioning: TablePartitioning, sets: Sets) -> list[Effect]:
        if any(span.table_id == partitioning.table_id for span in sets):
            return []
        under_way = RepartitionUnderWay(spans=partitioning.wanted, ts=self.holds[partitioning.table_id])
        return [self._commit(facts, partitioning, partitioning.with_(under_way=under_way))]

    def _await_sink(
        self,
        facts: "Facts",
        table: TableRecord,
        partitioning: TablePartitioning,
        under_way: RepartitionUnderWay,
        now: float,
    ) -> list[Effect]:
        """Ask the sink, repeatedly, and process the answer to the last question."""
        id, number = partitioning.table_id, partitioning.number + 1
        self._stopping.add(id)
        asked, answer = self._answers.pop(id, (None, None))
        if asked is not None and answer is not None and (asked.number, asked.ts) == (number, under_way.ts):
            if answer.answer is not None and answer.error is None:
                return self._settle(facts, partitioning, under_way, answer.answer)
            why = answer.error.message if answer.error else "it said nothing"
            self.trouble[id] = why
            is_under_way = answer.error is not None and answer.error.code == UNDER_WAY
            self._ask_at[id] = now + (_ASK_AGAIN_S if is_under_way else _RETRY_S)
            self._note_failure(table, under_way.ts, why)
        if now < self._ask_at.get(id, now):
            return []
        self._ask_at[id] = now + _ASK_AGAIN_S
        spans = even_spans(id, partitioning.spans), even_spans(id, under_way.spans)
        return [Ask(facts.info.id, facts.info, RepartitionTable(table, *spans, under_way.ts, number))]

    def _note_failure(self, table: TableRecord, ts: Ts, text: str) -> None:
        """Hold a table that the sink cannot repartition, so that nothing waits for it; the sink is still asked."""
        id = table.table_id
        self._failures[id] = self._failures.get(id, 0) + 1
        if self._failures[id] == _FAILURES_MAX:
            error = RunningError(code=SINK_REPARTITION, message=text, table_id=id, scope=Scope.TABLE)
            self._refusals.append(Refusal(id, f"{table.schema_name}.{table.name}", ts, HoldOrigin.WRITE, error))

    def _settle(
        self, facts: "Facts", partitioning: TablePartitioning, under_way: RepartitionUnderWay, furthest_ts: Ts
    ) -> list[Effect]:
        fields = (("changefeed", facts.info.id), ("table_id", partitioning.table_id), ("ts", under_way.ts))
        self._rest(partitioning.table_id)
        if furthest_ts > under_way.ts:
            self.holds[partitioning.table_id] = furthest_ts
            log = Log("info", "a span was past its table's Ts: repartition starts again", fields)
            return [self._commit(facts, partitioning, partitioning.with_(under_way=None)), log]
        done = partitioning.with_(spans=under_way.spans, number=partitioning.number + 1, under_way=None)
        log = Log("info", "a table is repartitioned", (*fields, ("spans", done.spans)))
        return [self._commit(facts, partitioning, done), log]

    def _forget(self, facts: "Facts", partitioning: TablePartitioning, sets: Sets) -> list[Effect]:
        """Remove the record of a dropped table; a later table of the same id starts with one span."""
        self._rest(partitioning.table_id)
        if any(span.table_id == partitioning.table_id for span in sets):
            return []
        return [Commit(patches.group([patches.delete(self._key(facts, partitioning.table_id))]))]

    def _rest(self, table_id: int) -> None:
        self.holds.pop(table_id, None)
        self.trouble.pop(table_id, None)
        self._ask_at.pop(table_id, None)
        self._failures.pop(table_id, None)
        self._answers.pop(table_id, None)
        self._stopping.discard(table_id)

    def _plan(self, facts: "Facts", captures: int) -> list[Effect]:
        """Split, once per run, large tables that were never repartitioned."""
        config = facts.info.config
        if self._is_planned or not config.split_large_tables or not captures or facts.tables is None:
            return []
        wishes = []
        for table in facts.tables:
            count = span_count(table.rows_estimated, captures, rows_per_span=config.split_rows)
            if count > 1 and table.key and table.table_id not in facts.partitionings:
                wishes.append(TablePartitioning(table_id=table.table_id, wanted=count))
        self._is_planned = len(wishes) <= _POLICY_BATCH
        changes = [self._patch(facts, None, wish) for wish in wishes[:_POLICY_BATCH]]
        return [Commit(patches.group(changes))] if changes else []

    def _is_away(self, partitioning: TablePartitioning) -> bool:
        return partitioning.under_way is not None or partitioning.table_id in self._stopping

    def _stopped_at(self, partitioning: TablePartitioning) -> Ts:
        return partitioning.under_way.ts if partitioning.under_way else self.holds[partitioning.table_id]

    def _commit(self, facts: "Facts", seen: TablePartitioning, new: TablePartitioning) -> Commit:
        return Commit(patches.group([self._patch(facts, seen, new)]))

    def _patch(self, facts: "Facts", seen: TablePartitioning | None, new: TablePartitioning) -> patches.Patch:
        return patches.replace_record(self._key(facts, new.table_id), seen, new)

    def _key(self, facts: "Facts", table_id: int) -> keys.PartitioningKey:
        return keys.PartitioningKey(self._cluster, facts.info.namespace, facts.info.id, table_id)


def joined(
    errors: Sequence[RunningError], partitionings: Mapping[int, TablePartitioning]
) -> tuple[list[RunningError], list[tuple[TablePartitioning, TablePartitioning]]]:
    """Return ``errors`` without those that joining a table resolves, and the records to change, before and after."""
    rest, wishes = [], {}
    for error in errors:
        partitioning = partitionings.get(error.table_id) if error.table_id is not None else None
        if error.code != ROW_MOVED or partitioning is None:
            rest.append(error)
            continue
        rest.append(error.with_(retryable=True))
        wishes[partitioning.table_id] = (partitioning, partitioning.with_(wanted=1))
    return rest, [(before, after) for before, after in wishes.values() if before != after]


def asked(facts: "Facts", table_id: int, spans: int) -> tuple[TablePartitioning | None, TablePartitioning]:
    """Return a table's record, and the record after an operator's request for ``spans``.

    :raises JobRefusedError: the request is impossible.
    """
    feed = f"changefeed {facts.info.id}"
    if facts.info.state in (FeedState.FINISHED, FeedState.REMOVED):
        raise JobRefusedError(f"{feed} is {facts.info.state}: its tables are not written any more")
    table = _find(facts.tables or (), table_id)
    if table is None:
        why = f"has no table {table_id}" if facts.tables else "is not replicating yet, its tables are being copied"
        raise JobRefusedError(f"{feed} {why}; see `weir tables -c {facts.info.id}`")
    name = f"{table.schema_name}.{table.name}"
    if not table.key:
        raise JobRefusedError(
            f"{name} has no key, by which its rows could be divided; give it one, or leave it as it is"
        )
    if not 1 <= spans <= SPANS_MAX:
        raise JobRefusedError(f"a table has 1 to {SPANS_MAX} spans, not {spans}")
    before = facts.partitionings.get(table_id)
    return before, (before or TablePartitioning(table_id=table_id)).with_(wanted=spans)


def refuse_while_repartitioning(facts: "Facts") -> None:
    """:raises JobRefusedError: the sink may be changing spans at the recorded Ts."""
    for partitioning in facts.partitionings.values():
        if partitioning.under_way is not None:
            raise JobRefusedError(
                f"table {partitioning.table_id} of changefeed {facts.info.id} is being repartitioned at "
                f"{partitioning.under_way.ts}: its position cannot change now; resume it without one, and wait "
                "until tables shows its spans"
            )


def _find(tables: tuple[TableRecord, ...], table_id: int) -> TableRecord | None:
    return next((table for table in tables if table.table_id == table_id), None)

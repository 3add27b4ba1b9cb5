"""Commands of two operators about the same tables at once: each is answered, and in the end every table flows."""

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from owner import jobs
from owner.questions import CopyTable, RepartitionTable, TableCopied
from reactor.ids import Ts
from reactor.questions import UNDER_WAY, Answered
from reactor.records.changefeed import FeedState, FilterConfig, RunningError
from reactor.records.tables.held import HoldStage
from reactor.records.tables.table import TableRecord
from reactor.state import ChangefeedState
from tests.unit.owner.owner_build import FEED, A, B
from tests.unit.owner.small_cluster import TABLES
from tests.unit.owner.tables.test_schema_changes import alter, create, record
from tests.unit.owner.test_owner import running

NAMES = [(table.schema_name, table.name) for table in TABLES]
_ROUNDS = 60
_SETTLE_ROUNDS = 400


class Bed:
    """The cluster, with a sink and a source that answer late, not at all, or with errors. ``seed`` decides."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.cluster = running("a", "b")
        self.ts = 200
        self.is_quiet = False
        self.told: list[str] = []
        self._asked = 0
        self._open: list[Any] = []
        self._copied: dict[tuple[int, int], int] = {}
        self._next_id = 10

    @property
    def feed(self) -> ChangefeedState:
        return self.cluster.state.changefeeds[FEED]

    @property
    def tables(self) -> Sequence[TableRecord]:
        return self.feed.units["main"].tables

    def run(self) -> None:
        for _ in range(_ROUNDS):
            for _ in range(self.rng.choice((0, 1, 1, 2))):  # two: in one tick
                self.cluster.jobs.append(self._command())
            self._turn()
        self.is_quiet = True
        for _ in range(_SETTLE_ROUNDS):
            self._cure()
            self._turn(after_s=self.rng.choice((0.25, 1.0, 10.0)))
            if self._is_settled():
                break
        assert self._is_settled(), self._state()
        unanswered = [name for name in self.told if name not in self.cluster.answers]
        assert not unanswered, unanswered

    def _turn(self, after_s: float = 0.25) -> None:
        rng = self.rng
        if not self.is_quiet and rng.random() < 0.04:
            self.cluster.elect(rng.choice((A, B)))
            self._open = [one for one in self._open if rng.random() < 0.5]  # the others' answers find nobody
        if rng.random() < 0.6:
            self.ts += rng.randint(1, 100)
            self.cluster.advance_log(self.ts)
        if not self.is_quiet and self.tables and rng.random() < 0.05:
            self.cluster.change_schema(record(self.ts + 1, alter(rng.choice(self.tables))))
            self.ts += 101
        if rng.random() < 0.5:
            self._join()
        self._answer_some()
        self.cluster.step(after_s=after_s)
        self.cluster.owner.validate()

    def _name(self) -> str:
        self._asked += 1
        self.told.append(f"j{self._asked}")
        return self.told[-1]

    def _command(self) -> object:
        rng, name = self.rng, self._name()
        id = rng.choice([*(table.table_id for table in self.tables), 1])
        steps: list[Callable[[], object]] = [
            lambda: jobs.ResyncTable(name, FEED, id),
            lambda: jobs.ResyncTable(name, FEED, id),
            lambda: jobs.ResyncTable(name, FEED, id, is_cancelled=True),
            lambda: jobs.PauseTable(name, FEED, id),
            lambda: jobs.ResumeTable(name, FEED, id),
            lambda: jobs.SkipTable(name, FEED, id, Ts(max(0, self.ts - rng.randint(0, 50)))),
            lambda: jobs.Repartition(name, FEED, id, rng.choice((1, 2, 3))),
            lambda: self._update(name),
            lambda: self._update(name),
            lambda: jobs.Pause(name, FEED),
            lambda: jobs.Resume(name, FEED),
            lambda: jobs.Resume(name, FEED),
            lambda: jobs.HoldAt(name, FEED, Ts(self.ts), timeout_s=5.0),
            lambda: jobs.Rebalance(name, FEED),
            lambda: jobs.MoveTable(name, FEED, id, rng.choice((A, B))),
        ]
        return rng.choice(steps)()

    def _update(self, name: str) -> jobs.Update:
        """Other rules, by what a capture reads of the records now."""
        info, unit = self.cluster.info(), self.feed.units["main"]
        wanted = [one for one in NAMES if self.rng.random() < 0.7] or NAMES[:1]
        rules = tuple(f"{schema}.{table}" for schema, table in wanted)
        there = {(one.schema_name, one.name) for one in unit.tables}
        config = info.config.with_(filter=FilterConfig(rules=rules))
        leaving = tuple(one.table_id for one in unit.tables if (one.schema_name, one.name) not in wanted)
        basis = jobs.Basis.of(info.config, unit, self.feed.ddl.values())
        joining = tuple(one for one in wanted if one not in there)
        return jobs.Update(name, FEED, config=config, joining=joining, leaving=leaving, basis=basis)

    def _join(self) -> None:
        """The sync unit finds a table that joins, with rows that are copied."""
        if not self.cluster.workers() or not (joining := self.feed.units["main"].joining):
            return
        coming = {
            (change.table.schema_name, change.table.name)
            for one in self.feed.ddl.values()
            for change in one.changes
            if change.table is not None and one.pending_ids
        }
        for schema, name in joining:
            if (schema, name) not in coming:
                self._next_id += 1
                id = self.rng.choice((NAMES.index((schema, name)) + 1, self._next_id))  # MySQL's and PostgreSQL's
                if any(one.table_id == id for one in self.tables) or id in self.feed.held:
                    id = self._next_id
                table = TableRecord(
                    table_id=id, schema_name=schema, name=name, key=("id",), start_ts=Ts(self.ts), to_copy=True
                )
                self.cluster.change_schema(record(self.ts + 1, create(table)))
                self.ts += 101
                return

    # Source and sink

    def _answer_some(self) -> None:
        asked = [*self.cluster.copies, *self.cluster.marks, *self.cluster.repartitions, *self.cluster.schemas]
        for found in (self.cluster.copies, self.cluster.marks, self.cluster.repartitions, self.cluster.schemas):
            found.clear()
        self._open += asked
        left = []
        for question in self._open:
            chance = 0.0 if self.is_quiet else self.rng.random()
            if chance < 0.35:
                self.cluster.jobs.append(self._answered(question))
            else:
                left.append(question)
        self._open = left

    def _answered(self, question: Any) -> Answered[Any]:
        if not self.is_quiet and self.rng.random() < 0.15:
            code = self.rng.choice((UNDER_WAY, "SinkPassing", "SinkConflict"))
            return Answered(FEED, question, error=RunningError(code=code, message="not now"))
        match question:
            case CopyTable():
                place = question.table.table_id, question.number
                ts = self._copied.setdefault(place, self.ts)
                return Answered(FEED, question, TableCopied(question.table.with_(start_ts=Ts(ts)), rows=1))
            case RepartitionTable():
                return Answered(FEED, question, question.ts)
        return Answered(FEED, question)

    # In the end

    def _cure(self) -> None:
        rng, info = self.rng, self.cluster.info()
        if rng.random() < 0.5:
            return
        if info.state in (FeedState.STOPPED, FeedState.FAILED):
            self.cluster.jobs.append(jobs.Resume(self._name(), FEED))
        for held in self.feed.held.values():
            if held.table_id not in self.feed.resyncs and held.stage is not HoldStage.TRIED:
                self.cluster.jobs.append(jobs.ResyncTable(self._name(), FEED, held.table_id))

    def _is_settled(self) -> bool:
        feed, info = self.feed, self.cluster.info()
        unit = feed.units["main"]
        cuts = feed.partitionings.values()
        return (
            info.state is FeedState.NORMAL
            and not (feed.held or feed.resyncs or unit.joining)
            and all(one.marked for one in unit.left)
            and not any(one.pending_ids for one in feed.ddl.values())
            and not any(one.under_way or one.wanted != one.spans for one in cuts)
            and self.cluster.checkpoint_ts() >= self.ts - 300
            and {span.table_id for span in self.cluster.writers()} == {table.table_id for table in unit.tables}
        )

    def _state(self) -> str:
        feed = self.feed
        unit = feed.units["main"]
        return (
            f"{self.cluster.info().state} {self.cluster.info().error}, at {self.cluster.checkpoint_ts()} of {self.ts}, "
            f"held {feed.held}, resyncs {feed.resyncs}, joining {unit.joining}, left {unit.left}, "
            f"ddl {feed.ddl}, cuts {feed.partitionings}, writers {self.cluster.writers()}, "
            f"open {self._open}, tables {[(t.table_id, t.name) for t in unit.tables]}"
        )


@pytest.mark.sample(0.2)
@pytest.mark.parametrize("seed", [*range(8), *(pytest.param(seed, marks=pytest.mark.matrix) for seed in range(8, 200))])
def test_two_operators(seed: int) -> None:
    Bed(seed).run()

"""Copy turns: decides which tables may be copied next, so that few are held at once, and small ones are read together.

A table is not written while it is copied, and reading it takes cores from others. So few large tables are copied at a
time. Small ones are over in seconds: many of them take their turn at once, and the source reads them under one snapshot
(``CopyTable.together``). Where more tables wait than may begin, the source is asked for their sizes. A table of unknown
size counts as large, and so does one whose copy has failed before.
"""

import heapq
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any, Final

from owner.progress.facts import Facts
from owner.questions import MeasureTables
from reactor.effects import Effect
from reactor.questions import Answered, Ask
from reactor.records.tables.resync import ResyncStage, TableResync

#: large tables that are read concurrently, each by several chunks, and with them those that the sink puts in their
#: places
READ_AT_ONCE: Final = 2
AT_ONCE: Final = 4
#: small tables that are not written at a time, and their rows at most
SMALL_AT_ONCE: Final = 64
_SMALL_ROWS: Final = 10_000
#: tables in one question for sizes
_MEASURED_AT_ONCE: Final = 1_000
_MEASURE_AGAIN_S: Final = 30.0
#: stages of tables that have had their turn, and are yet to be read
_TO_BE_READ: Final = frozenset({ResyncStage.STOPPING, ResyncStage.COPYING})


class CopyTurns:
    """Those of one run's resyncs."""

    def __init__(self) -> None:
        #: estimates by table; None: unknown to the source
        self._rows: dict[int, int | None] = {}
        self._question: MeasureTables | None = None
        self._measure_at = 0.0

    def handle_answer(self, answer: Answered[Any], now: float) -> None:
        """Note the sizes that the source estimates; after an error it is asked again later."""
        if answer.question != self._question:
            return
        assert isinstance(answer.question, MeasureTables), "it is the last one"
        self._question = None
        if answer.error is not None or answer.answer is None:
            self._measure_at = now + _MEASURE_AGAIN_S
            return
        found: Mapping[int, int] = answer.answer
        self._rows |= {table.table_id: found.get(table.table_id) for table in answer.question.tables}

    def is_small(self, resync: TableResync) -> bool:
        """Return whether the table is read together with others."""
        rows = self._rows.get(resync.table_id)
        return rows is not None and rows <= _SMALL_ROWS and resync.tries == 0 and resync.rows_per_second is None

    def next_at(self) -> float:
        """Return when sizes are asked for again; the past if they may be asked for now."""
        return self._measure_at if self._question is None else float("inf")

    def tick(self, facts: Facts, now: float) -> tuple[list[TableResync], list[Effect]]:
        """Return the tables whose turn it is, and a question for sizes."""
        for id in self._rows.keys() - facts.resyncs.keys():
            del self._rows[id]
        under_way = [
            one for one in facts.resyncs_begun if one.holds_table and one.table_id not in facts.resyncs_refused
        ]
        large = [one for one in under_way if not self.is_small(one)]
        room = min(READ_AT_ONCE - sum(one.is_before_sink for one in large), AT_ONCE - len(large))
        small_room = SMALL_AT_ONCE - (len(under_way) - len(large))
        waiting = facts.resyncs_waiting
        turns = _first((one for one in waiting if not self.is_small(one)), room)
        turns += _first((one for one in waiting if self.is_small(one)), small_room)
        is_full = len(waiting) > len(turns) or len(large) > AT_ONCE
        return turns, self._measure(facts, now) if is_full else []

    def _measure(self, facts: Facts, now: float) -> list[Effect]:
        if self._question is not None or now < self._measure_at or facts.info.config.read_rows_per_second:
            return []
        begun = (one for one in facts.resyncs_begun if one.stage in _TO_BE_READ)
        unknown = (
            one
            for one in chain(begun, facts.resyncs_waiting)
            if one.table_id not in self._rows and one.rows_per_second is None and one.table_id in facts.by_id
        )
        first = _first((one for one in unknown if one.table_id not in facts.resyncs_refused), _MEASURED_AT_ONCE)
        if not first:
            return []
        self._question = MeasureTables(tuple(facts.by_id[one.table_id] for one in first))
        return [Ask(facts.info.id, facts.info, self._question)]


def _first(resyncs: Iterable[TableResync], count: int) -> list[TableResync]:
    """Return those that were asked for first."""
    if count <= 0:
        return []
    return heapq.nsmallest(count, resyncs, key=lambda one: (one.number, one.table_id))

"""Names that change while the catalog is asked: each answer is of another moment, and all tables agree at the end."""

from collections.abc import Iterable, Sequence

import hypothesis.strategies as st
from hypothesis import given, settings

from agent.sources.postgres.stream.catalog_lookup import CatalogTable
from reactor.ids import Ts
from reactor.records.tables.schema_change import TableChange
from tests.example_counts import many
from tests.unit.agent.sources.postgres.stream.test_relation_cache import Rig, declared, known, named

Names = dict[int, str]


class Clocked(Rig):
    """``history``: the names of the tables, state by state. Each question to the catalog first advances the state by
    the next of ``delays``. The state is never older than the row that is shown."""

    def __init__(self, history: Sequence[Names], delays: Iterable[int]) -> None:
        super().__init__(*(known(number, name) for number, name in history[0].items()))
        self._history, self._delays, self._now = history, iter(delays), 0
        self.tracker._look_up = self._looked_up
        self.tracker._names_of = self._named
        self.sink = dict(history[0])

    def show_row(self, number: int, at: int) -> None:
        self._now = max(self._now, at)
        self.show(declared(number, self._history[at][number]), at)
        assert len(set(self.now_known.values())) == len(self.now_known), "two tables have one name"

    @property
    def now_known(self) -> Names:
        return named(self.tracker.known)

    def flush(self, at: int) -> None:
        for record in self.tracker.take(Ts(at)):
            self._apply(record.changes)
        assert self.sink == self.now_known

    def _apply(self, changes: Sequence[TableChange]) -> None:
        """As a sink does: tables leave their places, and take new ones that must be free."""
        for change in changes:
            del self.sink[change.table_id]
        for change in changes:
            assert change.table is not None
            assert change.table.name not in self.sink.values(), f"the place of {change.table.name} is taken"
            self.sink[change.table_id] = change.table.name

    def _tick(self) -> None:
        self._now = min(self._now + next(self._delays, 0), len(self._history) - 1)
        self.names = self._history[self._now]

    def _looked_up(self, number: int) -> CatalogTable:
        self._tick()
        return self._look_up(number)

    def _named(self, ids: Iterable[int]) -> dict[int, tuple[str, str]]:
        self._tick()
        return {id: ("public", self.names[id]) for id in ids}


@st.composite
def histories(draw: st.DrawFn) -> list[Names]:
    """Each state gives two or three tables different names from a small pool."""
    count = draw(st.integers(2, 3))
    pool = ["a", "b", "c", "d"][: count + draw(st.integers(0, 1))]
    orders = draw(st.lists(st.permutations(pool), min_size=2, max_size=8))
    return [dict(zip(range(1, count + 1), order, strict=False)) for order in orders]


@settings(max_examples=many(600))
@given(histories(), st.lists(st.integers(0, 2), max_size=40), st.data())
def test_no_two_tables_get_one_name_whenever_the_catalog_is_asked(
    history: list[Names], delays: list[int], data: st.DataObject
) -> None:
    rig = Clocked(history, delays)
    for at in range(1, len(history)):
        for number in data.draw(st.permutations(sorted(history[0])))[: data.draw(st.integers(0, len(history[0])))]:
            rig.show_row(number, at)
        rig.flush(at)
    last = len(history) - 1
    for number in sorted(history[0]):
        rig.show_row(number, last)
    rig.flush(last)
    assert rig.now_known == history[last]

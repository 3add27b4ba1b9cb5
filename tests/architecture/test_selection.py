"""Selection of tests: each has its turn, and none is lost."""

from collections import Counter
from itertools import product
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests import selection


class _Item:
    """A collected test, as far as the selection looks at it."""

    def __init__(self, name: str, parameters: dict[str, int], *marks: pytest.MarkDecorator) -> None:
        self.nodeid = f"{name}[{'-'.join(map(str, parameters.values()))}]"
        self.callspec = SimpleNamespace(params=parameters, indices=parameters)
        self._marks = {one.name: one.mark for one in marks}

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        return self._marks.get(name)

    def add_marker(self, name: str) -> None:
        self._marks[name] = getattr(pytest.mark, name).mark


def turns(items: list[_Item], monkeypatch: pytest.MonkeyPatch) -> list[set[str]]:
    """The names of the tests that each turn takes."""
    taken = []
    for turn in range(1, 1 + selection.TURNS):
        monkeypatch.setenv("TEST_TURN", str(turn))
        out = set(map(id, selection.left_out(cast("Any", items))))
        taken.append({item.nodeid for item in items if id(item) not in out})
    return taken


def test_each_test_has_one_turn_and_turns_are_as_long(monkeypatch: pytest.MonkeyPatch) -> None:
    items = [
        _Item(f"{file}.py::{test}", {"bed": bed}, pytest.mark.matrix, pytest.mark.minutes(5 * bed))
        for file, test, bed in product(range(2 * selection.TURNS), ("test_a", "test_b"), range(3))
    ]
    taken = turns(items, monkeypatch)
    assert Counter(name for names in taken for name in names) == dict.fromkeys((item.nodeid for item in items), 1)
    assert {len(names) for names in taken} == {12}
    for names in taken:
        assert len({name.partition("::")[0] for name in names}) == 2, "tests of a file share what takes long to start"
    monkeypatch.delenv("TEST_TURN")
    assert selection.left_out(cast("Any", items)) == []  # by name, or with ALL=1


def test_a_long_one_has_a_turn_with_few_others(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [_Item("a.py::test_a", {"case": case}, pytest.mark.matrix, pytest.mark.sample(0)) for case in range(1_000)]
    long = _Item("b.py::test_b", {}, pytest.mark.matrix, pytest.mark.minutes(4))
    sizes = sorted(map(len, turns([*cases, long], monkeypatch)))
    assert sizes[0] < sizes[1] - 100
    assert sizes[-1] - sizes[1] <= 1


def test_cases_with_one_parameter_run_together(monkeypatch: pytest.MonkeyPatch) -> None:
    marks = pytest.mark.matrix, pytest.mark.in_turn("bed")
    cases = [_Item(f"a.py::test_{name}", {"bed": bed, "point": 0}, *marks) for name, bed in product("abcdef", range(3))]
    found = [names for names in turns(cases, monkeypatch) if names]
    assert len(found) == 3
    assert all(len({name.partition("[")[2] for name in names}) == 1 for names in found)


def test_a_daily_run_has_what_is_not_of_the_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    daily = [_Item("a.py::test_a", {"case": case}) for case in range(10)]
    assert all(len(names) == 10 for names in turns(daily, monkeypatch))


def test_property_tests_have_their_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    items = [_Item(f"a.py::test_{number}", {}) for number in range(120)]
    for item in items[:60]:
        vars(item)["obj"] = SimpleNamespace(is_hypothesis_test=True)
    taken = Counter[str]()
    for turn in range(selection.TURNS):
        monkeypatch.setenv("TEST_TURN", str(turn))
        out = set(map(id, selection.left_out(cast("Any", items), only_properties=True)))
        taken.update(item.nodeid for item in items if id(item) not in out)
    assert taken == dict.fromkeys((item.nodeid for item in items[:60]), 1)


def test_another_seed_chooses_other_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [_Item("test_any", {"case": number}, pytest.mark.sample(0.2)) for number in range(500)]
    daily = set[str]()
    for seed in map(str, range(100)):
        monkeypatch.setenv("TEST_SAMPLE", seed)
        items = [_Item("test_any", one.callspec.params, pytest.mark.sample(0.2)) for one in cases]
        selection.mark(cast("Any", items))
        left = {item.nodeid for item in items if item.get_closest_marker("matrix")}
        assert 340 < len(left) < 460
        daily |= {item.nodeid for item in items} - left
    assert daily == {item.nodeid for item in cases}

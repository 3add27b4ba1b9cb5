"""Selection of tests: each case has its turn, and none is lost."""

from collections import Counter
from itertools import product
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests import selection


class _Item:
    """A collected test, as far as the selection looks at it."""

    def __init__(self, name: str, parameters: dict[str, str], *marks: pytest.MarkDecorator) -> None:
        self.nodeid = f"{name}[{'-'.join(parameters.values())}]"
        self.callspec = SimpleNamespace(params=parameters)
        self._marks = {one.name: one.mark for one in marks}

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        return self._marks.get(name)

    def add_marker(self, name: str) -> None:
        self._marks[name] = getattr(pytest.mark, name).mark


def chosen(items: list[_Item]) -> list[_Item]:
    out = set(map(id, selection.left_out(cast("Any", items))))
    return [item for item in items if id(item) not in out]


def test_each_case_runs_on_one_of_the_beds(monkeypatch: pytest.MonkeyPatch) -> None:
    marks = pytest.mark.matrix, pytest.mark.in_turn("bed")
    cases = [
        _Item(f"test_{name}", {"bed": bed, "point": point}, *marks)
        for name, bed, point in product("ab", ("delta", "iceberg", "postgres"), map(str, range(10)))
    ]
    each = [_Item("test_all_is_equal", {"bed": bed}, pytest.mark.matrix, pytest.mark.in_turn(None)) for bed in "xyz"]
    assert chosen([*cases, *each]) == [*cases, *each]  # by name, or with ALL=1
    monkeypatch.setenv("TEST_MATRIX", "turn")
    run = chosen([*cases, *each])
    assert run[-3:] == each
    points = Counter((item.nodeid.partition("[")[0], item.callspec.params["point"]) for item in run[:-3])
    assert set(points.values()) == {1}
    assert len(points) == 20
    assert {item.callspec.params["bed"] for item in run[:-3]} == {"delta", "iceberg", "postgres"}


def test_another_seed_chooses_other_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [_Item("test_any", {"case": str(number)}, pytest.mark.sample(0.2)) for number in range(500)]
    daily, matrix = set[str](), set[str]()
    monkeypatch.setenv("TEST_MATRIX", "turn")
    for seed in map(str, range(100)):
        monkeypatch.setenv("TEST_SAMPLE", seed)
        items = [_Item("test_any", one.callspec.params, pytest.mark.sample(0.2)) for one in cases]
        selection.mark(cast("Any", items))
        left = {item.nodeid for item in items if item.get_closest_marker("matrix")}
        now = {item.nodeid for item in chosen(items)} & left
        assert 340 < len(left) < 460
        assert len(left) / 4 < len(now) < len(left) / 2
        daily |= {item.nodeid for item in items} - left
        matrix |= now
    assert daily == matrix == {item.nodeid for item in cases}

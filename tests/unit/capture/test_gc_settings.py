"""Garbage collection settings: imports and objects of the start are not traversed, answers cause no full collection."""

import gc
from collections.abc import Iterator

import pytest

import capture
from agent.spark import daemon
from capture.gc_settings import collect_seldom
from reactor.messages import SpanCheckpoint


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*before)


def test_many_objects_that_go_at_once_are_not_taken_for_garbage() -> None:
    collect_seldom()
    assert gc.get_freeze_count() > 0
    looks: list[int] = []
    gc.callbacks.append(lambda phase, info: looks.append(info["generation"]) if phase == "start" else None)
    try:
        for _ in range(100):
            kept = [SpanCheckpoint(number, number) for number in range(10_000)]  # type: ignore[arg-type]
            kept.clear()
    finally:
        gc.callbacks.pop()
    assert 2 not in looks


@pytest.mark.matrix
def test_nothing_is_collected_while_modules_are_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    collects: list[bool] = []

    def imported(name: str) -> object:
        collects.append(gc.isenabled())
        raise ImportError(name)

    monkeypatch.setattr("importlib.import_module", imported)
    daemon.preload()
    with pytest.raises(ImportError):
        capture.__getattr__("connect")
    assert len(collects) > len(daemon.PRELOADED)
    assert not any(collects)
    assert gc.isenabled()

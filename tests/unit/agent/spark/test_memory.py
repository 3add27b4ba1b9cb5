"""Memory settings reach this process's children, and the user's own settings win."""

import os

import pytest

from agent.spark import memory


def test_children_inherit_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ARROW_DEFAULT_MEMORY_POOL", "MALLOC_ARENA_MAX", "MALLOC_TRIM_THRESHOLD_"):
        monkeypatch.setenv(name, "x")  # so that it is put back
        monkeypatch.delenv(name)
    memory.give_back_early()
    assert os.environ["ARROW_DEFAULT_MEMORY_POOL"] == "system"
    assert os.environ["MALLOC_ARENA_MAX"] == "2"


def test_what_the_user_has_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALLOC_ARENA_MAX", "8")
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "131072")
    monkeypatch.setenv("ARROW_DEFAULT_MEMORY_POOL", "jemalloc")
    memory.give_back_early()
    assert os.environ["MALLOC_ARENA_MAX"] == "8"
    assert os.environ["ARROW_DEFAULT_MEMORY_POOL"] == "jemalloc"

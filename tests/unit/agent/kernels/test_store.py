"""Store of compiled kernels: a directory that can be written or has them all; and kernels in a sent package."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.kernels import store


@pytest.fixture(autouse=True)
def asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing is remembered, and there are two places."""
    monkeypatch.setattr(store, "_bases", lambda: iter((tmp_path / "first", tmp_path / "second")))
    store.home.cache_clear()
    yield
    store.home.cache_clear()


def closed(monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    monkeypatch.setattr(store, "_can_be_written", lambda found: not found.is_relative_to(place))


def test_a_place_that_cannot_be_written_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed(monkeypatch, tmp_path / "first")
    assert store.home() == tmp_path / "second" / f"kernels-{store.digest()}"


def test_a_place_that_cannot_be_written_but_has_all_is_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "first" / f"kernels-{store.digest()}"
    place.mkdir(parents=True)
    store.complete_marker(place).touch()
    closed(monkeypatch, tmp_path / "first")
    assert store.home() == place


def test_what_another_processor_has_compiled_is_not_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "first" / f"kernels-{store.digest()}"
    place.mkdir(parents=True)
    with monkeypatch.context() as patched:
        patched.setattr(store, "_processor", lambda: "another")
        store.complete_marker(place).touch()
    closed(monkeypatch, tmp_path / "first")
    assert store.home() == tmp_path / "second" / f"kernels-{store.digest()}"


def test_a_package_says_what_its_kernels_are_made_from() -> None:
    described = json.loads(store.described())
    assert described["digest"] == store.digest()
    assert "agent.kernels.civil" in described["modules"]


def test_a_temporary_place_of_another_user_is_not_ours(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "link").symlink_to(tmp_path)
    assert not store._is_ours(tmp_path / "open")
    assert not store._is_ours(tmp_path / "link")
    assert store._is_ours(tmp_path / "new")

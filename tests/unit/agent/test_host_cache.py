"""Objects are fetched once for a machine, whoever asks, and the oldest go when it is too much."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from agent import host_cache


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("WEIR_HOST_CACHE", str(tmp_path))
    host_cache.directory.cache_clear()
    yield
    host_cache.directory.cache_clear()


def test_of_many_who_want_it_one_fetches_it() -> None:
    fetched: list[int] = []

    def fetch() -> bytes:
        fetched.append(1)
        return b"content"

    with ThreadPoolExecutor(8) as pool:
        paths = list(pool.map(lambda _: host_cache.fetch_path("s3://b/a", fetch), range(32)))
    assert {Path(path).read_bytes() for path in paths} == {b"content"}
    assert len(fetched) == 1


def test_what_was_not_fetched_is_not_kept() -> None:
    def fails() -> bytes:
        raise FileNotFoundError("gone")

    with pytest.raises(FileNotFoundError):
        host_cache.fetch_path("s3://b/a", fails)
    assert Path(host_cache.fetch_path("s3://b/a", lambda: b"there")).read_bytes() == b"there"


def test_what_was_written_is_there_for_others() -> None:
    host_cache.put("s3://b/a", b"one")
    assert host_cache.get("s3://b/a") == b"one"
    assert host_cache.get("s3://b/other") is None
    host_cache.put("s3://b/a", b"two")
    assert host_cache.get("s3://b/a") == b"two"


def test_the_oldest_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEIR_HOST_CACHE_GIB", str(1000 / (1 << 30)))
    monkeypatch.setattr(host_cache, "_CHECK_BYTES", 1)
    for number in range(20):
        host_cache.put(f"s3://b/{number}", b"x" * 100)
    assert host_cache.get("s3://b/0") is None
    assert host_cache.get("s3://b/19") is not None
    files = [path for path in host_cache.directory().iterdir() if not path.name.startswith("lock-")]
    assert sum(path.stat().st_size for path in files) <= 1100

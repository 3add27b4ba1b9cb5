"""A real server of Spark Connect: its token, a Python without our checkout, and a server that dies and comes back."""

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark import cloudpickle

from agent.errors import JobError
from agent.spark.executor import SparkExecutor
from reactor.errors import WeirError
from tests.acceptance.spark_connect import TOKEN, ConnectServer
from tests.integration.agent.spark.test_standalone import look, python
from tests.patience import patient

pytestmark = [pytest.mark.spark, pytest.mark.matrix, pytest.mark.timeout(400)]

__all__ = ["python"]  # a fixture

_START_S = 60.0


@pytest.fixture(scope="module", autouse=True)
def by_value() -> Iterator[None]:
    """Executors do not have this module."""
    modules = [sys.modules[__name__], sys.modules[look.__module__]]
    for module in modules:
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    yield
    for module in modules:
        cloudpickle.unregister_pickle_by_value(module)  # type: ignore[no-untyped-call]


@pytest.fixture
def server(tmp_path: Path, python: Path) -> Iterator[ConnectServer]:
    server = ConnectServer(tmp_path, python)
    server.start()
    yield server
    server.kill()


def own_pid(_: int) -> int:
    return os.getpid()


def mapped(executor: SparkExecutor) -> list[int]:
    """As flushes are: tried again while the error may pass."""
    texts: list[str] = []
    deadline = time.monotonic() + patient(_START_S)
    while time.monotonic() < deadline:
        try:
            found = executor.map(own_pid, [0, 1], description="look")
        except WeirError as error:
            texts.append(str(error))
            time.sleep(0.2)
        else:
            assert not [text for text in texts if "\n" in text or TOKEN in text]
            return found
    raise AssertionError(texts[-1])


def test_a_server_is_used_with_its_token_also_after_it_has_died(server: ConnectServer, tmp_path: Path) -> None:
    executor = SparkExecutor(server.url(), work_dir=tmp_path / "work")
    try:
        mapped(executor)
        for where, _, _, misses, _ in executor.map(look, [0, 1], description="look"):
            assert str(Path.cwd()) not in where, "the package was shipped"
            assert misses == 0, "its kernels are compiled"
        server.kill()
        with pytest.raises(JobError, match="it is tried again") as failed:
            executor.map(own_pid, [0], description="look")
        assert "\n" not in str(failed.value)
        server.start()
        assert mapped(executor)
        for where, *_ in executor.map(look, [0], description="look"):
            assert str(Path.cwd()) not in where, "it was shipped again"
        stranger = SparkExecutor(server.url("guessed"), work_dir=tmp_path / "stranger")
        with pytest.raises(WeirError, match=r"(?i)token|unauthenticated") as refused:
            stranger.map(own_pid, [0], description="look")
        assert "\n" not in str(refused.value)
        assert "guessed" not in str(refused.value)
        stranger.stop()
    finally:
        executor.stop()

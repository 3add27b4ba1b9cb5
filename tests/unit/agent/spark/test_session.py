"""A session has ended when its JVM has, when the cluster has stopped it, or when its driver listens no more."""

from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JError
from pyspark import SparkContext

from agent.spark import session as spark_session


def context(answer: object) -> Any:
    """A session whose driver says so, or raises that, when it is asked whether it is stopped."""

    def is_stopped() -> object:
        if isinstance(answer, Exception):
            raise answer
        return answer

    inner = SimpleNamespace(isStopped=is_stopped)
    return SimpleNamespace(sparkContext=SimpleNamespace(_jsc=SimpleNamespace(sc=lambda: inner)))


@pytest.mark.parametrize(
    ("code", "answer", "ended"),
    [
        (1, False, True),
        (None, False, False),
        (None, True, True),
        (None, ConnectionRefusedError("refused"), True),
        (None, Py4JError("busy"), False),
    ],
)
def test_whether_a_session_has_ended(
    monkeypatch: pytest.MonkeyPatch, code: int | None, answer: object, *, ended: bool
) -> None:
    gateway = SimpleNamespace(proc=SimpleNamespace(poll=lambda: code))
    monkeypatch.setattr(SparkContext, "_gateway", gateway)
    assert spark_session._has_ended(context(answer)) is ended

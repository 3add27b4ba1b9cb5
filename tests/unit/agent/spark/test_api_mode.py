"""PySpark's mode in a process with a driver, whatever its environment says about Spark Connect."""

import os
from types import SimpleNamespace

import pytest
from pyspark.sql.connect.session import SparkSession as ConnectSession
from pyspark.sql.utils import is_remote

from agent.errors import JobError
from agent.spark.api_mode import classic_mode, leave_connect_mode

_REMOTE = "sc://spark:15002"


@pytest.fixture(autouse=True)
def _of_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "SPARK_CONNECT_MODE_ENABLED": "1",
        "SPARK_REMOTE": _REMOTE,
        "SPARK_API_MODE": "connect",
    }.items():
        monkeypatch.setenv(name, value)


def test_a_driver_is_started_in_spite_of_the_environment() -> None:
    with classic_mode():
        assert not is_remote()
        assert not os.environ.keys() & {"SPARK_REMOTE", "SPARK_API_MODE"}
    assert not is_remote(), "jobs would be taken for those of Spark Connect"
    assert os.environ["SPARK_REMOTE"] == _REMOTE, "it is the user's"


def test_a_session_that_has_ended_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ConnectSession, "_default_session", SimpleNamespace(is_stopped=True))
    leave_connect_mode()
    assert not is_remote()


def test_beside_a_session_of_spark_connect_there_is_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ConnectSession, "_default_session", SimpleNamespace(is_stopped=False))
    with pytest.raises(JobError, match="sc://…"), classic_mode():
        pass
    leave_connect_mode()
    assert is_remote(), "the user's session needs it"

"""A master's name says what kind of cluster it is, and a standalone one is looked for before a JVM is started."""

import socket

import pytest

from agent.spark import masters


def test_addresses_of_masters() -> None:
    assert masters.addresses("spark://a:1,b:2,c") == [("a", 1), ("b", 2), ("c", 7077)]
    assert masters.addresses("spark://[::1]:7") == [("::1", 7)]


@pytest.mark.parametrize("master", ["local[2]", "yarn", "k8s://https://h:443", "sc://h"])
def test_only_a_standalone_master_is_looked_for(master: str) -> None:
    assert masters.unreachable(master) == ""


def test_one_master_that_answers_is_enough() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        silent, found = taken.getsockname()[1], listening.getsockname()[1]
        assert masters.unreachable(f"spark://127.0.0.1:{silent},127.0.0.1:{found}") == ""
        reason = masters.unreachable(f"spark://127.0.0.1:{silent}")
    assert reason.startswith("no master answers at spark://127.0.0.1:")
    assert "connection refused" in reason

"""Records in the log of an idle server: how often they are written."""

from unittest.mock import Mock

import pytest

from agent.errors import SourceAuthError, SourceError, SourceUnreachableError, StatementRefusedError
from agent.sources.postgres.server import idle
from agent.sources.postgres.server.idle import IdleServer


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(idle, "time", clock)
    return clock


def seconds_written(server: IdleServer, connection: Mock, clock: Clock, seconds: int) -> list[float]:
    """When it writes, if it is asked ten times a second."""
    begin, found = clock.now_s, list[float]()
    for _ in range(10 * seconds):
        before = connection.query.call_count
        server.write(connection)
        found += [round(clock.now_s - begin, 1)] if connection.query.call_count > before else []
        clock.now_s += 0.1
    return found


def test_pauses_grow_while_something_waits(clock: Clock) -> None:
    server, connection = IdleServer(), Mock()
    assert seconds_written(server, connection, clock, 20) == pytest.approx([0.0, 0.5, 1.5, 3.5, 7.5, 15.5], abs=0.6)
    server.rest()
    assert seconds_written(server, connection, clock, 3) == pytest.approx([0.5, 1.0, 2.0], abs=0.3)


@pytest.mark.parametrize("error", [StatementRefusedError("no"), SourceAuthError("permission denied")])
def test_a_server_that_refuses_is_left_alone(error: SourceError) -> None:
    connection = Mock()
    connection.query.side_effect = error
    IdleServer().write(connection)
    connection.query.side_effect = SourceUnreachableError("gone")
    with pytest.raises(SourceUnreachableError):
        IdleServer().write(connection)

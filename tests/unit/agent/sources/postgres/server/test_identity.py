"""Timelines as servers tell them, also those that tell nothing."""

from typing import Any

import pytest

from agent.errors import SourceUnreachableError, StatementRefusedError
from agent.sources.postgres.server.connection import Connection
from agent.sources.postgres.server.identity import primary_timeline, read_branches, refuse_another
from agent.sources.postgres.server.uri import parse_uri

_HISTORY = "1\t0/3000148\tno recovery target specified\n\n2\t1/A0\tbefore 2026-11-30 20:00:00+00\n"


class Played(Connection):
    """A session whose server answers with these in turn."""

    target = parse_uri("postgresql://u@h/d")

    def __init__(self, *answers: str | Exception | None) -> None:
        self._answers = list(answers)

    def query(self, sql: str, **_: object) -> list[tuple[Any, ...]]:
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return [("00000003.history", answer)] if sql.startswith("TIMELINE_HISTORY") else [(answer,)]


@pytest.mark.parametrize(
    ("timeline", "answer", "branches"),
    [
        (3, _HISTORY, {1: 0x3000148, 2: 0x1_0000_00A0}),
        (2, "", {}),
        (2, "# nothing", {}),
        (2, StatementRefusedError("could not open the file"), {}),
        (1, RuntimeError("the first timeline has no history"), {}),
    ],
)
def test_the_branches_of_a_timeline(timeline: int, answer: str | Exception, branches: dict[int, int]) -> None:
    session: Any = Played(answer)
    assert read_branches(session, timeline) == branches


@pytest.mark.parametrize(
    ("answer", "timeline"), [("0000001F", 31), (StatementRefusedError("pg_walfile_name is not supported"), 0)]
)
def test_the_timeline_of_a_primary(answer: str | Exception, timeline: int) -> None:
    session: Any = Played("f", answer)
    assert primary_timeline(session) == timeline


def test_a_session_with_another_server_than_the_streams_is_refused() -> None:
    session: Any = Played()
    for found in (0, 2):
        refuse_another(session, found, 2)
    with pytest.raises(SourceUnreachableError, match="answers on timeline 1, and the stream is on 2"):
        refuse_another(session, 1, 2)


def test_a_standby_is_no_primary() -> None:
    session: Any = Played("t")
    with pytest.raises(SourceUnreachableError, match="is a standby; it is tried again"):
        primary_timeline(session)

"""Quiet moves: how often, and when, the heads of a capture's logs move while nothing is committed."""

from contextlib import ExitStack
from typing import cast

import pytest

from agent.log.quiet import QuietMoves
from reactor.store.port import MetaStore


def moves(stack: ExitStack, logs: int) -> QuietMoves:
    quiet = QuietMoves(cast("MetaStore", None))
    for _ in range(logs):
        stack.enter_context(quiet.of_a_log())
    return quiet


@pytest.mark.parametrize("logs", [0, 1, 10])
def test_few_logs_move_as_each_would_alone(logs: int) -> None:
    with ExitStack() as stack:
        assert moves(stack, logs).next_at(100.0, 1.0) == 101.0


@pytest.mark.parametrize(("logs", "interval_s"), [(20, 2.0), (50, 5.0), (500, 5.0)])
def test_many_logs_move_less_often_and_those_of_one_turn_together(logs: int, interval_s: float) -> None:
    with ExitStack() as stack:
        quiet = moves(stack, logs)
        together = {quiet.next_at(moved_at, 1.0) for moved_at in (100.01, 100.1, 100.25)}
        assert together == {100.25 + interval_s}
        assert quiet.next_at(100.26, 1.0) == 100.5 + interval_s


def test_a_log_that_has_ended_counts_no_more() -> None:
    with ExitStack() as stack:
        quiet = moves(stack, 40)
        assert quiet.next_at(0.0, 1.0) == 4.0
        stack.close()
        assert quiet.next_at(0.0, 1.0) == 1.0

"""Validation after every test: owners and agents that the test made must be in a state that they may be in."""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from agent.control.agent import Agent
from agent.control.processors import Processors
from owner.owner import Owner

#: a test that makes more of them is one that generates its cases
_KEPT = 100


@contextmanager
def watching() -> Iterator[deque[Any]]:
    """The newest owners and agents, as they are made."""
    made: deque[Any] = deque(maxlen=_KEPT)
    with (
        mock.patch.object(Owner, "__init__", _noting(Owner.__init__, made)),
        mock.patch.object(Agent, "__init__", _noting(Agent.__init__, made)),
        mock.patch.object(Processors, "__init__", _noting(Processors.__init__, made)),
    ):
        yield made


def validate(made: deque[Any]) -> None:
    """:raises AssertionError: one of them is in a state that it cannot be in."""
    while made:
        made.pop().validate()


def _noting(init: Callable[..., None], made: deque[Any]) -> Callable[..., None]:
    def noted(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        made.append(self)

    return noted

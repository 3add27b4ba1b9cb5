"""Reactor protocol: decisions as a function of state, inbox and time, driven by the worker loop."""

from collections.abc import Sequence
from typing import Protocol

from reactor.state import ClusterState


class Reactor(Protocol):
    """Plain code without clock, tasks or sockets. It reads the state and changes it only through ``Commit`` effects."""

    def tick(self, state: ClusterState, inbox: Sequence[object], now: float) -> Sequence[object]:
        """Make one decision. Each inbox entry is passed to exactly one tick; the state includes everything committed
        before.

        :raises ReactorFinishedError: nothing more to do; what earlier ticks requested is committed.
        """
        ...

"""Reactor protocol: decisions as a function of the state, the inbox and the time, driven by the worker loop."""

from collections.abc import Sequence
from typing import Protocol

from reactor.state import ClusterState


class Reactor(Protocol):
    """Plain code: no clock, no task, no socket. It reads the state and changes it only through ``Commit`` effects."""

    def tick(self, state: ClusterState, inbox: Sequence[object], now: float) -> Sequence[object]:
        """One decision. Each inbox entry is seen by exactly one tick; the state holds everything committed before.

        :raises ReactorFinishedError: nothing more to do; what earlier ticks asked for is committed already.
        """
        ...

"""Effects: the closed set of what a decision may ask for; ``capture.member`` carries them out.

A machine returns effects and never acts. What an effect brings back (a reply, a result, a failure) comes in again
as an event, at the performer's pace.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from reactor.messages import Message
from reactor.patches import PatchGroup
from reactor.questions import Ask


@dataclass(frozen=True, slots=True)
class Send:
    """Give ``message`` to its receiver: in order per sender and topic, at least once while both live."""

    message: Message


@dataclass(frozen=True, slots=True)
class Commit:
    """Apply one patch group to etcd, all of it or nothing; re-run on conflict with fresh values."""

    group: PatchGroup


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Tick again no later than ``at`` (seconds of the clock that ``now`` was read from)."""

    at: float


@dataclass(frozen=True, slots=True)
class Log:
    """One structured log line: decisions hold no logger."""

    level: str
    event: str
    fields: tuple[tuple[str, object], ...] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """Complete an operator's job: ``error`` empty when it was done."""

    job_id: str
    error: str = ""
    value: object = None


@dataclass(frozen=True, slots=True)
class Resign:
    """Give up ownership; the capture and its processors stay."""


Effect = Send | Commit | WakeAt | Log | Answer | Ask[Any] | Resign
#: carries out what the worker does not: also what a reactor asks beyond this set (``agent.control.processors``)
Perform = Callable[[Any], None]

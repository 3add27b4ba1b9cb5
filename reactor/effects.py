"""Effects: the closed set of actions that a decision may request; ``capture.member`` performs them.

A state machine returns effects and performs none itself. The outcome of an effect (a reply, a result, a failure)
returns as an event, whenever the performer is done.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from reactor.messages import Message
from reactor.patches import PatchGroup
from reactor.questions import Ask


@dataclass(frozen=True, slots=True)
class Send:
    """Send ``message`` to its receiver: in order per sender and topic, at least once while both live."""

    message: Message


@dataclass(frozen=True, slots=True)
class Commit:
    """Apply one patch group to etcd atomically; evaluated again on fresh values after a conflict. ``jobs``: those whose
    answers depend on it."""

    group: PatchGroup
    jobs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Tick again no later than ``at`` (seconds of the clock that ``now`` was read from)."""

    at: float


@dataclass(frozen=True, slots=True)
class Log:
    """Write one structured log line; decisions hold no logger."""

    level: str
    event: str
    fields: tuple[tuple[str, object], ...] = ()


#: the code of a job that was decided on records which had changed; nothing of it is stored
CONFLICT: Final = "Conflict"


@dataclass(frozen=True, slots=True)
class Answer:
    """Complete an operator's job: ``error`` is empty on success, and otherwise ``value`` is its code."""

    job_id: str
    error: str = ""
    value: object = None


@dataclass(frozen=True, slots=True)
class Resign:
    """Give up ownership; the capture and its processors continue."""


Effect = Send | Commit | WakeAt | Log | Answer | Ask[Any] | Resign
#: performs all effects other than the worker's own, also those outside this set (``agent.control.processors``)
Perform = Callable[[Any], None]

"""Answers in parts: put together, since a part must never pass for the whole.

A capture that answers as a run not heard of before says what it has, and what it does not name it does not have. So
its parts count only when they have come from the first to the last without a gap; with a gap, it is asked again.
"""

from dataclasses import dataclass, field

from reactor.ids import CaptureId
from reactor.messages import HeartbeatResponse, SpanStatus


@dataclass(slots=True)
class _Begun:
    """``epoch``: the run that answers; ``next``: the part that must come now."""

    epoch: str
    parts: int
    next: int = 0
    statuses: list[SpanStatus] = field(default_factory=list)


class Answers:
    """What has come so far, by capture."""

    def __init__(self) -> None:
        self._begun: dict[CaptureId, _Begun] = {}

    def take(self, sender: CaptureId, epoch: str, response: HeartbeatResponse) -> tuple[SpanStatus, ...] | None:
        """Every status of the answer that ``response`` is the last part of; None while it is not whole."""
        if response.parts == 1:
            self.forget(sender)
            return response.statuses
        if response.part == 0:
            self._begun[sender] = _Begun(epoch, response.parts)
        begun = self._begun.get(sender)
        if begun is None or (begun.epoch, begun.parts, begun.next) != (epoch, response.parts, response.part):
            self.forget(sender)
            return None
        begun.statuses += response.statuses
        begun.next += 1
        if begun.next < begun.parts:
            return None
        self.forget(sender)
        return tuple(begun.statuses)

    def forget(self, sender: CaptureId) -> None:
        self._begun.pop(sender, None)

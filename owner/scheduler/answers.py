"""Answers in parts: reassembles heartbeat answers, so that a part is never taken for the whole.

A capture whose processor has restarted reports all it has; spans that it does not name it does not have. So its parts
count only when they have arrived from the first to the last without a gap; after a gap it is asked again.
"""

from dataclasses import dataclass, field, replace

from reactor.ids import CaptureId, TableSpan
from reactor.messages import HeartbeatResponse, SpanStatus


@dataclass(slots=True)
class _Begun:
    """``epoch``: the run that answers; ``next``: the number of the next part."""

    epoch: str
    parts: int
    next: int = 0
    statuses: list[SpanStatus] = field(default_factory=list)
    joined: list[TableSpan] = field(default_factory=list)


class Answers:
    """The incomplete answers, by capture."""

    def __init__(self) -> None:
        self._begun: dict[CaptureId, _Begun] = {}

    def take(self, sender: CaptureId, epoch: str, response: HeartbeatResponse) -> HeartbeatResponse | None:
        """Return the answer that ``response`` completes as one; None if it is incomplete."""
        if response.parts == 1:
            self.forget(sender)
            return response
        if response.part == 0:
            self._begun[sender] = _Begun(epoch, response.parts)
        begun = self._begun.get(sender)
        if begun is None or (begun.epoch, begun.parts, begun.next) != (epoch, response.parts, response.part):
            self.forget(sender)
            return None
        begun.statuses += response.statuses
        begun.joined += response.joined
        begun.next += 1
        if begun.next < begun.parts:
            return None
        self.forget(sender)
        return replace(response, statuses=tuple(begun.statuses), joined=tuple(begun.joined), part=0, parts=1)

    def forget(self, sender: CaptureId) -> None:
        self._begun.pop(sender, None)

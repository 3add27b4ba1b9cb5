"""Scheduler view: the state of spans and captures that policies read, and the arithmetic they share."""

from collections.abc import Mapping
from dataclasses import dataclass

from owner.scheduler.captures import CaptureStatus
from owner.scheduler.span_index import SpanIndex
from owner.scheduler.tasks import MoveTask
from reactor.ids import CaptureId


@dataclass(frozen=True, slots=True)
class View:
    """``span_index`` must not be changed by policies. ``owner``: the capture this owner runs on."""

    span_index: SpanIndex
    captures: Mapping[CaptureId, CaptureStatus]
    owner: CaptureId
    max_tasks: int = 10
    add_batch_size: int = 50

    @property
    def serving(self) -> list[CaptureId]:
        """Return the captures that may be given spans, in id order."""
        return sorted(id for id, status in self.captures.items() if status is CaptureStatus.INITIALIZED)

    @property
    def has_stopping(self) -> bool:
        """Whether a capture is leaving that still has spans; one with a fault of its own may stay for long without."""
        stopping = (id for id, status in self.captures.items() if status is CaptureStatus.STOPPING)
        return any(self.span_index.held_by(id) for id in stopping)

    @property
    def is_settled(self) -> bool:
        """Whether every span is replicating, with no change pending."""
        return self.span_index.is_settled

    def loads(self) -> dict[CaptureId, int]:
        """Return the number of spans in any role by serving capture."""
        return {capture: len(self.span_index.held_by(capture)) for capture in self.serving}


def least_loaded(loads: Mapping[CaptureId, int]) -> CaptureId:
    """Return the capture with the fewest spans; of equal ones the smallest id, so that equal views give equal plans."""
    return min(loads, key=lambda capture: (loads[capture], capture))


def level(view: View, *, limit: int) -> list[MoveTask]:
    """Return at most ``limit`` moves from the fullest to the emptiest captures, as long as each reduces the
    difference."""
    held = {capture: view.span_index.written_by(capture) for capture in view.serving}
    loads = {capture: len(spans) for capture, spans in held.items()}
    tasks: list[MoveTask] = []
    while len(tasks) < limit:
        source = max(loads, key=lambda capture: (loads[capture], capture))
        target = least_loaded(loads)
        if loads[source] - loads[target] <= 1:
            break
        tasks.append(MoveTask(held[source].pop(), target))
        loads[source] -= 1
        loads[target] += 1
    return tasks

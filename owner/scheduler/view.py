"""What policies look at: one immutable picture of spans and captures, and the arithmetic they share."""

from collections.abc import Mapping
from dataclasses import dataclass

from owner.scheduler.captures import CaptureStatus
from owner.scheduler.replication import ReplicationSet, SetState
from owner.scheduler.tasks import MoveTask
from reactor.ids import CaptureId, TableSpan


@dataclass(frozen=True, slots=True)
class View:
    """``spans``: those that should be replicated, sorted. ``owner``: the capture this owner runs on."""

    spans: tuple[TableSpan, ...]
    sets: Mapping[TableSpan, ReplicationSet]
    captures: Mapping[CaptureId, CaptureStatus]
    owner: CaptureId
    max_tasks: int = 10
    add_batch_size: int = 50

    @property
    def serving(self) -> list[CaptureId]:
        """Captures that may be given spans, in id order."""
        return sorted(id for id, status in self.captures.items() if status is CaptureStatus.INITIALIZED)

    @property
    def has_stopping(self) -> bool:
        return CaptureStatus.STOPPING in self.captures.values()

    @property
    def is_settled(self) -> bool:
        """Every span is written by somebody, undisturbed."""
        return all(_is_replicating(self.sets.get(span)) for span in self.spans) and all(
            _is_replicating(replication) for replication in self.sets.values()
        )

    def written_by(self) -> dict[CaptureId, list[TableSpan]]:
        """Spans by their writer, sorted; every capture is there."""
        result: dict[CaptureId, list[TableSpan]] = {capture: [] for capture in sorted(self.captures)}
        for span in sorted(self.sets):
            primary = self.sets[span].primary
            if primary is not None:
                result.setdefault(primary, []).append(span)
        return result

    def loads(self) -> dict[CaptureId, int]:
        """Spans in any role by serving capture."""
        result = dict.fromkeys(self.serving, 0)
        for replication in self.sets.values():
            for capture in replication.captures.keys() & result.keys():
                result[capture] += 1
        return result


def least_loaded(loads: Mapping[CaptureId, int]) -> CaptureId:
    """Ties go to the smaller id, so that the same picture always gives the same plan."""
    return min(loads, key=lambda capture: (loads[capture], capture))


def level(view: View, *, limit: int) -> list[MoveTask]:
    """At most ``limit`` moves from the fullest to the emptiest captures, as long as that evens anything out."""
    held = {capture: list(spans) for capture, spans in view.written_by().items() if capture in set(view.serving)}
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


def _is_replicating(replication: ReplicationSet | None) -> bool:
    return replication is not None and replication.state is SetState.REPLICATING

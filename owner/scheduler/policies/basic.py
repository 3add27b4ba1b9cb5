"""Basic policy: replicates every wanted span, and removes all others."""

from itertools import islice

from owner.scheduler.replication import SetState
from owner.scheduler.tasks import AddTask, Burst, RemoveTask
from owner.scheduler.view import View, least_loaded

_REMOVABLE = (SetState.PREPARE, SetState.COMMIT, SetState.REPLICATING)


def plan(view: View) -> list[Burst]:
    """Return up to two bursts: additions (limited in number, to the least loaded captures) and all removals."""
    bursts = (Burst(tuple(_additions(view))), Burst(tuple(_removals(view))))
    return [burst for burst in bursts if burst.tasks]


def _additions(view: View) -> list[AddTask]:
    loads = view.loads()
    if not loads:
        return []
    tasks = []
    for span in islice(view.span_index.missing, view.add_batch_size):
        capture = least_loaded(loads)
        loads[capture] += 1
        tasks.append(AddTask(span, capture))
    return tasks


def _removals(view: View) -> list[RemoveTask]:
    sets = view.span_index.sets
    return [RemoveTask(span) for span in sorted(view.span_index.surplus) if sets[span].state in _REMOVABLE]

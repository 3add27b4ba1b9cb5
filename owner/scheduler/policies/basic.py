"""Basic policy: every span that should be replicated is, and no other is."""

from itertools import islice

from owner.scheduler.replication import SetState
from owner.scheduler.tasks import AddTask, Burst, RemoveTask
from owner.scheduler.view import View, least_loaded


def plan(view: View) -> list[Burst]:
    """Additions (a batch a time, to the least loaded captures) and removals (all) as up to two bursts."""
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
    return [RemoveTask(span) for span in sorted(view.span_index.surplus) if sets[span].state is SetState.REPLICATING]

"""Every span that should be replicated is, and no other is."""

from owner.scheduler.replication import SetState
from owner.scheduler.tasks import AddTask, Burst, RemoveTask
from owner.scheduler.view import View, least_loaded
from reactor.ids import TableSpan


def plan(view: View) -> list[Burst]:
    """Additions (a batch a time, to the least loaded captures) and removals (all) as up to two bursts."""
    bursts = (Burst(tuple(_additions(view))), Burst(tuple(_removals(view))))
    return [burst for burst in bursts if burst.tasks]


def _additions(view: View) -> list[AddTask]:
    loads = view.loads()
    missing = [span for span in view.spans if _nobody_has(view, span)][: view.add_batch_size]
    if not loads:
        return []
    tasks = []
    for span in missing:
        capture = least_loaded(loads)
        loads[capture] += 1
        tasks.append(AddTask(span, capture))
    return tasks


def _removals(view: View) -> list[RemoveTask]:
    wanted = set(view.spans)
    return [
        RemoveTask(span) for span in sorted(view.sets.keys() - wanted) if view.sets[span].state is SetState.REPLICATING
    ]


def _nobody_has(view: View, span: TableSpan) -> bool:
    replication = view.sets.get(span)
    return replication is None or replication.state is SetState.ABSENT

"""Renders the transition tables of all machines to ``docs/states``: ``python -m tests.architecture.render_states``.

Every cell is what the machine itself did when it was put into that state and given that event, so a page cannot say
anything else than the code. ``test_states`` compares the pages that are checked in.
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from agent.control import effects
from agent.control.table_span import EVENTS, LATE, LocalSpan, Order
from agent.control.unit_slot import UnitSlot
from owner.errors import JobRefusedError, ScheduleError, SpanError
from owner.feed import sync_points
from owner.feed.holds import hold_stages
from owner.feed.holds.hold_stages import FLOWS
from owner.feed.state import FAST_FAIL, FENCED, PASSING, Trigger, step
from owner.feed.sync_points import PHASES, Phase
from owner.feed.workers import Placement, Stage, Worker, WorkerManager, WorkerOrder
from owner.metadata import schedule
from owner.metadata.schedule import ScheduledChangefeed
from owner.progress.units import SEQUENCES, current_unit
from owner.scheduler.replication import Order as SpanOrder
from owner.scheduler.replication import ReplicationSet, Role, SetState
from owner.settings import WorkerSettings
from reactor.errors import InvalidTransitionError
from reactor.ids import CaptureId, TableSpan, Ts
from reactor.messages import (
    AddSpan,
    SpanCheckpoint,
    SpanState,
    SpanStatus,
    StartWorker,
    StopWorker,
    WorkerStage,
    WorkerStatus,
)
from reactor.records.capture import OwnerState
from reactor.records.changefeed import FeedState, Mode, RunningError, Unit, UnitRecord, UnitStage
from reactor.records.tables.held import HeldTable, HoldStage
from reactor.transitions import History
from tests.unit.owner.owner_build import FEED, info

DIRECTORY = Path(__file__).parents[2] / "docs" / "states"
COMMAND = "python -m tests.architecture.render_states"
SPAN, ZERO = TableSpan(1), SpanCheckpoint(Ts(0), Ts(0))
CAPTURES = tuple(CaptureId(name) for name in "abcd")
FAULT = RunningError(code="SourceUnreachable", message="down")
SAID = tuple(state for state in SpanState if state is not SpanState.UNKNOWN)
NOTHING = "·"


def table(corner: str, columns: Iterable[str], rows: Iterable[tuple[str, Sequence[str]]]) -> str:
    head = [corner, *columns]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join([name, *cells]) + " |" for name, cells in rows]
    return "\n".join(lines)


def page(title: str, *parts: str) -> str:
    return "\n\n".join([f"# {title}", *parts, f"*Rendered from the machine by `{COMMAND}`.*"]) + "\n"


# A changefeed's state


def feed_state() -> str:
    def cell(state: FeedState, trigger: Trigger) -> str:
        before = info(state, epoch=1)
        try:
            after = step(before, trigger, error=FAULT)
        except JobRefusedError:
            return "refused"
        except InvalidTransitionError:
            return NOTHING
        return f"**{after.state}**" if after.epoch > before.epoch else after.state

    rows = [(state, [cell(state, trigger) for trigger in Trigger]) for state in FeedState]
    return page(
        "States of a changefeed",
        "`owner/feed/state.py`. Rows: the state; columns: what happens. **Bold**: its parts start or stop, so its "
        "epoch grows and messages of the previous run are refused everywhere. *refused*: the operator gets an error. "
        f"`{NOTHING}`: impossible; if it happens, `InvalidTransition` is raised with the steps before it.",
        table("state", [trigger.value for trigger in Trigger], rows),
        "An error is *fatal* if it is marked so, or if its code is one of "
        f"{', '.join(f'`{code}`' for code in sorted(FAST_FAIL))}. "
        f"{', '.join(f'`{code}`' for code in sorted(FENCED))} mean that a stale writer was refused, as it "
        "should be: the changefeed runs again under its next epoch. Waits grow from 10 s by two up to 10 min; without "
        "any progress for `stuck-seconds` the next error is the last. "
        f"{', '.join(f'`{code}`' for code in sorted(PASSING))} are errors of source, sink or log storage as a whole, "
        "which end when somebody repairs their cause: they are retried without limit, at least once a minute, and "
        "that time does not count for `stuck-seconds`. *Stopped too long* is `gc-ttl-seconds`: the slot is released "
        "and the error is `GCTTLExceeded`.",
        "A running changefeed is also a `warning` for as long as one of its tables is held (docs/held-tables.md), its "
        "source cannot be read, or nothing makes progress.",
    )


# Held tables


def held_table() -> str:
    stages = (None, *HoldStage)

    def record(stage: HoldStage | None) -> HeldTable | None:
        return None if stage is None else HeldTable(table_id=1, stage=stage, error=FAULT)

    def cell(before: HoldStage | None, trigger: hold_stages.Trigger) -> str:
        for after in stages:
            if (before, after) == (None, None):
                continue
            try:
                hold_stages.note_step(History("table"), trigger, record(before), record(after))
            except InvalidTransitionError:
                continue
            return f"→ **{after or FLOWS}**"
        return NOTHING

    triggers = list(hold_stages.Trigger)
    return page(
        "A table that is held",
        "`owner/feed/holds/hold_stages.py` has the transitions, `owner/feed/holds/held.py` their conditions. A table "
        "that flows has no record. A *held* table has no spans; a *tried* one is written again, catches up, and delays "
        f"no other; the part of the log that a *lost* one needs is removed. `{NOTHING}`: impossible; if it happens, "
        "`InvalidTransition` is raised with the steps before it. An error of a table that is held or lost already "
        "changes nothing. *Time, or an operator*: 5 s after the first error, then twice as long each time, at most 5 "
        "min; a table that the source cannot follow, or that an operator has paused, waits for an operator. *At the "
        "checkpoint*: all its spans are written up to the checkpoint that the same commit stores.",
        "Its Ts only grows: everything at or below it is in the sink, and the log above it is kept.",
        table(
            "stage",
            [trigger.value for trigger in triggers],
            [(stage or FLOWS, [cell(stage, trigger) for trigger in triggers]) for stage in stages],
        ),
    )


# Sync points


def sync_point() -> str:
    def cell(phase: Phase, trigger: sync_points.Trigger) -> str:
        after = PHASES.get((phase, trigger))
        return f"→ **{after}**" if after is not None else NOTHING

    triggers = list(sync_points.Trigger)
    return page(
        "A sync point of a changefeed",
        "`owner/feed/sync_points.py`. While it is *holding* or *reading*, no span is written past its Ts. "
        f"`{NOTHING}`: impossible; if it happens, `InvalidTransition` is raised with the steps before it.",
        table(
            "phase",
            [trigger.value for trigger in triggers],
            [(phase.value, [cell(phase, trigger) for trigger in triggers]) for phase in Phase],
        ),
    )


# One span on the owner's side

_ROLES = {Role.PRIMARY: "P", Role.SECONDARY: "S", Role.UNDETERMINED: "U"}
Config = tuple[SetState, tuple[Role, ...]]


def _set_in(config: Config) -> ReplicationSet:
    made = ReplicationSet(SPAN, Ts(0))
    made.state = config[0]
    made.captures = dict(zip(CAPTURES, config[1], strict=False))
    return made


def _config(known: ReplicationSet) -> Config:
    return known.state, tuple(sorted(known.captures.values(), key=lambda role: role.value))


def _name(config: Config) -> str:
    return " ".join([config[0].value, *(_ROLES[role] for role in config[1])])


def _status(state: SpanState) -> SpanStatus:
    return SpanStatus(SPAN, state, ZERO)


def _after_status(config: Config, sender: CaptureId, said: SpanState) -> tuple[Config, list[SpanOrder]] | None:
    known = _set_in(config)
    try:
        orders = known.handle_status(sender, _status(said))
    except SpanError:
        return None
    return _config(known), orders


def _asked(config: Config, action: str) -> tuple[Config, list[SpanOrder]]:
    known = _set_in(config)
    newcomer = CAPTURES[len(known.captures)]
    match action:
        case "add":
            orders = known.handle_add(newcomer)
        case "move":
            orders = known.handle_move(newcomer)
        case _:
            orders = known.handle_remove()
    return _config(known), orders


def _reachable() -> list[Config]:
    """From every picture that two captures can give a new owner, by whatever a third can add to it."""
    pictures = [
        {CAPTURES[0]: _status(first), CAPTURES[1]: _status(second)}
        for first in SAID
        for second in SAID
        if (first, second) != (SpanState.REPLICATING, SpanState.REPLICATING)
    ]
    found: dict[Config, None] = {}
    left = [(SetState.ABSENT, ()), *(_config(ReplicationSet.rebuild(SPAN, Ts(0), picture)) for picture in pictures)]
    while left:
        config = left.pop()
        if config in found:
            continue
        found[config] = None
        left += [_asked(config, action)[0] for action in ("add", "move", "remove")]
        for sender in CAPTURES[: len(config[1])]:
            steps = (_after_status(config, sender, said) for said in SAID)
            left += [step[0] for step in steps if step is not None]
    order = list(SetState)
    return sorted(found, key=lambda config: (order.index(config[0]), [role.value for role in config[1]]))


def _told(config: Config, step: tuple[Config, list[SpanOrder]] | None) -> str:
    if step is None:
        return "two writers: error"
    after, orders = step
    parts = [] if after == config else [f"→ **{_name(after)}**"]
    return "; ".join(parts + [_ordered(config, order) for order in orders]) or NOTHING


def _ordered(config: Config, order: SpanOrder) -> str:
    at = CAPTURES.index(order.capture)
    whom = _ROLES[config[1][at]] if at < len(config[1]) else "new"
    if isinstance(order.body, AddSpan):
        return f"{'Prepare' if order.body.is_secondary else 'Run'}({whom})"
    return f"Remove({whom})"


def replication_set() -> str:
    configs = _reachable()
    rows = []
    for config in configs:
        for role in dict.fromkeys(config[1]):
            sender = CAPTURES[config[1].index(role)]
            cells = [_told(config, _after_status(config, sender, said)) for said in SAID]
            rows.append((f"{_name(config)}: {_ROLES[role]} says", cells))
    asked = [(_name(c), [_told(c, _asked(c, action)) for action in ("add", "move", "remove")]) for c in configs]
    return page(
        "A table span, as the owner knows it",
        "`owner/scheduler/replication.py`. P: primary, the writer. S: secondary, the next writer. U: undetermined: "
        "it was stopping when this owner started. All states that can be reached are listed. A capture whose lease has "
        "expired, or whose processor was restarted, counts as one that reports *stopped*. "
        f"`{NOTHING}`: only the checkpoint changes.",
        "Invariant: *Run* is sent only when no other capture may still write.",
        table("state: reporter", [said.name.lower() for said in SAID], rows),
        "Requests of policies:",
        table("state", ["add", "move", "remove"], asked),
    )


# One span on its capture


def _span_in(state: SpanState) -> LocalSpan:
    made = LocalSpan(SPAN)
    made.state = state
    return made


def agent_span() -> str:
    def ordered(state: SpanState, order: Order) -> str:
        span = _span_in(state)
        step = span.handle_order(order, None if order is Order.REMOVE else ZERO)
        parts = [] if span.state is state else [f"→ **{span.state.name.lower()}**"]
        parts += [type(effect).__name__ for effect in step.effects]
        return "; ".join(parts + (["reply"] if step.reply else [])) or "wait"

    events = tuple(dict.fromkeys(event for _, event in EVENTS))

    def happened(state: SpanState, event: type[effects.SpanEvent]) -> str:
        if (state, event) in LATE:
            return "stale"
        after = EVENTS.get((state, event))
        return f"→ **{after.name.lower()}**; reply" if after is not None else NOTHING

    return page(
        "A table span on its capture",
        "`agent/control/table_span.py`. Orders of the owner. *wait*: the order is kept, and answered when it is done; "
        "an order that arrives while another one is in progress is dropped, since the owner repeats orders until they "
        "are done.",
        table("state", [o.name for o in Order], [(s.name.lower(), [ordered(s, o) for o in Order]) for s in SAID]),
        f"Reports of its writer. *stale*: it has no effect any more. `{NOTHING}`: impossible; if it happens, "
        "`InvalidTransition` is raised with the steps before it. A stopped span is reported once, then "
        "forgotten; reports about a forgotten span are dropped.",
        table(
            "state",
            [event.__name__ for event in events],
            [(s.name.lower(), [happened(s, event) for event in events]) for s in SAID],
        ),
    )


# Units and workers


def unit() -> str:
    def due(mode: Mode, record: UnitRecord | None) -> str:
        known = current_unit(mode, record)
        return known.value if known else "(finished)"

    records = [(u, s, UnitRecord(unit=u, stage=s)) for u in Unit for s in UnitStage]
    columns = ["no record", *(f"{u} {s}" for u, s, _ in records)]
    rows = [(mode.value, [due(mode, None), *(due(mode, r) for _, _, r in records)]) for mode in SEQUENCES]
    return page(
        "Units of a task",
        "`owner/progress/units.py`. The next unit, by the mode of the changefeed and the record that the last unit "
        "left in the store. A unit of another mode does not count.",
        table("mode", columns, rows),
        "`agent/control/unit_slot.py`: orders for one source on a capture. A newer order stops the running unit, and "
        "starts when that has reported its end.",
        table("slot", [name for name, _ in _SLOT_EVENTS], [(name, _slot_cells(make)) for name, make in _SLOTS]),
    )


def _slot(*orders: StartWorker | StopWorker | effects.UnitEvent) -> UnitSlot:
    slot = UnitSlot("main")
    for order in orders:
        if isinstance(order, StartWorker | StopWorker):
            slot.handle_order(order)
        else:
            slot.handle_event(order)
    return slot


_START, _NEWER = StartWorker("main", Unit.SYNC, 5), StartWorker("main", Unit.SYNC, 7)
_SLOTS: tuple[tuple[str, Callable[[], UnitSlot]], ...] = (
    ("empty", lambda: _slot()),
    ("runs 5", lambda: _slot(_START)),
    ("stops 5", lambda: _slot(_START, StopWorker("main", 5))),
    ("stops 5 for 7", lambda: _slot(_START, _NEWER)),
    ("5 ended", lambda: _slot(_START, effects.UnitFinished("main", 5))),
)
_SLOT_EVENTS: tuple[tuple[str, StartWorker | StopWorker | effects.UnitEvent], ...] = (
    ("start 4", StartWorker("main", Unit.SYNC, 4)),
    ("start 7", _NEWER),
    ("stop 5", StopWorker("main", 5)),
    ("stop 7", StopWorker("main", 7)),
    ("5 finished", effects.UnitFinished("main", 5)),
    ("5 stopped", effects.UnitStopped("main", 5)),
    ("5 failed", effects.UnitFailed("main", 5, FAULT)),
)


def _slot_cells(make: Callable[[], UnitSlot]) -> list[str]:
    cells = []
    for _, event in _SLOT_EVENTS:
        slot = make()
        before, epoch = slot.status, slot.epoch
        handled = slot.handle_order(event) if isinstance(event, StartWorker | StopWorker) else slot.handle_event(event)
        parts = [
            f"{type(e).__name__}({e.epoch})" for e in handled if isinstance(e, effects.StartUnit | effects.StopUnit)
        ]
        if slot.status is not None and slot.status != before:
            parts.append(f"**{slot.status.stage} {slot.status.epoch}**")
        elif slot.epoch != epoch:
            parts.append(f"keeps {slot.epoch} for later" if slot.epoch > epoch else f"forgets {epoch}")
        cells.append("; ".join(parts) or NOTHING)
    return cells


def worker() -> str:
    def said(stage: WorkerStage) -> Callable[[WorkerManager], None]:
        status = WorkerStatus("main", Unit.SYNC, 5, stage, error=FAULT if stage is WorkerStage.ERROR else None)
        return lambda manager: manager.handle_report(CAPTURES[0], status, 10.0)

    events: list[tuple[str, Callable[[WorkerManager], None], Placement, float]] = [
        *((f"reports {stage}", said(stage), _place("ab"), 10.0) for stage in WorkerStage),
        ("does not know it", lambda manager: manager.handle_report(CAPTURES[0], None, 10.0), _place("ab"), 10.0),
        ("lease expired", lambda manager: manager.handle_alive([CAPTURES[1]], 10.0), _place("b"), 10.0),
        ("leaves", lambda manager: None, _place("b", leaving="a"), 10.0),
        ("6 s pass", lambda manager: None, _place("ab"), 16.1),
    ]
    return page(
        "The worker of a source, as the owner knows it",
        "`owner/feed/workers.py`. The worker of order 5 is on capture a, and capture b can work too; each cell has the "
        "result of the event, and the orders of the owner's next tick. A new order has a larger epoch, which fences "
        "the old one wherever it writes. A finished unit whose record does not arrive is run again. An error first "
        "changes the changefeed's state, which decides whether there is a next run.",
        table(
            "stage",
            [name for name, *_ in events],
            [(stage.value, [_worker_cell(stage, *event[1:]) for event in events]) for stage in Stage],
        ),
    )


def _place(serving: str, *, leaving: str = "") -> Placement:
    return Placement(tuple(map(CaptureId, serving)), {}, frozenset(map(CaptureId, leaving)))


def _worker_cell(stage: Stage, happen: Callable[[WorkerManager], None], placement: Placement, now: float) -> str:
    manager = WorkerManager(Mode.ALL, WorkerSettings(), epoch_floor=5)
    manager.workers["main"] = Worker("main", Unit.SYNC, CAPTURES[0], 5, stage, 10.0)
    happen(manager)
    seen = manager.workers["main"].stage
    parts = [] if seen is stage else [f"→ **{seen.value}**"]
    if manager.has_errors:
        return "; ".join([*parts, "error"])
    record = UnitRecord(unit=Unit.SYNC, stage=UnitStage.RUNNING, epoch=5)
    parts += map(_worker_order, manager.tick(["main"], {"main": record}, placement, now))
    return "; ".join(parts) or NOTHING


def _worker_order(order: WorkerOrder) -> str:
    return f"{'Start' if isinstance(order.body, StartWorker) else 'Stop'}({order.capture}, {order.body.epoch})"


# A changefeed's owner


def schedule_machine() -> str:
    def scheduled(state: OwnerState, owner: CaptureId) -> ScheduledChangefeed:
        return ScheduledChangefeed(FEED, None if state is OwnerState.REMOVED else owner, state)

    def cell(before: OwnerState, after: OwnerState, owner: CaptureId) -> str:
        try:
            schedule.check(scheduled(before, CAPTURES[0]), scheduled(after, owner))
        except ScheduleError:
            return NOTHING
        return "yes"

    columns = [
        ("Launched, same capture", OwnerState.LAUNCHED, CAPTURES[0]),
        ("Launched, another capture", OwnerState.LAUNCHED, CAPTURES[1]),
        ("Removing", OwnerState.REMOVING, CAPTURES[0]),
        ("Removed", OwnerState.REMOVED, CAPTURES[0]),
    ]
    rows = [(before, [cell(before, after, owner) for _, after, owner in columns]) for before in OwnerState]
    return page(
        "Who owns a changefeed",
        "`owner/metadata/schedule.py`. Down: the state; across: what may follow. The controller launches and removes; "
        "the owner says *removed* when it has ended, the controller when the lease of its capture is over. So there is "
        "never a second owner: only a removed changefeed gets another one. "
        f"`{NOTHING}`: refused with `ScheduleError`, and nothing is written.",
        table("state", [name for name, _, _ in columns], rows),
        "A changefeed is removed if it has no assignment (`reactor/records/capture.py`), so each launch creates "
        "one. Its creation revision is the *owner revision* of every order, and each transaction of an owner requires "
        "the assignment as the owner has seen it.",
    )


PAGES: dict[str, Callable[[], str]] = {
    "changefeed.md": feed_state,
    "held-table.md": held_table,
    "sync-point.md": sync_point,
    "replication-set.md": replication_set,
    "agent-span.md": agent_span,
    "unit.md": unit,
    "worker.md": worker,
    "schedule.md": schedule_machine,
}


def main() -> None:
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    for name, render in PAGES.items():
        (DIRECTORY / name).write_text(render())


if __name__ == "__main__":
    main()

"""Hold stages of a table: the transitions between flowing, held, tried and lost, and their conditions."""

from enum import StrEnum

from reactor.records.tables.held import HeldTable, HoldStage
from reactor.transitions import History

#: the stage of a table that is not held
FLOWS = "flows"


class Trigger(StrEnum):
    """The causes that move a table from stage to stage."""

    ERROR = "error of the table"
    REFUSED = "schema change refused"
    DUE = "time, or an operator"
    LOG_GONE = "the log is gone"
    CAUGHT_UP = "at the checkpoint"
    TABLE_GONE = "the table is gone"
    COPY = "it is copied again"
    PLACED = "its copy is in its place"
    PAUSED = "an operator pauses it"
    SKIPPED = "changes are left out"


#: (stage, trigger) → stage; None: it flows, and has no record
TRANSITIONS: dict[tuple[HoldStage | None, Trigger], HoldStage | None] = {
    (None, Trigger.ERROR): HoldStage.HELD,
    (None, Trigger.REFUSED): HoldStage.HELD,
    (HoldStage.TRIED, Trigger.ERROR): HoldStage.HELD,
    (HoldStage.TRIED, Trigger.REFUSED): HoldStage.HELD,
    (HoldStage.TRIED, Trigger.CAUGHT_UP): None,
    (HoldStage.HELD, Trigger.DUE): HoldStage.TRIED,
    (None, Trigger.LOG_GONE): HoldStage.LOST,
    (HoldStage.HELD, Trigger.LOG_GONE): HoldStage.LOST,
    (HoldStage.TRIED, Trigger.LOG_GONE): HoldStage.LOST,
    **{(stage, Trigger.TABLE_GONE): None for stage in HoldStage},
    (None, Trigger.COPY): HoldStage.HELD,
    (HoldStage.TRIED, Trigger.COPY): HoldStage.HELD,
    (HoldStage.HELD, Trigger.COPY): HoldStage.HELD,
    (HoldStage.HELD, Trigger.PLACED): HoldStage.TRIED,
    (HoldStage.LOST, Trigger.PLACED): HoldStage.TRIED,
    (None, Trigger.PAUSED): HoldStage.HELD,
    (HoldStage.HELD, Trigger.PAUSED): HoldStage.HELD,
    (HoldStage.TRIED, Trigger.PAUSED): HoldStage.HELD,
    **{(stage, Trigger.SKIPPED): HoldStage.HELD for stage in HoldStage},
}
#: log messages
SAID = {
    Trigger.ERROR: "a table is held; all others flow",
    Trigger.REFUSED: "a table is held; all others flow",
    Trigger.DUE: "a held table is tried again",
    Trigger.LOG_GONE: "a held table has lost its position",
    Trigger.CAUGHT_UP: "a held table flows again",
    Trigger.TABLE_GONE: "a held table is gone",
    Trigger.COPY: "a table is copied again; all others flow",
    Trigger.PLACED: "a table's copy is in its place, and catches up",
    Trigger.PAUSED: "a table is paused; all others flow",
    Trigger.SKIPPED: "a held table continues without some of its changes",
}


def note_step(steps: History, trigger: Trigger, before: HeldTable | None, after: HeldTable | None) -> None:
    """Record one step of one table, from record to record.

    :raises InvalidTransitionError: the stage of ``before`` has no row for it, or another one.
    """
    known = before or after
    assert known is not None, "a table that flows does not begin to flow"
    stage, wanted = _stage(before), _stage(after)
    if (stage, trigger) not in TRANSITIONS or TRANSITIONS[stage, trigger] is not wanted:
        raise steps.invalid(f"{stage or FLOWS} ({known.name})", f"{trigger} (to {wanted or FLOWS})")
    if after is not None:
        assert before is None or before.table_id == after.table_id, f"{known.name} becomes {after.name}"
        assert before is None or after.ts >= before.ts, f"held table {known.name} would go back"
        assert wanted is HoldStage.HELD or not after.retry_at, f"{known.name} is {wanted}: nothing is due"
    steps.note(stage or FLOWS, f"{known.name}: {trigger}", wanted or FLOWS)


def _stage(held: HeldTable | None) -> HoldStage | None:
    return None if held is None else held.stage

"""Every row of the table of held tables, and what has none."""

import itertools

import pytest

from owner.feed.holds.hold_stages import TRANSITIONS, Trigger, note_step
from reactor.errors import InvalidTransitionError
from reactor.ids import Ts
from reactor.records.tables.held import HeldTable, HoldStage
from reactor.transitions import History
from tests.unit.owner.owner_build import error

STAGES = (None, *HoldStage)


def _record(stage: HoldStage | None, ts: int = 5) -> HeldTable | None:
    return None if stage is None else HeldTable(table_id=1, name="public.t", stage=stage, ts=Ts(ts), error=error())


@pytest.mark.parametrize(("before", "trigger", "after"), [*itertools.product(STAGES, Trigger, STAGES)])
def test_only_the_tables_rows_are_steps(before: HoldStage | None, trigger: Trigger, after: HoldStage | None) -> None:
    if before is after is None:
        return
    steps = History("a held table")
    if TRANSITIONS.get((before, trigger), trigger) is after:
        note_step(steps, trigger, _record(before), _record(after))
        assert len(steps.steps) == 1
        return
    with pytest.raises(InvalidTransitionError, match=f"has no transition for {trigger}"):
        note_step(steps, trigger, _record(before), _record(after))
    assert not steps.steps


def test_a_held_table_never_goes_back() -> None:
    with pytest.raises(AssertionError, match="would go back"):
        note_step(History("table"), Trigger.DUE, _record(HoldStage.HELD, 9), _record(HoldStage.TRIED, 8))


def test_the_error_says_how_the_table_came_there() -> None:
    steps = History("a held table of changefeed feed")
    note_step(steps, Trigger.ERROR, None, _record(HoldStage.HELD))
    note_step(steps, Trigger.LOG_GONE, _record(HoldStage.HELD), _record(HoldStage.LOST))
    with pytest.raises(InvalidTransitionError, match=r"flows -\(.*error of the table\)-> held -\(.*gone\)-> lost"):
        note_step(steps, Trigger.DUE, _record(HoldStage.LOST), _record(HoldStage.TRIED))

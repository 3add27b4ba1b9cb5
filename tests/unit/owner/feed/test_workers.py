"""Units in their order, and the worker manager: placed, lost, replaced, never two that count."""

from functools import partial

import pytest

from owner.feed.workers import Fate, Placement, Stage, WorkerManager, WorkerOrder, first_epoch
from owner.progress.units import SEQUENCES, current_unit, ordinal, tables_of
from owner.settings import WorkerSettings
from reactor.errors import InvalidTransitionError, Scope
from reactor.ids import CaptureId, Ts
from reactor.messages import StartWorker, StopWorker, WorkerStage, WorkerStatus
from reactor.records.changefeed import Mode, Unit, UnitRecord, UnitStage
from reactor.records.tables.table import TableRecord
from tests.unit.owner.owner_build import A, B, C, error

MAIN = "main"
TABLE = TableRecord(table_id=1, schema_name="public", name="t")
RUNNING, FINISHED = UnitStage.RUNNING, UnitStage.FINISHED


def record(unit: Unit, stage: UnitStage = RUNNING, *, epoch: int = 1) -> UnitRecord:
    return UnitRecord(unit=unit, stage=stage, epoch=epoch, tables=(TABLE,))


def manager(mode: Mode = Mode.ALL, **known: int) -> WorkerManager:
    return WorkerManager(mode, WorkerSettings(), **known)


def place(*captures: CaptureId, loads: dict[CaptureId, int] | None = None) -> Placement:
    return Placement(captures, loads or {})


def start(capture: CaptureId, unit: Unit, epoch: int) -> list[WorkerOrder]:
    return [WorkerOrder(capture, StartWorker(MAIN, unit, epoch))]


def said(unit: Unit, epoch: int, stage: WorkerStage = WorkerStage.RUNNING) -> WorkerStatus:
    failed = error() if stage is WorkerStage.ERROR else None
    return WorkerStatus(MAIN, unit, epoch, stage, 5, 10, failed)


def tick(known: WorkerManager, stored: UnitRecord | None, placement: Placement, now: float) -> list[WorkerOrder]:
    return known.tick([MAIN], {MAIN: stored} if stored else {}, placement, now)


@pytest.mark.parametrize(
    ("mode", "stored", "unit"),
    [
        (Mode.ALL, None, Unit.DUMP),
        (Mode.ALL, record(Unit.DUMP), Unit.DUMP),
        (Mode.ALL, record(Unit.DUMP, FINISHED), Unit.LOAD),
        (Mode.ALL, record(Unit.LOAD, FINISHED), Unit.SYNC),
        (Mode.ALL, record(Unit.SYNC), Unit.SYNC),
        (Mode.FULL, record(Unit.LOAD), Unit.LOAD),
        (Mode.FULL, record(Unit.LOAD, FINISHED), None),
        (Mode.INCREMENTAL, None, Unit.SYNC),
        (Mode.DUMP, record(Unit.DUMP, FINISHED), None),
        (Mode.LOAD_SYNC, None, Unit.LOAD),
        (Mode.LOAD_SYNC, record(Unit.LOAD, FINISHED), Unit.SYNC),
        (Mode.INCREMENTAL, record(Unit.DUMP), Unit.SYNC),
    ],
)
def test_current_unit(mode: Mode, stored: UnitRecord | None, unit: Unit | None) -> None:
    assert current_unit(mode, stored) is unit


def test_units_only_go_forward() -> None:
    for mode, sequence in SEQUENCES.items():
        steps = [ordinal(mode, unit) for unit in (*sequence, None)]
        assert steps == sorted(set(steps))


def test_tables_are_known_only_when_the_sink_has_them() -> None:
    assert tables_of(Mode.ALL, None) is None
    assert tables_of(Mode.ALL, record(Unit.DUMP, FINISHED)) is None
    assert tables_of(Mode.ALL, record(Unit.LOAD)) is None
    assert tables_of(Mode.ALL, record(Unit.LOAD, FINISHED)) == (TABLE,)
    assert tables_of(Mode.INCREMENTAL, record(Unit.SYNC)) == (TABLE,)
    assert tables_of(Mode.FULL, record(Unit.LOAD, FINISHED)) is None
    assert tables_of(Mode.ALL, UnitRecord(unit=Unit.SYNC, stage=RUNNING)) is None, "not complete yet"
    assert tables_of(Mode.ALL, UnitRecord(unit=Unit.SYNC, stage=RUNNING, start_ts=Ts(5))) == (), "they come later"


def test_dump_load_sync_stay_on_one_capture() -> None:
    known, where = manager(), place(A, B, loads={A: 1})
    assert tick(known, None, where, 0.0) == start(B, Unit.DUMP, 1)
    known.handle_report(B, said(Unit.DUMP, 1), 1.0)
    assert tick(known, record(Unit.DUMP), where, 1.0) == []
    known.handle_report(B, said(Unit.DUMP, 1, WorkerStage.FINISHED), 2.0)
    assert tick(known, record(Unit.DUMP), where, 2.0) == [], "its record is on the way"
    assert tick(known, record(Unit.DUMP, FINISHED), where, 2.1) == start(B, Unit.LOAD, 2)
    known.handle_report(B, said(Unit.DUMP, 1, WorkerStage.FINISHED), 2.2)
    assert tick(known, record(Unit.DUMP, FINISHED), where, 2.2) == [], "said twice, done once"
    known.handle_report(B, said(Unit.LOAD, 2), 2.3)
    assert tick(known, record(Unit.LOAD, FINISHED, epoch=2), where, 3.0) == start(B, Unit.SYNC, 3)


def test_how_long_a_dump_will_take() -> None:
    """What an earlier worker has done says nothing of this one's speed."""
    known = manager()
    tick(known, None, place(A), 0.0)
    report = partial(WorkerStatus, MAIN, Unit.DUMP, 1, WorkerStage.RUNNING, rows_total=1000)
    known.handle_report(A, report(rows_done=400, bytes_done=4000), 10.0)
    assert known.workers[MAIN].seconds_left is None
    known.handle_report(A, report(rows_done=600, bytes_done=6000), 20.0)
    worker = known.workers[MAIN]
    assert (worker.rows_done, worker.bytes_done, worker.seconds_left) == (600, 6000, 20.0)
    later = WorkerManager(Mode.ALL, WorkerSettings())
    later.handle_report(A, report(rows_done=600), 30.0)
    assert tick(later, record(Unit.DUMP), place(A), 30.0) == []
    later.handle_report(A, report(rows_done=800), 32.0)
    assert later.workers[MAIN].seconds_left == 2.0


def test_a_tick_while_a_worker_is_being_created_never_touches_it() -> None:
    """The worker has not answered yet; another order now would start it twice."""
    known, where = manager(), place(A, B)
    tick(known, None, where, 0.0)
    for now in (0.1, 1.0, 5.9):
        known.handle_report(A, None, now)
        known.handle_report(B, None, now)
        assert tick(known, None, where, now) == []


def test_a_deaf_capture_is_given_up_after_six_seconds() -> None:
    known, where = manager(), place(A, B)
    assert tick(known, None, where, 0.0) == start(A, Unit.DUMP, 1)
    assert tick(known, None, where, 6.0) == start(B, Unit.DUMP, 2)
    known.handle_report(A, said(Unit.DUMP, 1), 6.5)
    assert tick(known, None, where, 6.5) == [WorkerOrder(A, StopWorker(MAIN, 1))], "it woke up, too late"
    assert known.workers[MAIN].capture == B


def test_a_lost_capture_is_replaced_at_once_with_a_new_epoch() -> None:
    known = manager()
    tick(known, None, place(A, B), 0.0)
    known.handle_report(A, said(Unit.DUMP, 1), 0.5)
    known.handle_alive([B], 1.0)
    assert tick(known, None, place(B), 1.0) == start(B, Unit.DUMP, 2)


def test_a_worker_its_capture_has_forgotten_is_started_again_there() -> None:
    known, where = manager(), place(A, B)
    tick(known, None, where, 0.0)
    known.handle_report(A, said(Unit.DUMP, 1), 0.5)
    known.handle_report(A, None, 0.6)
    assert tick(known, None, where, 0.6) == start(A, Unit.DUMP, 2)


@pytest.mark.parametrize("stage", [WorkerStage.STOPPED, WorkerStage.ERROR])
def test_an_ended_worker_is_offline_and_its_error_reported_once(stage: WorkerStage) -> None:
    known, where = manager(), place(A)
    tick(known, None, where, 0.0)
    for now in (0.5, 0.6):
        known.handle_report(A, said(Unit.DUMP, 1, stage), now)
    assert known.workers[MAIN].stage is Stage.OFFLINE
    assert known.take_errors() == ([error()] if stage is WorkerStage.ERROR else [])
    assert known.take_errors() == []


def test_a_fenced_worker_is_replaced_without_an_error() -> None:
    known, where = manager(), place(A)
    tick(known, None, where, 0.0)
    fenced = WorkerStatus(MAIN, Unit.DUMP, 1, WorkerStage.ERROR, error=error("UnitFenced", retryable=False))
    known.handle_report(A, fenced, 0.5)
    assert not known.has_errors
    assert tick(known, record(Unit.DUMP, epoch=7), where, 0.6) == start(A, Unit.DUMP, 8)


def test_epochs_grow_over_owners() -> None:
    known = manager(epoch_floor=4)
    known.handle_report(B, said(Unit.SYNC, 9, WorkerStage.STOPPED), 0.0)
    assert tick(known, record(Unit.SYNC, epoch=6), place(A), 0.0) == start(A, Unit.SYNC, 10)


def test_no_two_owners_give_one_epoch() -> None:
    """The last order of the owner before may be known only to a capture that is cut off."""
    cut_off = manager(epoch_floor=first_epoch(7))
    heir = manager(epoch_floor=first_epoch(8))
    (order,) = tick(cut_off, record(Unit.SYNC, epoch=3), place(A), 0.0)
    (later,) = tick(heir, record(Unit.SYNC, epoch=3), place(B), 0.0)
    assert order.body.epoch < later.body.epoch


def test_a_new_owner_adopts_the_newest_worker_and_stops_the_others() -> None:
    known, where = manager(), place(A, B, C)
    known.handle_report(A, said(Unit.SYNC, 3), 0.0)
    known.handle_report(B, said(Unit.SYNC, 5), 0.0)
    assert tick(known, record(Unit.SYNC, epoch=5), where, 0.0) == []
    assert (known.workers[MAIN].capture, known.workers[MAIN].epoch) == (B, 5)
    known.handle_report(A, said(Unit.SYNC, 3), 0.5)
    assert tick(known, record(Unit.SYNC, epoch=5), where, 0.5) == [WorkerOrder(A, StopWorker(MAIN, 3))]


def test_a_reported_worker_older_than_the_record_is_not_adopted() -> None:
    known = manager()
    known.handle_report(A, said(Unit.SYNC, 3), 0.0)
    assert tick(known, record(Unit.SYNC, epoch=5), place(A), 0.0) == start(A, Unit.SYNC, 6)


def test_without_a_capture_nothing_is_ordered() -> None:
    known = manager()
    assert tick(known, None, place(), 0.0) == []
    assert tick(known, None, place(A), 1.0) == start(A, Unit.DUMP, 1)


def test_all_units_finished_is_the_end() -> None:
    known = manager(Mode.FULL)
    assert tick(known, record(Unit.LOAD, FINISHED), place(A), 0.0) == []


def test_placement_prefers_staying_then_least_then_id() -> None:
    where = place(A, B, C, loads={A: 2, B: 1, C: 1})
    assert where.choose(stay_on=A, avoid=None) == A
    assert where.choose(stay_on=None, avoid=None) == B
    assert where.choose(stay_on=None, avoid=B) == C
    assert place(A).choose(stay_on=None, avoid=A) == A
    assert where.choose(stay_on=CaptureId("gone"), avoid=None) == B


def test_a_fate_that_the_table_lacks_says_how_the_worker_came_there() -> None:
    """A finished worker needs no capture any more: that it loses one is nothing that happens to it."""
    known = manager()
    tick(known, None, place(A), 0.0)
    known.handle_report(A, said(Unit.DUMP, known.workers[MAIN].epoch, WorkerStage.FINISHED), 1.0)
    with pytest.raises(InvalidTransitionError, match=r"finished under order 1, .*\(a says finished, order 1\)-> fin"):
        known._enter(known.workers[MAIN], Fate.LEASE_OVER, 2.0)


def test_a_worker_that_is_lost_waits_for_nothing_any_more() -> None:
    known = manager()
    tick(known, None, place(A), 0.0)
    status = WorkerStatus(MAIN, Unit.DUMP, known.workers[MAIN].epoch, WorkerStage.RUNNING, error=error())
    known.handle_report(A, status, 1.0)
    assert known.workers[MAIN].trouble == error()
    known.handle_alive([], 2.0)
    assert known.workers[MAIN].trouble is None


def test_a_unit_that_its_capture_cannot_run_is_no_error_and_runs_elsewhere() -> None:
    known = manager()
    assert tick(known, None, place(A, B), 0.0) == start(A, Unit.DUMP, 1)
    fault = error("CaptureFault").with_(scope=Scope.CAPTURE)
    known.handle_report(A, WorkerStatus(MAIN, Unit.DUMP, 1, WorkerStage.ERROR, error=fault), 1.0)
    assert not known.has_errors
    assert tick(known, record(Unit.DUMP), place(A, B), 1.0) == start(B, Unit.DUMP, 2)


def test_where_there_is_only_one_capture_it_is_tried_there_again() -> None:
    known = manager()
    tick(known, None, place(A), 0.0)
    fault = error("CaptureFault").with_(scope=Scope.CAPTURE)
    known.handle_report(A, WorkerStatus(MAIN, Unit.DUMP, 1, WorkerStage.ERROR, error=fault), 1.0)
    assert tick(known, record(Unit.DUMP), place(), 1.0) == [], "it says that it takes no work"
    assert tick(known, record(Unit.DUMP), place(A), 9.0) == start(A, Unit.DUMP, 2)

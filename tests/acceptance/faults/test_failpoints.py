"""Captures that die, or stop and wake up, exactly between two steps: service continues, no row is lost or doubled.

All captures of the bed have all traps, each of which waits for a file; whoever reaches the point first after a test has
made it takes the file and is the one that falls. The load runs all the time; the last test ends it and compares.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from capture.api.client import Client
from reactor.errors import WeirError
from reactor.failpoints import VARIABLE, Action, Point
from reactor.records.changefeed import SinkMode
from reactor.records.tables.held import CAPTURE_ENDED
from tests.acceptance.bed import Bed, Load, Process
from tests.acceptance.checks import CHANGELOG, FEEDS, UPSERT, check_changelog, check_upsert, follows
from tests.patience import HANG_S

pytestmark = [
    pytest.mark.minutes(1.5),
    pytest.mark.acceptance,
    pytest.mark.matrix,
    pytest.mark.in_turn("ground"),
    pytest.mark.spark,
    pytest.mark.timeout(200),
]

SESSION_TTL_S = 5
SERVICE_TIMEOUT_S = SESSION_TTL_S + 5
REACH_TIMEOUT_S = 60.0
CATCH_UP_TIMEOUT_S = 90.0

Blow = tuple[Point, Action]
KILL, STOP, ERROR = Action.KILL, Action.STOP, Action.ERROR
#: passed all the time while changes flow
BUSY = (
    Point.OWNER_BEFORE_COMMIT,
    Point.OWNER_AFTER_COMMIT,
    Point.OWNER_BEFORE_STATUS,
    Point.OWNER_AFTER_STATUS,
    Point.SYNC_WRITTEN,
    Point.SYNC_MOVED,
    Point.FLUSH_BEFORE_COMMIT,
    Point.FLUSH_AFTER_COMMIT,
)


class _Caller(threading.Thread):
    """A caller of the capture that may be the one that falls: one that is stopped answers when it wakes up."""

    def __init__(self, cause: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self._cause = cause
        self._error: Exception | None = None

    def run(self) -> None:
        try:
            self._cause()
        except Exception as error:
            self._error = error

    def end(self) -> None:
        self.join(HANG_S)
        assert not self.is_alive(), "it has no answer"
        if self._error is not None and not isinstance(self._error, WeirError):
            raise self._error


class Ground:
    """The bed with its traps, under load."""

    def __init__(self, bed: Bed, traps: Path, load: Load) -> None:
        self.bed = bed
        self.load = load
        self._traps = traps

    def set(self, point: Point, action: Action) -> Path:
        file = trap_file(self._traps, point, action)
        file.touch()
        return file

    def strike(self, *blows: Blow, cause: Callable[[], object] = lambda: None) -> None:
        """Let one capture fall for each blow; who is left continues, and then they are asked to come back."""
        files = [self.set(point, action) for point, action in blows]
        caller = _Caller(cause)
        caller.start()
        what = " and ".join(f"{action} at {point}" for point, action in blows)
        wait = self.bed.wait_for
        wait(what, lambda: not any(file.exists() for file in files), timeout_s=REACH_TIMEOUT_S)
        wait(f"effect of {what}", lambda: len(self.fallen()) == len(blows), timeout_s=REACH_TIMEOUT_S)
        wait(f"service after {what}", follows(self.bed), timeout_s=SERVICE_TIMEOUT_S)
        left = len(self.bed.processes) - len(blows)
        # who sleeps wakes up only after its lease is over
        wait("their leases are over", lambda: len(self.bed.captures()) == left, timeout_s=SERVICE_TIMEOUT_S)
        assert sorted(one.is_stopped for one in self.fallen()) == sorted(action is STOP for _, action in blows)
        self.mend()
        caller.end()

    def fallen(self) -> list[Process]:
        return [process for process in self.bed.processes if process.has_fallen]

    def make_whole(self) -> None:
        self.mend()
        self.bed.wait_for("all captures are back", lambda: len(self.bed.captures()) == len(self.bed.processes))
        self._resume()

    def _resume(self) -> None:
        """Where two captures fell in a row while they wrote one table only, it is held until an operator resumes it."""
        for feed in FEEDS:
            for held in self.bed.query(feed).held:
                if held.code == CAPTURE_ENDED:
                    self.bed.ask(partial(Client.resume_table, changefeed_id=feed, table=held.table))

    def mend(self) -> None:
        for process in self.fallen():
            if process.is_stopped:
                self.bed.proceed(process)
            else:
                self.bed.start(process)

    def leave(self) -> None:
        self.bed.ask(lambda client: client.remove_table(UPSERT, "public.item"))

    def join(self) -> None:
        self.bed.ask(lambda client: client.add_table(UPSERT, "public.item"))

    def wait_for_mark(self) -> None:
        def is_marked() -> bool:
            return [(one.table, one.marked) for one in self.bed.query(UPSERT).left] == [("public.item", True)]

        self.bed.wait_for("the table is marked", is_marked, timeout_s=CATCH_UP_TIMEOUT_S)

    def wait_for_return(self) -> None:
        def is_back() -> bool:
            view = self.bed.query(UPSERT)
            return not (view.left or view.joining or view.resyncs or view.held or view.lost_tables)

        self.bed.wait_for("the table flows again", is_back, timeout_s=CATCH_UP_TIMEOUT_S)
        assert "public.item" in {table.table for table in self.bed.ask(lambda client: client.tables(UPSERT))}


def trap_file(traps: Path, point: Point, action: Action) -> Path:
    return traps / f"{point}-{action}"


@pytest.fixture(
    scope="module",
    params=[("delta+file", "etcd"), ("iceberg+file", "etcd"), ("delta+file", "postgres")],
    ids="-on-".join,
)
def ground(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    traps = tmp_path_factory.mktemp("traps")
    variable = ";".join(f"{p}={a},when:{trap_file(traps, p, a)}" for p in Point for a in Action)
    directory = tmp_path_factory.mktemp("bed")
    environment, (sink, store) = {VARIABLE: variable}, request.param
    options = {"environment": environment, "session_ttl_s": SESSION_TTL_S, "sink": sink, "store": store}
    with Bed(directory, captures=3, **options) as bed:
        bed.create_feed(UPSERT, SinkMode.UPSERT)
        bed.create_feed(CHANGELOG, SinkMode.CHANGELOG)
        with bed.load() as load:
            yield Ground(bed, traps, load)


@pytest.fixture(autouse=True)
def whole_again(ground: Ground) -> None:
    ground.make_whole()


@pytest.mark.parametrize(
    "blow",
    [
        (Point.OWNER_BEFORE_COMMIT, STOP),
        (Point.OWNER_AFTER_COMMIT, KILL),
        (Point.OWNER_BEFORE_STATUS, KILL),
        (Point.OWNER_AFTER_STATUS, STOP),
    ],
)
def test_an_owner_falls(ground: Ground, blow: Blow) -> None:
    ground.strike(blow)


@pytest.mark.parametrize(
    "blows",
    [
        [(Point.SYNC_WRITTEN, KILL), (Point.FLUSH_BEFORE_COMMIT, STOP)],
        [(Point.SYNC_WRITTEN, STOP), (Point.FLUSH_BEFORE_COMMIT, KILL)],
        [(Point.SYNC_MOVED, KILL), (Point.FLUSH_AFTER_COMMIT, STOP)],
        [(Point.SYNC_MOVED, STOP), (Point.FLUSH_AFTER_COMMIT, KILL)],
    ],
)
def test_two_of_three_fall_at_work(ground: Ground, blows: list[Blow]) -> None:
    ground.strike(*blows)


@pytest.mark.parametrize("action", [KILL, STOP])
@pytest.mark.parametrize("point", [Point.DUMP_STAGED, Point.COPY_STAGED, Point.COPY_BEFORE_SINK, Point.COPY_AFTER_SINK])
def test_the_owner_falls_while_a_table_is_copied_again(ground: Ground, point: Point, action: Action) -> None:
    ground.strike((point, action), cause=lambda: ground.bed.ask(lambda c: c.resync_table(UPSERT, "public.account")))

    def flows() -> bool:
        view = ground.bed.query(UPSERT)
        return not view.resyncs and not view.held

    ground.bed.wait_for("the table flows", flows, timeout_s=CATCH_UP_TIMEOUT_S)


@pytest.mark.parametrize("action", [KILL, STOP])
@pytest.mark.parametrize("point", [Point.MARK_BEFORE_SINK, Point.MARK_AFTER_SINK])
def test_the_owner_falls_while_a_table_leaves(ground: Ground, point: Point, action: Action) -> None:
    """And the table joins again: its mark is gone, whoever wakes up late."""
    ground.strike((point, action), cause=ground.leave)
    ground.wait_for_mark()
    ground.join()
    ground.wait_for_return()


@pytest.mark.parametrize("action", [KILL, STOP])
def test_the_owner_falls_between_the_publication_of_a_table_and_its_record(ground: Ground, action: Action) -> None:
    bed = ground.bed
    ground.leave()
    ground.wait_for_mark()
    sends = "FROM pg_publication_tables WHERE tablename = 'item' AND pubname LIKE '%upsert%'"
    [[publication]] = bed.execute(f"SELECT pubname::text {sends}")
    bed.execute(f'ALTER PUBLICATION "{publication}" DROP TABLE item')
    ground.strike((Point.TABLE_PUBLISHED, action), cause=ground.join)
    assert bed.execute(f"SELECT pubname::text {sends}") == [[publication]]
    with suppress(WeirError):  # who wakes up may have recorded it
        ground.join()
    ground.wait_for_return()


@pytest.mark.parametrize("blow", [(Point.POSITION_TAKEN, KILL), (Point.POSITION_RECORDED, STOP)])
def test_a_capture_falls_while_a_changefeed_takes_a_new_position(ground: Ground, blow: Blow) -> None:
    bed, name = ground.bed, f"lost-{blow[1]}"
    bed.create_feed(name)
    bed.ask(lambda client: client.pause(name))
    slot = f"SELECT {{}} FROM pg_replication_slots WHERE slot_name LIKE '%lost_{blow[1]}%' AND NOT active"
    bed.wait_for("nobody reads the slot", lambda: bed.execute(slot.format("slot_name::text")) != [])
    bed.execute(slot.format("pg_drop_replication_slot(slot_name)"))
    ground.strike(blow, cause=lambda: bed.ask(lambda client: client.resume(name, resync=True)))

    def is_copied() -> bool:
        view = bed.query(name)
        return view.checkpoint_ts > 0 and not (view.lost_tables or view.resyncs or view.held)

    bed.wait_for("all tables are copied", is_copied, timeout_s=CATCH_UP_TIMEOUT_S)
    ts = bed.last_ts()
    bed.wait_for(f"{name} follows", lambda: bed.covers(name, ts), timeout_s=CATCH_UP_TIMEOUT_S)
    ground.make_whole()
    assert [found for found in bed.ask(lambda client: client.diff(name), timeout_s=60.0) if not found.equal] == []
    bed.ask(lambda client: client.remove(name))


@pytest.mark.parametrize("action", [KILL, STOP])
@pytest.mark.parametrize("point", [Point.SPAN_OPENED, Point.SPAN_ASKED])
def test_a_capture_falls_while_a_table_moves_to_it(ground: Ground, point: Point, action: Action) -> None:
    def move() -> None:
        tables = ground.bed.ask(lambda client: client.tables(UPSERT))
        holder = next(table.spans[0].capture for table in tables if table.table == "public.account")
        there = next(view.id for view in ground.bed.captures() if view.id != holder)
        ground.bed.ask(lambda client: client.move_table(UPSERT, "public.account", there))

    ground.strike((point, action), cause=move)


def test_captures_fall_in_a_changefeed_s_first_and_last_steps(ground: Ground) -> None:
    bed, name = ground.bed, "short"
    # the next worker continues with the dump, and the load follows it
    ground.strike((Point.DUMP_STAGED, KILL), (Point.LOAD_LOADED, STOP), cause=lambda: bed.create(name))
    ts = bed.last_ts()
    bed.wait_for(f"{name} follows", lambda: bed.covers(name, ts), timeout_s=CATCH_UP_TIMEOUT_S)
    ground.make_whole()
    ground.strike((Point.REMOVE_DROPPED, KILL), cause=lambda: bed.ask(lambda client: client.remove(name)))
    names = bed.execute("SELECT slot_name::text FROM pg_replication_slots")
    assert not [slot for [slot] in names if "short" in str(slot)]
    bed.wait_for(f"{name} is gone", lambda: name not in {view.id for view in bed.ask(lambda client: client.list())})


def test_errors_pass(ground: Ground) -> None:
    """Nobody falls: what failed is done again."""
    files = [ground.set(point, ERROR) for point in (*BUSY, Point.FLUSH_WRITTEN)]
    ground.bed.wait_for("all are reached", lambda: not any(file.exists() for file in files), timeout_s=REACH_TIMEOUT_S)
    ground.bed.wait_for("service continues", follows(ground.bed), timeout_s=SERVICE_TIMEOUT_S)
    assert not ground.fallen()


def test_an_executor_dies_in_mid_flush(ground: Ground) -> None:
    file = ground.set(Point.FLUSH_WRITTEN, KILL)
    ground.bed.wait_for("it is reached", lambda: not file.exists(), timeout_s=REACH_TIMEOUT_S)
    ground.bed.wait_for("service continues", follows(ground.bed), timeout_s=SERVICE_TIMEOUT_S)
    assert not ground.fallen()


def test_nothing_is_lost_or_doubled(ground: Ground) -> None:
    """After all that."""
    ground.load.stop()
    ground.bed.wait_for("none is held", lambda: not any(ground.bed.query(feed).held for feed in FEEDS))
    ground.bed.wait_for("all have caught up", follows(ground.bed), timeout_s=CATCH_UP_TIMEOUT_S)
    check_upsert(ground.bed)
    check_changelog(ground.bed)

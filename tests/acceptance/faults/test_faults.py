"""Faults of processes, disks and networks, with three captures under load: no row is lost or doubled.

One bed serves all tests: each breaks one thing while pgbench writes, waits until the service continues, lets the load
end, and then compares both changefeeds with the source by its own reading of the tables.
"""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import pytest

from reactor.records.changefeed import SinkMode
from tests.acceptance import checks
from tests.acceptance.bed import Bed, Load
from tests.acceptance.checks import (
    CATCH_UP_TIMEOUT_S,
    CHANGELOG,
    UPSERT,
    check_changelog,
    check_upsert,
    follows,
    longest_silence_s,
)
from tests.acceptance.history import History
from tests.patience import patient

pytestmark = [pytest.mark.acceptance, pytest.mark.in_turn("bed"), pytest.mark.spark, pytest.mark.timeout(400)]

WARM_TRANSACTIONS = 200
LEAVE_TIMEOUT_S = 15
#: without a fault, a table is between two captures for as long as a flush and two messages take
SILENCE_S_MAX = 5.0


@pytest.fixture(
    scope="module",
    params=[
        ("delta+file", "etcd"),
        pytest.param(("iceberg+file", "etcd"), marks=pytest.mark.matrix),
        pytest.param(("delta+file", "postgres"), marks=pytest.mark.matrix),
    ],
    ids="-on-".join,
)
def bed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    sink, store = request.param
    with Bed(tmp_path_factory.mktemp("bed"), captures=3, sink=sink, store=store) as bed:
        bed.create_feed(UPSERT, SinkMode.UPSERT)
        bed.create_feed(CHANGELOG, SinkMode.CHANGELOG)
        yield bed


@pytest.fixture(autouse=True)
def whole_again(bed: Bed) -> Iterator[None]:
    """Whatever a test has broken is mended, so that the next one starts from three captures."""
    yield
    bed.mend()


@pytest.mark.matrix  # daily one falls at a schema change, in two_captures
def test_kill_the_owner(bed: Bed) -> None:
    break_under_load(bed, lambda _: bed.kill(bed.owner(UPSERT)))


@pytest.mark.matrix
def test_kill_the_sync_worker(bed: Bed) -> None:
    break_under_load(bed, lambda _: bed.kill(bed.sync_worker(UPSERT)))


@pytest.mark.matrix
def test_kill_a_capture_in_mid_flush(bed: Bed) -> None:
    """Under load some flush is always under way where spans are."""

    def kill_a_span_holder(_: Load) -> None:
        special = {bed.owner(UPSERT).name, bed.sync_worker(UPSERT).name}
        holders = bed.span_holders(UPSERT)
        bed.kill(next((holder for holder in holders if holder.name not in special), holders[0]))

    break_under_load(bed, kill_a_span_holder)


@pytest.mark.matrix  # daily in simulated clusters, and a process of it in etcd/test_connection.py
def test_a_capture_that_sleeps_past_its_lease(bed: Bed) -> None:
    sleeper = None

    def put_to_sleep(_: Load) -> None:
        nonlocal sleeper
        sleeper = bed.sync_worker(UPSERT)
        bed.pause(sleeper)

    def wake_up() -> None:
        assert sleeper is not None
        bed.proceed(sleeper)

    break_under_load(bed, put_to_sleep, then=wake_up)


@pytest.mark.matrix  # what comes after a kill is harder
def test_restart_the_store(bed: Bed) -> None:
    break_under_load(bed, lambda _: bed.store_server.restart())


@pytest.mark.matrix
def test_kill_the_store(bed: Bed) -> None:
    def kill_and_start(_: Load) -> None:
        bed.store_server.kill()
        bed.store_server.start()

    break_under_load(bed, kill_and_start)


@pytest.mark.matrix
def test_the_store_fails_over_to_another_address(bed: Bed) -> None:
    if bed.sql_store is None:
        pytest.skip("etcd's members find each other by themselves")
    store = bed.sql_store
    break_under_load(bed, lambda _: store.fail_over())
    break_under_load(bed, lambda _: store.fail_over())


@pytest.mark.matrix
def test_etcd_forgets_its_history(bed: Bed) -> None:
    """All the time, and while a capture does not watch: when it connects again, it has to read everything."""
    if bed.sql_store is not None:
        pytest.skip("databases keep their history for 10,000 revisions")
    history = History(bed.etcd.url)
    before = resyncs(bed)
    away = bed.sync_worker(UPSERT)

    def forget_while_away(_: Load) -> None:
        bed.pause(away)  # otherwise it may connect before the history is gone
        bed.etcd.kill()
        bed.etcd.start()
        history.forget()
        bed.proceed(away)

    with closing(history), history.forgetting():
        break_under_load(bed, forget_while_away)
    assert resyncs(bed) > before


@pytest.mark.matrix  # daily below a sync unit (integration), and MariaDB below two captures (on_mariadb/test_faults.py)
def test_restart_postgres(bed: Bed) -> None:
    def restart(load: Load) -> None:
        bed.postgres.restart()
        load.again()

    break_under_load(bed, restart)


@pytest.mark.matrix  # daily one is stopped without, in test_lives
def test_drain_a_capture(bed: Bed) -> None:
    """What is asked for in advance costs no lease: the capture is empty, and stays so, before it is stopped."""
    target = bed.sync_worker(UPSERT)
    if target is bed.controller():
        weir(bed, "owner", "resign")
    target_id = bed.id_of(target)
    with moving_on(bed):
        weir(bed, "capture", "drain", target_id)
        view = next(view for view in bed.captures() if view.id == target_id)
        assert (view.spans, view.workers) == (0, ())
    assert target not in bed.span_holders(UPSERT)
    assert bed.terminate(target, timeout_s=LEAVE_TIMEOUT_S) == 0


@pytest.mark.matrix
def test_stop_the_owner(bed: Bed) -> None:
    """It gives its ownership and all else away before it ends."""
    owner = bed.owner(UPSERT)
    with moving_on(bed):
        assert bed.terminate(owner, timeout_s=LEAVE_TIMEOUT_S) == 0
        assert len(bed.captures()) == len(bed.processes) - 1


@pytest.mark.matrix
def test_let_the_owner_resign(bed: Bed) -> None:
    before = bed.controller()
    with moving_on(bed):
        weir(bed, "owner", "resign")
        bed.wait_for("another is controller", lambda: bed.controller() is not before)


@contextmanager
def moving_on(bed: Bed) -> Iterator[None]:
    """Under load, no table of any changefeed is without a commit for long, however the block moves them."""
    with bed.load():
        written = bed.transactions()
        bed.wait_for("the load writes", lambda: bed.transactions() > written + WARM_TRANSACTIONS)
        bed.wait_for("both changefeeds follow", follows(bed), timeout_s=CATCH_UP_TIMEOUT_S)
        since = time.time()
        yield
        bed.wait_for("the service continues", follows(bed), timeout_s=SILENCE_S_MAX)
        silence_s = longest_silence_s(bed, since, time.time())
        assert silence_s < patient(SILENCE_S_MAX)
    bed.wait_for("both changefeeds have caught up", follows(bed), timeout_s=CATCH_UP_TIMEOUT_S)
    check_upsert(bed)
    check_changelog(bed)


def weir(bed: Bed, *words: str) -> None:
    """One command, which does what it is asked for."""
    server = f"http://{next(process.address for process in bed.processes if process.is_running)}"
    command = [sys.executable, "-m", "capture", *words, "--server", server]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def resyncs(bed: Bed) -> int:
    """How often a capture had to start its view of the cluster over because history was gone."""
    logs = [(bed.directory / f"{process.name}.log").read_text() for process in bed.processes]
    return sum("has been compacted away" in line for log in logs for line in log.splitlines())


def break_under_load(bed: Bed, fault: Callable[[Load], None], *, then: Callable[[], None] = lambda: None) -> None:
    """``then`` mends what must be mended by hand, after the service has gone on without it."""
    checks.break_under_load(bed, fault, written=bed.transactions, warm=WARM_TRANSACTIONS, then=then)
    check_upsert(bed)
    check_changelog(bed)

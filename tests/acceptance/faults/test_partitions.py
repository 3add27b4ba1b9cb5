"""Cables that are cut between captures, etcd and PostgreSQL: service continues, no row is lost or doubled.

Every capture is in a network namespace of its own. One bed and one load serve all tests: each cuts one capture off in
one way, waits for the service to continue without it, and heals; the last one ends the load and compares.
"""

import json
import time
from collections.abc import Callable, Iterator
from datetime import datetime

import pytest

from reactor.records.changefeed import SinkMode
from tests.acceptance import network
from tests.acceptance.bed import Bed, Load, Process
from tests.acceptance.checks import CHANGELOG, UPSERT, check_changelog, check_upsert, follows
from tests.acceptance.network import Host, Network
from tests.patience import PATIENCE

pytestmark = [
    pytest.mark.matrix,  # daily in simulated clusters, whose links break in one direction too
    pytest.mark.acceptance,
    pytest.mark.spark,
    pytest.mark.timeout(200),
    pytest.mark.skipif(bool(network.missing()), reason=network.missing()),
]

SESSION_TTL_S = 8
SERVICE_TIMEOUT_S = SESSION_TTL_S + 5
RETURN_TIMEOUT_S = 40.0
CATCH_UP_TIMEOUT_S = 60.0
NAMES = ("capture-0", "capture-1", "capture-2")


class Ground:
    """Three hosts under load."""

    def __init__(self, bed: Bed, net: Network, load: Load) -> None:
        self.bed = bed
        self.net = net
        self.load = load

    def cut_off(self, victim: Process, cut: Callable[[Host], None]) -> None:
        """The others continue without the victim, which has stopped by itself before they begin; then it comes back."""
        bed, before = self.bed, self.bed.id_of(victim)
        assert victim.host is not None
        cut(victim.host)
        cut_at, victim.is_cut_off = time.time(), True
        bed.wait_for("its lease is over", lambda: before not in self.members(), timeout_s=SERVICE_TIMEOUT_S)
        over_at = time.time()
        left_s = SERVICE_TIMEOUT_S - (over_at - cut_at) / PATIENCE
        bed.wait_for("the service continues", follows(bed), timeout_s=left_s)
        assert cut_at < self.stopped_at(victim, since=cut_at) < over_at
        self.mend(victim)
        assert before not in self.members()

    def mend(self, victim: Process) -> None:
        self.net.heal()
        victim.is_cut_off = False
        self.bed.wait_for("it is back", lambda: len(self.members()) == len(NAMES), timeout_s=RETURN_TIMEOUT_S)

    def members(self) -> set[str]:
        return {view.id for view in self.bed.captures()}

    def stopped_at(self, process: Process, *, since: float) -> float:
        """When it gave its session up, and with it all that it ran."""
        lines = (self.bed.directory / f"{process.name}.log").read_text().splitlines()
        records = [json.loads(line) for line in lines if line.startswith("{")]
        times = [_unix(one["timestamp"]) for one in records if one["event"] == "lease not renewed in time"]
        return next(found for found in times if found > since)


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    directory = tmp_path_factory.mktemp("bed")
    with Network(NAMES) as net, Bed(directory, captures=3, session_ttl_s=SESSION_TTL_S, network=net) as bed:
        bed.create_feed(UPSERT, SinkMode.UPSERT)
        bed.create_feed(CHANGELOG, SinkMode.CHANGELOG)
        with bed.load() as load:
            yield Ground(bed, net, load)


@pytest.fixture(autouse=True)
def in_step(ground: Ground) -> None:
    ground.bed.wait_for("both changefeeds follow", follows(ground.bed), timeout_s=CATCH_UP_TIMEOUT_S)


def test_the_sync_worker_loses_etcd(ground: Ground) -> None:
    ground.cut_off(ground.bed.sync_worker(UPSERT), ground.net.cut_from_etcd)


def test_the_owner_is_not_heard(ground: Ground) -> None:
    ground.cut_off(ground.bed.owner(UPSERT), ground.net.mute)


def test_a_capture_loses_everything(ground: Ground) -> None:
    ground.cut_off(ground.bed.span_holders(CHANGELOG)[0], ground.net.isolate)


def test_a_capture_loses_its_peers(ground: Ground) -> None:
    """Its lease lives on, but nobody can tell it what to do: it gives up what it has by itself."""
    bed = ground.bed
    owner = bed.owner(UPSERT)
    victim = bed.found("another", lambda: next(one for one in bed.span_holders(UPSERT) if one is not owner))
    before = bed.id_of(victim)
    assert victim.host is not None
    ground.net.cut_from_peers(victim.host)
    victim.is_cut_off = True
    bed.wait_for("the service continues", follows(bed), timeout_s=SERVICE_TIMEOUT_S)
    bed.wait_for("it is no member", lambda: before not in ground.members())
    ground.mend(victim)


@pytest.mark.parametrize("is_controller", [False, True], ids=["owner", "controller"])
def test_the_owner_loses_its_peers(ground: Ground, is_controller: bool) -> None:
    """Its changefeeds move to captures that hear each other, also if it is the controller."""
    bed = ground.bed
    controller = bed.controller()
    owner = controller if is_controller else next(one for one in bed.processes if one is not controller)
    bed.own(owner, UPSERT, CHANGELOG)
    before = bed.id_of(owner)
    assert owner.host is not None
    ground.net.cut_from_peers(owner.host)
    owner.is_cut_off = True
    bed.wait_for("the service continues", follows(bed), timeout_s=SERVICE_TIMEOUT_S)
    assert before not in ground.members()
    for feed in (UPSERT, CHANGELOG):
        assert owner not in [bed.owner(feed), *bed.span_holders(feed)]
    assert bed.controller() is not owner
    bed.wait_for("it says why it has no part", lambda: any("no other capture" in one.fault for one in bed.captures()))
    ground.mend(owner)


def test_nothing_is_lost_or_doubled(ground: Ground) -> None:
    """After all that."""
    ground.load.stop()
    ground.bed.wait_for("all have caught up", follows(ground.bed), timeout_s=CATCH_UP_TIMEOUT_S)
    check_upsert(ground.bed)
    check_changelog(ground.bed)
    for feed in (UPSERT, CHANGELOG):
        assert ground.bed.query(feed).error is None


def _unix(timestamp: str) -> float:
    return datetime.fromisoformat(timestamp).timestamp()

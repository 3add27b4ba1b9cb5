"""Small clusters, each exposed to different faults, all of which must recover."""

import os
import subprocess
import sys

import pytest

from tests.simulation.planted import PLANTED, first_that_finds, planted
from tests.simulation.run import DeafRun, PoisonedRun, simulate

#: planted bug → number of seeds to try; most are found in the first few. All of them: ``make simulate PLANTED=1``
_CHEAP = {
    "answer before it is done": 5,
    "alter before the spans are there": 5,
    "compare what was not held": 20,
    "repartition before the sink has": 40,
    "go back over a move": 5,
    "launch over an owner": 20,
    "lose an assignment": 5,
    "follow a log that has events": 5,
    "forget a span in one place only": 5,
    "forget the from ts check": 100,
    "let a copy win over later changes": 5,
    "let a held table flow at once": 20,
    "forget what holds a table": 5,
    "lose a patch on overflow": 40,
    "name parts before they are there": 5,
    "own over a crash": 5,
    "promote early": 20,
    "resume inside a transaction": 40,
    "skip the barrier revision": 5,
    "write past the barrier": 5,
    "write without the assignment": 30,
    "state a checkpoint of some spans": 20,
}
#: bugs that need more seeds are planted in the matrix
_DAILY_SEEDS = 30


@pytest.fixture
def valid_state() -> None:
    """Replaces the fixture: runs validate after every tick, and those with a planted bug may end in any state."""


@pytest.mark.timeout(900)
@pytest.mark.parametrize("seeds", [6, pytest.param(300, marks=[pytest.mark.matrix, pytest.mark.minutes(8)])])
def test_clusters_come_out_of_everything_whole(seeds: int) -> None:
    """Run in separate processes, one per core."""
    found = subprocess.run(
        [sys.executable, "-m", "tests.simulation", "--seeds", str(seeds)], capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stdout + found.stderr


@pytest.mark.matrix
@pytest.mark.parametrize("seed", range(1, 7))
def test_a_table_that_ends_whoever_writes_it_is_held_alone(seed: int) -> None:
    assert simulate(seed, kind=PoisonedRun).violations == ()


@pytest.mark.matrix
@pytest.mark.parametrize("seed", range(1, 9))
def test_changefeeds_flow_without_a_capture_that_loses_its_peers(seed: int) -> None:
    assert simulate(seed, kind=DeafRun).violations == ()


def test_a_seed_goes_the_same_way_twice() -> None:
    first, second = simulate(7), simulate(7)
    assert first.story == second.story
    assert first.digest == second.digest


@pytest.mark.matrix
def test_a_seed_goes_the_same_way_in_another_process() -> None:
    """Also with another hash seed, which changes the order of sets of names."""
    script = "from tests.simulation.run import simulate; import sys; sys.stdout.write(simulate(11).digest)"
    other = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | {"PYTHONHASHSEED": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert other.stdout == simulate(11).digest


@pytest.mark.sample(0.07)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.matrix] if seeds > _DAILY_SEEDS else [])
        for name, seeds in sorted(_CHEAP.items())
    ],
)
def test_a_planted_bug_is_found(name: str) -> None:
    assert first_that_finds(name, range(1, _CHEAP[name] + 1)) is not None


@pytest.mark.parametrize("name", sorted(PLANTED))
def test_a_bug_can_be_planted(name: str) -> None:
    """Also one that takes long to find: what it replaces is still there."""
    with planted(name):
        pass


def test_every_cheap_bug_is_planted() -> None:
    assert _CHEAP.keys() <= PLANTED.keys()

"""``python -m tests.simulation``: many seeds over all cores, or one seed with its log, or the planted bugs.

Exit status 0: no violation was found (with ``--planted``: every bug was found).
"""

import argparse
import multiprocessing
import sys
import time
from collections.abc import Iterable, Iterator

from tests.simulation.planted import PLANTED, first_that_finds
from tests.simulation.run import Outcome, simulate

_PLANTED_SEEDS = 200
_COMPLAINT_LENGTH = 120


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many")
    parser.add_argument("--first", type=int, default=1, help="the first of them")
    parser.add_argument("--seed", type=int, help="one seed, with its story")
    parser.add_argument("--planted", action="store_true", help="find the planted bugs")
    chosen = parser.parse_args()
    if chosen.seed is not None:
        return _replay(chosen.seed)
    if chosen.planted:
        return _find_planted()
    return _run_many(range(chosen.first, chosen.first + chosen.seeds))


def _replay(seed: int) -> int:
    outcome = simulate(seed)
    for line in outcome.story:
        _say(line)
    _say(f"seed {seed}, digest {outcome.digest}, {outcome.virtual_s:.0f} s of virtual time, {_verdict(outcome)}")
    return 1 if outcome.violations else 0


def _run_many(seeds: Iterable[int]) -> int:
    started, failed, virtual_s, slowest_s, count = time.monotonic(), 0, 0.0, 0.0, 0
    for outcome in _in_parallel(seeds):
        count += 1
        virtual_s += outcome.virtual_s
        slowest_s = max(slowest_s, outcome.recovery_s)
        if outcome.violations:
            failed += 1
            _say(f"seed {outcome.seed}: {_verdict(outcome)}\n  replay it: make simulate SEED={outcome.seed}")
    took_s = time.monotonic() - started
    _say(
        f"{count} seeds, {virtual_s / 3600:.1f} h of virtual time in {took_s:.0f} s, "
        f"slowest recovery {slowest_s:.0f} s, {failed} with a violation"
    )
    return 1 if failed else 0


def _in_parallel(seeds: Iterable[int]) -> Iterator[Outcome]:
    with multiprocessing.get_context("fork").Pool(maxtasksperchild=200) as pool:
        yield from pool.imap_unordered(simulate, seeds)


def _find_planted() -> int:
    started = time.monotonic()
    _say(f"{'bug':45} seed  first complaint")
    with multiprocessing.get_context("fork").Pool() as pool:
        missed = [name for name, outcome in pool.imap(_find, PLANTED) if not _report(name, outcome)]
    _say(f"{len(PLANTED)} bugs, {len(missed)} of them not found, in {time.monotonic() - started:.0f} s")
    return 1 if missed else 0


def _find(name: str) -> tuple[str, Outcome | None]:
    return name, first_that_finds(name, range(1, _PLANTED_SEEDS + 1))


def _report(name: str, outcome: Outcome | None) -> bool:
    if outcome is None:
        _say(f"{name:45}    -  not found within {_PLANTED_SEEDS} seeds")
        return False
    complaint = outcome.violations[0]
    _say(f"{name:45} {outcome.seed:4}  {complaint[:_COMPLAINT_LENGTH]}{'…' * (len(complaint) > _COMPLAINT_LENGTH)}")
    return True


def _verdict(outcome: Outcome) -> str:
    return "\n  ".join(outcome.violations) or "nothing found"


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())

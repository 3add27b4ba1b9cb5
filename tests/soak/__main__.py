"""Command line of the soak: ``python -m tests.soak --minutes 15 --seeds 1 2 3``; exit code 1 if a table differs."""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.soak import story
from tests.soak.sinks import SINKS, USUAL_SINKS


def main() -> int:
    """Run the seeds one after the other."""
    parser = argparse.ArgumentParser(description="random schema changes, rows and kills, compared now and then")
    parser.add_argument("--minutes", type=float, default=15.0, help="of each seed")
    parser.add_argument("--round-minutes", type=float, default=5.0, help="between two comparisons")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    names = (*story.USUAL, *story.OTHERS)
    parser.add_argument("--sources", nargs="+", default=story.USUAL, choices=names, help=f"of {', '.join(names)}")
    parser.add_argument("--sinks", nargs="+", default=USUAL_SINKS, choices=[*SINKS], help=f"of {', '.join(SINKS)}")
    parser.add_argument("--readers", action="store_true", help="readers follow all tables of changelogs")
    parser.add_argument("--directory", type=Path, default=None)
    asked = parser.parse_args()
    failed = 0
    for seed in asked.seeds:
        directory = Path(tempfile.mkdtemp(prefix=f"weir-soak-{seed}-", dir=asked.directory))
        outcome = story.run(
            directory,
            seed,
            seconds=60 * asked.minutes,
            round_s=60 * asked.round_minutes,
            say=_say(seed),
            sources=asked.sources,
            sinks=asked.sinks,
            with_readers=asked.readers,
        )
        failed += bool(outcome.problems)
        _report(seed, outcome, directory)
    return 1 if failed else 0


def _say(seed: int) -> Callable[[str], None]:
    started = time.monotonic()

    def say(text: str) -> None:
        sys.stderr.write(f"seed {seed}, {time.monotonic() - started:4.0f} s: {text}\n")

    return say


def _report(seed: int, outcome: story.Outcome, directory: Path) -> None:
    verdict = f"NOT EQUAL, see {directory}" if outcome.problems else "equal"
    lines = [
        f"seed {seed}: {verdict}; {outcome.statements} statements ({outcome.refused} refused by the server), "
        f"{outcome.schema_changes} schema changes, {outcome.kills} faults, {outcome.comparisons} comparisons of "
        f"{outcome.tables_compared} tables",
        *(f"  {problem}" for problem in outcome.problems),
        *(f"  held {count}: {reason}" for reason, count in outcome.held.most_common()),
    ]
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())

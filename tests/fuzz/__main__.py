"""Fuzzer: ``python -m tests.fuzz --seconds 60``, each target for so long; exit 1 if an input was found.

    guided     in a process with NUMBA_DISABLE_JIT=1, so that kernels are Python: an input that reaches lines which none
               before has reached joins the corpus, and others are made from it
    replayed   the corpus again in a process with compiled kernels and NUMBA_BOUNDSCHECK=1

An input that raises anything but a refusal, hangs, or ends its process is kept below ``tests/fuzz/found``, where a test
(``tests/unit/test_found_inputs.py``) runs it from then on.
"""

import argparse
import hashlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
FOUND: Final = Path(__file__).parent / "found"
_WATCHED: Final = tuple(f"{ROOT}/{part}/" for part in ("agent", "capture", "reactor"))
_INPUT_S: Final = 20
_TELLING: Final = (
    b"\0",
    b"\1",
    b"\x7f",
    b"\x80",
    b"\xfb",
    b"\xff",
    b"\xff" * 4,
    b"\x7f\xff\xff\xff",
    b"\xff\xff\xff\x7f",
)


class Coverage:
    """The lines of ours that have been run."""

    def __init__(self) -> None:
        self.lines: set[tuple[int, int]] = set()
        self.has_grown = False

    def watch(self, work: Callable[[], None]) -> bool:
        """Whether lines came that were new."""
        self.has_grown = False
        sys.settrace(self._enter)
        try:
            work()
        finally:
            sys.settrace(None)
        return self.has_grown

    def _enter(self, frame: FrameType, event: str, value: object) -> Any:
        return self._line if frame.f_code.co_filename.startswith(_WATCHED) else None

    def _line(self, frame: FrameType, event: str, value: object) -> Any:
        line = (id(frame.f_code), frame.f_lineno)
        if line not in self.lines:
            self.lines.add(line)
            self.has_grown = True
        return self._line


def mutated(data: bytes, other: bytes, chance: random.Random, length_max: int) -> bytes:
    """A few bytes of ``data`` changed, left out, repeated, or taken from another input."""
    found = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 4, 8))):
        at = chance.randrange(len(found) + 1)
        match chance.randrange(6):
            case 0 if found:
                found[at % len(found)] ^= 1 << chance.randrange(8)
            case 1:
                piece = chance.choice(_TELLING)
                found[at : at + len(piece)] = piece
            case 2:
                found[at:at] = chance.randbytes(chance.randrange(1, 9))
            case 3:
                del found[at : at + chance.choice((1, 2, 4, 16, 64))]
            case 4:
                start = chance.randrange(len(other) + 1)
                found[at:at] = other[start : start + chance.randrange(1, 64)]
            case _:
                found[at : at + 1] = bytes([chance.randrange(256)])
    return bytes(found[:length_max])


def guide(name: str, seconds: float, directory: Path, seed: int) -> int:
    """How many inputs were found."""
    from tests.fuzz.targets import LENGTH_MAX, TARGETS

    chance, coverage = random.Random(seed), Coverage()
    corpus = [*TARGETS[name].seeds()]
    known: set[str] = set()
    for data in corpus:
        coverage.watch(lambda data=data: attempt(name, data, directory, known))  # type: ignore[misc]
    deadline, tried = time.monotonic() + seconds, 0
    while time.monotonic() < deadline:
        data = mutated(chance.choice(corpus), chance.choice(corpus), chance, LENGTH_MAX)
        tried += 1
        if coverage.watch(lambda data=data: attempt(name, data, directory, known)):  # type: ignore[misc]
            corpus.append(data)
    for number, data in enumerate(corpus):
        (directory / f"{number:05}").write_bytes(data)
    say(f"{name}: {tried} inputs, {len(corpus)} in the corpus, {len(coverage.lines)} lines, {len(known)} found")
    return len(known)


def replay(directory: Path) -> int:
    """All corpora: compiling takes longer than running."""
    known: set[str] = set()
    for file in sorted(directory.glob("*/[0-9]*")):
        attempt(file.parent.name, file.read_bytes(), directory / file.parent.name, known)
    say(f"replayed with compiled kernels that check bounds: {len(known)} found")
    return len(known)


def attempt(name: str, data: bytes, directory: Path, known: set[str]) -> None:
    """An input that raises is kept, once for each place where that happens; one that ends the process lies in
    ``now``."""
    from tests.fuzz.targets import run

    (directory / "now").write_bytes(data)
    signal.alarm(_INPUT_S)
    try:
        run(name, data)
    except Exception as error:
        if isinstance(error, OverflowError) and os.environ.get("NUMBA_DISABLE_JIT"):
            return  # of numpy's scalars, where compiled kernels count with 64 bits
        last = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{type(error).__name__} at {last.filename}:{last.lineno}"
        if place not in known:
            known.add(place)
            say(f"{name}: {place}: {str(error)[:200]}: {keep(name, data)}")
    finally:
        signal.alarm(0)


def keep(name: str, data: bytes) -> Path:
    path = FOUND / name / hashlib.sha1(data).hexdigest()[:12]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path.relative_to(ROOT)


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def child(arguments: Sequence[str], directory: Path, environment: dict[str, str]) -> bool:
    """Whether it found nothing, and did not die."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.fuzz", *arguments]
    code = subprocess.run(command, cwd=ROOT, env={**os.environ, **environment}, check=False).returncode
    if code not in (0, 1):
        now = max(directory.glob("**/now"), key=lambda file: file.stat().st_mtime_ns)
        say(f"the process ended with {code}: {keep(now.parent.name, now.read_bytes())}")
    return code == 0


def fuzz(names: Iterable[str], seconds: float, seed: int) -> bool:
    is_good = True
    with tempfile.TemporaryDirectory(prefix="weir-fuzz-") as place:
        checked = {"NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": f"{place}/kernels"}
        for name in names:
            directory = Path(place) / name
            directory.mkdir()
            guided = ["--guide", name, "--seconds", str(seconds), "--directory", str(directory), "--seed", str(seed)]
            is_good &= child(guided, directory, {"NUMBA_DISABLE_JIT": "1"})
        return child(["--replay", "--directory", place], Path(place), checked) and is_good


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--only", default="", help="targets, joined by commas")
    parser.add_argument("--guide", help=argparse.SUPPRESS)
    parser.add_argument("--replay", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--directory", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.guide:
        return min(guide(given.guide, given.seconds, given.directory, given.seed), 1)
    if given.replay:
        return min(replay(given.directory), 1)
    from tests.fuzz.targets import TARGETS

    say(f"seed {given.seed}")
    return 0 if fuzz(filter(None, given.only.split(",")) if given.only else TARGETS, given.seconds, given.seed) else 1


if __name__ == "__main__":
    sys.exit(main())

"""Fail-points: what the variable may say, and that each trap springs once, at its time."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from reactor import failpoints
from reactor.errors import FailPointError
from reactor.failpoints import Action, Point, Trap, parse

AT = Point.FLUSH_BEFORE_COMMIT
#: reaches the point five times, and says each time that it has passed it
WALK = (
    "from reactor import failpoints as f\nfor i in range(5): f.reach(f.Point.FLUSH_BEFORE_COMMIT); print(i, flush=True)"
)


@pytest.fixture(autouse=True)
def unarmed_again() -> Iterator[None]:
    yield
    failpoints.armed.cache_clear()


def arm(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(failpoints.VARIABLE, text)
    failpoints.armed.cache_clear()


def test_what_the_variable_says() -> None:
    found = parse("flush-before-commit=kill; span-asked=stop@3;dump-staged=error,when:/tmp/a,b;span-asked=error;")
    assert found == {
        Point.FLUSH_BEFORE_COMMIT: (Trap(Action.KILL),),
        Point.SPAN_ASKED: (Trap(Action.STOP, 3), Trap(Action.ERROR)),
        Point.DUMP_STAGED: (Trap(Action.ERROR, 1, "/tmp/a,b"),),
    }
    assert parse("") == parse(" ; ") == {}


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("flush=kill", "'flush'"),
        ("=kill", "''"),
        ("span-asked", "''"),
        ("span-asked=explode", "'explode'"),
        ("span-asked=kill@0", "'kill@0'"),
        ("span-asked=kill@x", "'kill@x'"),
        ("span-asked=kill,", "'kill,'"),
        ("span-asked=kill,when:", "when:"),
        ("span-asked=kill,file", "'kill,file'"),
    ],
)
def test_what_it_must_not_say(text: str, word: str) -> None:
    with pytest.raises(ValueError) as refused:
        parse(text)
    assert word in str(refused.value)
    assert "\n" not in str(refused.value)


def test_nothing_happens_when_nothing_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    arm(monkeypatch, "")
    for point in Point:
        failpoints.reach(point)


def test_an_error_is_raised_once_at_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    arm(monkeypatch, f"{AT}=error@2")
    failpoints.reach(AT)
    failpoints.reach(Point.FLUSH_AFTER_COMMIT)
    with pytest.raises(FailPointError) as raised:
        failpoints.reach(AT)
    assert raised.value.retryable
    failpoints.reach(AT)


def test_a_file_says_when_and_is_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "now"
    arm(monkeypatch, f"{AT}=error@2,when:{file}")
    file.touch()
    failpoints.reach(AT)
    assert file.exists()
    for _ in range(2):
        file.touch()
        with pytest.raises(FailPointError):
            failpoints.reach(AT)
        assert not file.exists()
        failpoints.reach(AT)


def test_a_process_kills_itself() -> None:
    done = subprocess.run(walk(), env=environment("kill@3"), capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "0\n1\n")


def test_a_process_stops_itself_and_continues_when_asked() -> None:
    with subprocess.Popen(walk(), env=environment("stop@3"), stdout=subprocess.PIPE, text=True) as process:
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        process.send_signal(signal.SIGCONT)
        output, _ = process.communicate()
    assert (process.returncode, output.split()) == (0, list("01234"))


def walk() -> list[str]:
    # errors of the log go where nobody compares them
    quiet = "import structlog, sys; structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))\n"
    return [sys.executable, "-c", quiet + WALK]


def environment(action: str) -> dict[str, str]:
    return {**os.environ, failpoints.VARIABLE: f"{AT}={action}"}

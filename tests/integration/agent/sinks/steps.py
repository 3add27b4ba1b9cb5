"""Steps of a sink: a process that dies, as by kill -9, before one of the steps in which it changes files and catalogs.

A step is a file that is opened for writing, renamed or removed below the sink's directory, and each side of a commit
of the embedded catalog. What delta-rs does by itself is not seen.
"""

import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import event
from sqlalchemy.engine import Engine

from agent.sinks.iceberg.table.io import LakeFileIO
from tests.integration.agent.forks import PROCESSES

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class _Steps:
    """Counts the steps of this process; it dies before step ``fatal``."""

    def __init__(self, directory: Path, fatal: int | None) -> None:
        self._directory = str(directory)
        self._fatal = fatal
        self.count = 0

    def take(self) -> None:
        if self.count == self._fatal:
            os.kill(os.getpid(), signal.SIGKILL)
        self.count += 1

    def watch(self) -> None:
        sys.addaudithook(self._audited)
        event.listen(Engine, "commit", lambda _: self.take())
        event.listen(Engine, "checkin", lambda *_: self.take())
        inner = LakeFileIO.delete

        def delete(io: LakeFileIO, location: Any) -> None:  # by pyarrow, which audits nothing
            self.take()
            inner(io, location)

        LakeFileIO.delete = delete  # type: ignore[assignment, method-assign]

    def _audited(self, name: str, args: tuple[Any, ...]) -> None:
        is_write = name == "open" and isinstance(args[2], int) and bool(args[2] & _WRITES)
        if is_write or name in ("os.rename", "os.remove"):
            path = os.fsdecode(args[0]) if isinstance(args[0], str | bytes | os.PathLike) else ""
            if path.startswith(self._directory):
                self.take()


@dataclass(frozen=True)
class Outcome:
    """What ``act`` returned, and its number of steps."""

    value: Any
    steps: int


def _run(act: Callable[[], object], directory: Path, fatal: int | None, report: Any) -> None:
    steps = _Steps(directory, fatal)
    steps.watch()
    report.send(Outcome(act(), steps.count))


def run(act: Callable[[], object], directory: Path, fatal: int | None = None) -> Outcome | None:
    """Do ``act`` in a process of its own, which dies before step ``fatal``: then the answer is None.

    :raises AssertionError: it ended otherwise.
    """
    receiver, sender = PROCESSES.Pipe(duplex=False)
    process = PROCESSES.Process(target=_run, args=(act, directory, fatal, sender))
    process.start()
    sender.close()
    try:
        outcome: Outcome | None = receiver.recv()
    except EOFError:
        outcome = None
    process.join()
    assert process.exitcode == (-signal.SIGKILL if outcome is None else 0), f"it ended with {process.exitcode}"
    return outcome

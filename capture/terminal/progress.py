"""Live progress on stderr: bars on a terminal, otherwise a plain line every few seconds (for example in a CI log)."""

import sys
import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

_PLAIN_INTERVAL_S = 5.0


class Reporter:
    """Shows one step of work at a time: ``step`` begins it, ``show`` updates it. A context manager."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._live = sys.stderr.isatty()
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[note]}", markup=False),
            TimeElapsedColumn(),
        )
        self._progress = Progress(*columns, console=self._console, disable=not self._live)
        self._task: TaskID | None = None
        self._text = ""
        self._shown_at = 0.0

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._progress.stop()

    def step(self, text: str) -> None:
        """Begin a step; the previous line stays as it is."""
        if self._task is not None:
            self._progress.stop_task(self._task)
        self._text, self._shown_at = text, 0.0
        self._task = self._progress.add_task(text, total=None, note="")
        if not self._live:
            self._plain(text)

    def show(self, done: float, total: float, note: str) -> None:
        """Update the step. ``total`` 0: not known."""
        assert self._task is not None, "a step comes first"
        self._progress.update(self._task, completed=done, total=total or None, note=note)
        if not self._live and time.monotonic() - self._shown_at >= _PLAIN_INTERVAL_S:
            self._shown_at = time.monotonic()
            self._plain(f"{self._text}: {done / total:.0%} {note}" if total else f"{self._text}: {note}")

    def finish(self, note: str = "") -> None:
        """Finish the step."""
        if self._task is not None:
            total = self._progress.tasks[self._task].total or 1
            self._progress.update(self._task, completed=total, total=total, note=note)
            self._progress.stop_task(self._task)
        if note and not self._live:
            self._plain(f"{self._text}: {note}")

    def _plain(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

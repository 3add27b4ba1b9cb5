"""Command ``log inspect``: prints a file's content page by page, in bounded memory.

Everything before a damaged place is printed, followed by the error.
"""

from collections.abc import Iterator
from itertools import islice
from typing import TypeVar

from capture.errors import NotALogError
from capture.inspection.contents import BatchView, EventView, inspect_events, inspect_segment
from capture.inspection.file_kinds import log_files_of
from capture.terminal import console
from reactor.errors import WeirError

_PAGE = 500
_WORDS_MAX = 200

T = TypeVar("T", EventView, BatchView)


def run(file: str, *, limit: int, skip: int, count: int | None, json: bool) -> int:
    """Print the file, and return the command's exit code.

    :raises WeirError: the file is not a log, or parts of it cannot be read.
    """
    problems: list[str] = []
    if (files := log_files_of(file)) is not None:
        name = file.removeprefix("file://")
        events = _noted(inspect_events(files, name, limit=limit, skip=skip, count=count), problems)
        if json:
            console.print_json_list({"file": file}, "events", events)
        else:
            _print_events(events)
    else:
        batches = _noted(inspect_segment(file, limit=limit), problems)
        if json:
            console.print_json_list({"file": file}, "batches", batches)
        else:
            _print_batches(batches)
    if problems:
        raise NotALogError(f"not all of {file} can be read: {len(problems)} of what is shown, first: {problems[0]}")
    return 0


def _noted(found: Iterator[T], problems: list[str]) -> Iterator[T]:
    for one in found:
        if one.problem:
            problems.append(one.problem)
        yield one


def _print_events(events: Iterator[EventView]) -> None:
    for page in _pages(events):
        lines = [line for one in page for line in _lines(one)]
        console.print_table(("position", "event", "table, before", "what, after"), lines)


def _lines(one: EventView) -> Iterator[tuple[object, ...]]:
    yield one.position, one.event, one.table, " ".join((one.problem or one.what).split())[:_WORDS_MAX]
    for row in one.rows:
        yield one.position, row.operation, row.before, row.after


def _pages(found: Iterator[T]) -> Iterator[list[T]]:
    """Divide into pages; items found before an error are yielded before it is raised."""
    error: WeirError | None = None
    page: list[T] = []
    while error is None and (not page or len(page) == _PAGE):
        page = []
        try:
            page.extend(islice(found, _PAGE))
        except WeirError as failure:
            error = failure
        if not page:
            break
        yield page
    if error is not None:
        raise error


def _print_batches(batches: Iterator[BatchView]) -> None:
    for batch in batches:
        title = f"{batch.table} ({batch.changes:,} changes, Ts {batch.first_ts} to {batch.last_ts})"
        rows: list[tuple[object, ...]] = [(row.commit_ts, row.operation, row.before, row.after) for row in batch.rows]
        if batch.problem:
            rows.append(("", "problem", "", batch.problem))
        console.print_table(("commit ts", "operation", "before", "after"), rows, title=title)

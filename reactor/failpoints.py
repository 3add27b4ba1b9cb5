"""Fail-points: places between two critical steps where a test makes this process die, stall or fail.

``WEIR_FAILPOINTS="name=action[;name=action]"`` with the actions ``kill`` (SIGKILL to itself), ``stop`` (SIGSTOP) and
``error`` (a retryable error). Each happens once: when the point is reached for the first time, or with ``kill@3`` for
the third. ``kill,when:/path`` waits for that file, and is done by the process that removes it: so a test can configure
all captures of a cluster alike and choose the moment, and exactly one of them is hit. A point may have several actions.

All names are declared here, and ``tests/architecture`` checks that each is reached at exactly one place. Spark
executors inherit the variable; only some points are on their path. Code that only decides must not reach a point
(enforced by import-linter): decisions are tested in memory.
"""

import os
import signal
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from itertools import count

import structlog

from reactor.errors import FailPointError

VARIABLE = "WEIR_FAILPOINTS"

_log = structlog.get_logger()


class Point(StrEnum):
    """A place where a test can inject a failure."""

    # owner: before any of its commits, and before those that change a changefeed's status
    OWNER_BEFORE_COMMIT = "owner-before-commit"
    OWNER_AFTER_COMMIT = "owner-after-commit"
    OWNER_BEFORE_STATUS = "owner-before-status"
    OWNER_AFTER_STATUS = "owner-after-status"
    #: the source is cleaned up, the removed changefeed's keys still exist
    REMOVE_DROPPED = "remove-dropped"
    #: a chunk is staged, but not yet in the manifest
    DUMP_STAGED = "dump-staged"
    #: a table is loaded, but not yet in the unit's record
    LOAD_LOADED = "load-loaded"
    #: a segment is written, but not yet counted by the log's head
    SYNC_WRITTEN = "sync-written"
    #: the head has moved, but the server has not been informed
    SYNC_MOVED = "sync-moved"
    #: the sink was read, but "prepared" is not yet reported to the owner
    SPAN_OPENED = "span-opened"
    #: a span was ordered to run, but is not yet flushed
    SPAN_ASKED = "span-asked"
    #: a table's spans are stopped and the repartition is recorded; before and after the sink applies it
    REPARTITION_BEFORE_SINK = "repartition-before-sink"
    REPARTITION_AFTER_SINK = "repartition-after-sink"
    #: the owner's capture is about to change the sink's tables; they are changed, but not yet the tables' records
    SCHEMA_BEFORE_SINK = "schema-before-sink"
    SCHEMA_AFTER_SINK = "schema-after-sink"
    #: the source sends a table that joins, but the owner has not been informed
    TABLE_PUBLISHED = "table-published"
    #: a table has left its changefeed; before and after the sink says so
    MARK_BEFORE_SINK = "mark-before-sink"
    MARK_AFTER_SINK = "mark-after-sink"
    #: a table's rows are staged again and recorded, but the owner has not been informed; before and after the sink
    #: replaces the table
    COPY_STAGED = "copy-staged"
    COPY_BEFORE_SINK = "copy-before-sink"
    COPY_AFTER_SINK = "copy-after-sink"
    #: the source has a new position, the unit's record and the log's head do not say so yet, or do
    POSITION_TAKEN = "position-taken"
    POSITION_RECORDED = "position-recorded"
    #: executor: files are written, but not yet reported
    FLUSH_WRITTEN = "flush-written"
    FLUSH_BEFORE_COMMIT = "flush-before-commit"
    FLUSH_AFTER_COMMIT = "flush-after-commit"


class Action(StrEnum):
    """The effect on the process that reaches a point."""

    KILL = "kill"
    STOP = "stop"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Trap:
    """One armed point: ``action`` on the ``nth`` time; or once ``file`` can be removed, but not before the ``nth``
    time."""

    action: Action
    nth: int = 1
    file: str = ""
    _reached: "count[int]" = field(default_factory=lambda: count(1), compare=False)

    def is_due(self) -> bool:
        reached = next(self._reached)
        return reached >= self.nth and _is_removed(self.file) if self.file else reached == self.nth

    def spring(self, point: Point) -> None:
        """:raises FailPointError: if that is the action."""
        _log.warning("fail-point reached", point=point, action=self.action)
        if self.action is Action.ERROR:
            raise FailPointError(f"fail-point {point}: it is tried again; unset {VARIABLE} to be rid of it")
        # to this very thread, which then does not run another instruction
        signal.pthread_kill(threading.get_ident(), signal.SIGKILL if self.action is Action.KILL else signal.SIGSTOP)


@cache
def armed() -> Mapping[Point, tuple[Trap, ...]]:
    """The traps of the environment variable, parsed on the first call.

    :raises ValueError: it is malformed; the message is one line.
    """
    return parse(os.environ.get(VARIABLE, ""))


def reach(point: Point) -> None:
    """Mark that the caller has reached ``point``.

    :raises FailPointError: if a test requested it.
    """
    for trap in armed().get(point, ()):
        if trap.is_due():
            trap.spring(point)


def parse(text: str) -> dict[Point, tuple[Trap, ...]]:
    """Parse the variable's value.

    :raises ValueError: an unknown name or action; the message is one line.
    """
    found: dict[Point, tuple[Trap, ...]] = {}
    for item in filter(None, map(str.strip, text.split(";"))):
        point, trap = _parse_one(item)
        found[point] = (*found.get(point, ()), trap)
    return found


def _parse_one(text: str) -> tuple[Point, Trap]:
    name, _, what = text.partition("=")
    if name not in list(Point):
        raise ValueError(f"no fail-point is called {name!r}; there are {', '.join(Point)}")
    doing, *conditions = what.split(",", 1)
    action, _, nth = doing.partition("@")
    file = conditions[0].removeprefix("when:") if conditions else ""
    is_readable = action in list(Action) and (nth or "1").isdecimal() and int(nth or "1") > 0
    if not is_readable or (conditions and file in ("", conditions[0])):
        raise ValueError(f"{what!r} of fail-point {name} is none of {', '.join(Action)}, with @N or ,when:/path behind")
    return Point(name), Trap(Action(action), int(nth or "1"), file)


def _is_removed(file: str) -> bool:
    try:
        os.unlink(file)
    except FileNotFoundError:
        return False
    return True

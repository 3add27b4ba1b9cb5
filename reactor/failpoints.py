"""Fail-points: places between two steps that matter, where a test makes this process die, stall or fail.

``WEIR_FAILPOINTS="name=action[;name=action]"`` with the actions ``kill`` (SIGKILL to itself), ``stop`` (SIGSTOP) and
``error`` (a retryable error). Each is done once: when the point is reached for the first time, or with ``kill@3`` for
the third. ``kill,when:/path`` waits for that file, and is done by whoever removes it: so a test can set up all captures
of a cluster alike and choose the moment, and exactly one of them is hit. A point may have several actions.

All names are declared here, and ``tests/architecture`` sees that each is reached at one place. Executors of Spark
inherit the variable; not all points are on their way. Nothing that only decides may reach a point (import-linter holds
it): decisions are tested in memory.
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
    """Where something can be made to go wrong."""

    # the owner: any of its commits, and those that move a changefeed's status
    OWNER_BEFORE_COMMIT = "owner-before-commit"
    OWNER_AFTER_COMMIT = "owner-after-commit"
    OWNER_BEFORE_STATUS = "owner-before-status"
    OWNER_AFTER_STATUS = "owner-after-status"
    #: the source is cleaned up, the removed changefeed's keys are still there
    REMOVE_DROPPED = "remove-dropped"
    #: a chunk is staged, the manifest does not say so yet
    DUMP_STAGED = "dump-staged"
    #: a table is loaded, the unit's record does not say so yet
    LOAD_LOADED = "load-loaded"
    #: a segment is written, the log's head does not count it yet
    SYNC_WRITTEN = "sync-written"
    #: the head has moved, the server does not know yet
    SYNC_MOVED = "sync-moved"
    #: the sink was read, "prepared" is not reported to the owner yet
    SPAN_OPENED = "span-opened"
    #: asked to run, not yet among the spans that are flushed
    SPAN_ASKED = "span-asked"
    #: a table's spans are stopped and the repartition is written down; the sink has not taken it yet, or has
    REPARTITION_BEFORE_SINK = "repartition-before-sink"
    REPARTITION_AFTER_SINK = "repartition-after-sink"
    #: the owner's capture is to change the sink's tables; they are changed, and the tables' records are not yet
    SCHEMA_BEFORE_SINK = "schema-before-sink"
    SCHEMA_AFTER_SINK = "schema-after-sink"
    #: on an executor: files are written, nobody knows of them
    FLUSH_WRITTEN = "flush-written"
    FLUSH_BEFORE_COMMIT = "flush-before-commit"
    FLUSH_AFTER_COMMIT = "flush-after-commit"


class Action(StrEnum):
    """What then happens to the process that reached it."""

    KILL = "kill"
    STOP = "stop"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Trap:
    """One armed point: ``action``, the ``nth`` time; or when ``file`` can be removed, but no earlier than that."""

    action: Action
    nth: int = 1
    file: str = ""
    _reached: "count[int]" = field(default_factory=lambda: count(1), compare=False)

    def is_due(self) -> bool:
        reached = next(self._reached)
        return reached >= self.nth and _is_removed(self.file) if self.file else reached == self.nth

    def spring(self, point: Point) -> None:
        """:raises FailPointError: that is the action."""
        _log.warning("fail-point reached", point=point, action=self.action)
        if self.action is Action.ERROR:
            raise FailPointError(f"fail-point {point}: it is tried again; unset {VARIABLE} to be rid of it")
        # to this very thread, which then does not run another instruction
        signal.pthread_kill(threading.get_ident(), signal.SIGKILL if self.action is Action.KILL else signal.SIGSTOP)


@cache
def armed() -> Mapping[Point, tuple[Trap, ...]]:
    """What the variable asked for when this was first called. :raises ValueError: it is malformed, in one line."""
    return parse(os.environ.get(VARIABLE, ""))


def reach(point: Point) -> None:
    """The caller is at ``point`` now.

    :raises FailPointError: that is what was asked for.
    """
    for trap in armed().get(point, ()):
        if trap.is_due():
            trap.spring(point)


def parse(text: str) -> dict[Point, tuple[Trap, ...]]:
    """The value of the variable. :raises ValueError: an unknown name or action, in one line."""
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

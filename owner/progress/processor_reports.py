"""Processor reports: takes what processors have reported to the owner through etcd once, then clears it.

A report that has changed since it was read is not cleared: the next tick reads its new content. Reports of captures
that are gone are dropped unread, since their work is over.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from owner.progress.facts import TickContext
from reactor import patches
from reactor.errors import IgnorePatchError
from reactor.ids import CaptureId, ChangefeedId
from reactor.keys import PositionKey
from reactor.records.changefeed import RunningError
from reactor.records.task_position import TaskPosition
from reactor.state import ChangefeedState


@dataclass(frozen=True, slots=True)
class Taken:
    errors: tuple[RunningError, ...]
    warnings: tuple[RunningError, ...]
    #: errors that hold one table each
    tables: tuple[RunningError, ...]
    patches: tuple[patches.Patch, ...]


_NOTHING = Taken((), (), (), ())


def take(
    positions: Mapping[CaptureId, TaskPosition],
    alive: Collection[CaptureId],
    *,
    cluster: str,
    namespace: str,
    feed: ChangefeedId,
) -> Taken:
    """Return the new reports, and the patches that clear them."""
    if not positions:
        return _NOTHING
    errors, warnings, tables, clearing = [], [], list[RunningError](), []
    for capture, position in sorted(positions.items()):
        is_alive = capture in alive
        if is_alive and position.error is not None:
            errors.append(position.error)
        if is_alive and position.warning is not None:
            warnings.append(position.warning)
        if is_alive:
            tables += position.tables
        if not is_alive or position.error is not None or position.warning is not None or position.tables:
            key = PositionKey(cluster, namespace, capture, feed)
            cleared = position.with_(error=None, warning=None, tables=()) if is_alive else None
            clearing.append(_clear(key, position, cleared))
    return Taken(tuple(errors), tuple(warnings), tuple(tables), tuple(clearing))


def of_all(feed: ChangefeedState, context: TickContext) -> tuple[RunningError, ...]:
    """Return the captures' faults if all of them have one, so that nobody can work; otherwise nothing."""
    reported = [feed.positions[capture].fault for capture in sorted(context.alive) if capture in feed.positions]
    faults = tuple(fault for fault in reported if fault is not None)
    return faults if len(faults) == len(context.alive) else ()


def _clear(key: PositionKey, seen: TaskPosition, after: TaskPosition | None) -> patches.Patch:
    def apply(old: TaskPosition | None) -> TaskPosition | None:
        if old != seen:
            raise IgnorePatchError(f"{key} has changed since it was read")
        return after

    return patches.patch_record(key, TaskPosition, apply)

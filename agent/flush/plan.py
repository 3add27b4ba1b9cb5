"""Flush plan: decides which spans a flush moves, how far, and by which tasks. Pure.

Every span moves towards its target: the end of the log, limited by the barrier. A span without an event of its table on
the way needs no task: it arrives at once (its record in the sink stays behind, and the next task covers the whole
range). Otherwise

- a span that is *merged* (upsert, with a key) is one task, and moves only as far as the task's weight limit allows:
  ``to_ts`` is then the resolved Ts of a segment, so no transaction is split. A single transaction is always taken
  whole;
- a span that is *appended to* is divided at segments into parts of similar weight, which one commit makes visible
  together; it too is shortened if there would be too many parts.

If anything was shortened the flush is *behind*, and the next one should follow at once.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from operator import attrgetter

from agent.control.runtime import FlushLimits, SpanPosition
from agent.ports.sink import FeedContext, FlushTask
from agent.rows.batches import SegmentRef
from reactor.ids import Ts
from reactor.records.changefeed import SinkMode

#: light tasks are grouped up to about this number and weight, but into enough groups to keep so many cores busy
_GROUPS_MIN = 4
_GROUP_LENGTH = 8
_GROUP_BYTES = 1 << 20
#: fixed cost of a task, in bytes
_TASK_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class Weights:
    """Sizes of whole segments on storage, which are compressed by a factor of two to ten.

    A merge holds all its changes in memory, decoded. An append does not; there the number of parts counts: enough for
    the executors' cores (``parts_aimed``), but no parts so light that each writes a tiny file.
    """

    merge_bytes: int = 16 << 20
    part_bytes_min: int = 2 << 20
    part_bytes_max: int = 16 << 20
    parts_aimed: int = 8
    parts_max: int = 64

    def for_cores(self, cores: int) -> "Weights":
        """Return weights that cut a backlog into enough parts for ``cores``, two each, so that all end at about the
        same time."""
        return replace(self, parts_aimed=max(self.parts_aimed, 2 * cores), parts_max=max(self.parts_max, 2 * cores))

    def is_backlog(self, total_bytes: int) -> bool:
        """Return whether more parts than ``parts_aimed`` would have a weight worth a task."""
        return total_bytes > self.parts_aimed * self.part_bytes_min

    def part_bytes(self, total_bytes: int) -> int:
        return min(max(total_bytes // self.parts_aimed, self.part_bytes_min), self.part_bytes_max)


@dataclass(frozen=True, slots=True)
class FlushPlan:
    """``targets``: each span's position if all goes well. A span without a task has nothing to write on its way."""

    tasks: tuple[FlushTask, ...]
    targets: tuple[tuple[SpanPosition, Ts], ...]
    is_behind: bool = False
    #: those without an event of their table up to their target
    quiet: tuple[tuple[SpanPosition, Ts], ...] = ()


def plan_flush(
    positions: Sequence[SpanPosition],
    segments: Sequence[SegmentRef],
    limits: FlushLimits,
    *,
    feed: FeedContext,
    weights: Weights = Weights(),
    first_ts: Callable[[SpanPosition], Ts] = attrgetter("committed_ts"),
) -> FlushPlan:
    """``segments``: the log (in order) from the lowest Ts behind which a span may have events, its ``first_ts``, to the
    highest target."""
    tasks: list[FlushTask] = []
    targets: list[tuple[SpanPosition, Ts]] = []
    quiet: list[tuple[SpanPosition, Ts]] = []
    of_table = _by_table(segments, {position.table.table_id for position in positions})
    is_behind = False
    for position in positions:
        wanted = limits.target(position.table.table_id)
        if wanted <= position.checkpoint_ts:
            continue
        behind = max(first_ts(position), position.table.skipped_ts)
        ahead = _between(of_table.get(position.table.table_id, ()), behind, wanted)
        if not ahead:
            quiet.append((position, wanted))
        to_ts = _reachable(position, ahead, wanted, _weight_max(position, feed, weights))
        is_behind |= to_ts < wanted
        targets.append((position, to_ts))
        if limits.is_gone_since(position.table.table_id, position.committed_ts):
            ahead = []  # no span needs it: the sink keeps what it has
        made = _tasks(position, [item for item in ahead if item.first_ts <= to_ts], to_ts, feed, weights)
        ts, change = limits.change_since(position.table.table_id, position.committed_ts) if made else (Ts(0), "")
        tasks.extend(replace(task, change=change, change_ts=ts) if change else task for task in made)
    return FlushPlan(tuple(tasks), tuple(targets), is_behind, tuple(quiet))


def group_tasks(tasks: Sequence[FlushTask], *, cores: int = _GROUPS_MIN) -> list[tuple[FlushTask, ...]]:
    """Group tasks that one executor runs, those of different tables side by side.

    Merges into several spans of one table are one group: run concurrently, they would conflict on commit and retry.
    Light tasks of many tables are grouped because each Spark task costs more than they do. They mostly wait for
    storage, so there are no more groups than ``cores``: a second round would wait once more. Two at least, since not
    all clusters tell how many cores they have.
    """
    groups: dict[object, list[FlushTask]] = {}
    for number, task in enumerate(tasks):
        is_merged = task.feed.sink_mode.is_keyed and task.table.key
        groups.setdefault(task.table.table_id if is_merged else ("alone", number), []).append(task)
    return _packed(list(groups.values()), max(2, min(cores, _GROUPS_MIN)))


def _packed(groups: Sequence[list[FlushTask]], count_min: int) -> list[tuple[FlushTask, ...]]:
    """Assign tasks, heaviest first, to the group with the least weight so far."""
    weights = [sum(_weight(task) for task in group) for group in groups]
    count = min(len(groups), max(count_min, len(groups) // _GROUP_LENGTH, sum(weights) // _GROUP_BYTES))
    packs: list[list[FlushTask]] = [[] for _ in range(count)]
    least = [(0, at) for at in range(count)]
    for at in sorted(range(len(groups)), key=lambda at: (-weights[at], at)):
        weight, pack = heappop(least)
        packs[pack].extend(groups[at])
        heappush(least, (weight + weights[at] + _TASK_BYTES, pack))
    return [tuple(pack) for pack in packs]


def _weight(task: FlushTask) -> int:
    """Estimate the weight: a segment's bytes are assumed to be spread evenly over its tables."""
    return sum(item.bytes // max(len(item.tables), 1) for item in task.segments)


def _by_table(segments: Sequence[SegmentRef], ids: Collection[int]) -> dict[int, list[SegmentRef]]:
    """Return the segments with events of each table: most tables of a segment's changefeed are in few of them."""
    found: dict[int, list[SegmentRef]] = {}
    for item in segments:
        for table_id in item.tables:
            if table_id in ids:
                found.setdefault(table_id, []).append(item)
    return found


def _between(segments: Sequence[SegmentRef], behind: Ts, target: Ts) -> list[SegmentRef]:
    return [item for item in segments if item.last_ts > behind and item.first_ts <= target]


def _is_appended(position: SpanPosition, feed: FeedContext) -> bool:
    return feed.sink_mode is SinkMode.CHANGELOG or not position.table.key


def _weight_max(position: SpanPosition, feed: FeedContext, weights: Weights) -> int:
    return weights.part_bytes_max * weights.parts_max if _is_appended(position, feed) else weights.merge_bytes


def _reachable(position: SpanPosition, ahead: Sequence[SegmentRef], target: Ts, weight_max: int) -> Ts:
    """Return the target, or the last segment boundary before it that the weight limit allows; always beyond the span's
    position."""
    least = max(position.checkpoint_ts + 1, position.committed_ts + 1, position.table.consistent_ts)
    weight, reached = 0, Ts(0)
    for item in ahead:
        if weight and weight + item.bytes > weight_max and reached >= least:
            return min(reached, target)
        weight += item.bytes
        reached = item.resolved_ts
    return target


def _tasks(
    position: SpanPosition, segments: Sequence[SegmentRef], to_ts: Ts, feed: FeedContext, weights: Weights
) -> list[FlushTask]:
    if not segments:
        return []
    part_bytes = weights.part_bytes(sum(item.bytes for item in segments))
    parts = list(_parts(segments, part_bytes)) if _is_appended(position, feed) else [tuple(segments)]
    return [
        FlushTask(
            feed=feed,
            span=position.span,
            table=position.table,
            segments=part,
            from_ts=position.committed_ts,
            to_ts=to_ts,
            part=number,
            parts=len(parts),
        )
        for number, part in enumerate(parts)
    ]


def _parts(segments: Sequence[SegmentRef], part_bytes: int) -> Iterator[tuple[SegmentRef, ...]]:
    part: list[SegmentRef] = []
    weight = 0
    for item in segments:
        if part and weight + item.bytes > part_bytes:
            yield tuple(part)
            part, weight = [], 0
        part.append(item)
        weight += item.bytes
    yield tuple(part)

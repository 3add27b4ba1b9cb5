"""Flush plan: decides which spans a flush moves, how far, and by which tasks. Pure.

Every span goes to its target, what the log has and the barrier allows. A span without an event of its table on the way
needs no task: it has arrived (its record in the sink stays behind, and the next task covers the whole way from
there). Otherwise

- a span that is *merged* (upsert, with a key) is one task, and comes only as far as its task may weigh: ``to_ts`` is
  then the resolved Ts of a segment, so that no transaction is cut. A single transaction is taken whole, however large;
- a span that is *appended to* is cut by segments into parts of about one weight, which one commit makes visible
  together; it too is shortened, when the parts would be too many.

Where something was shortened the flush is *behind*: the next one should follow at once.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush

from agent.control.runtime import FlushLimits, SpanPosition
from agent.ports.sink import FeedContext, FlushTask
from agent.rows.batches import SegmentRef
from reactor.ids import Ts
from reactor.records.changefeed import SinkMode

#: light tasks go together in groups of about so many or so heavy, but in no fewer groups than keep some cores busy
_GROUPS_MIN = 4
_GROUP_LENGTH = 8
_GROUP_BYTES = 1 << 20
#: what a task costs beside its bytes
_TASK_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class Weights:
    """Sizes of whole segments on storage, which are compressed, by a factor of two or of ten.

    What is merged is in memory at once, decoded. What is appended is not; there the number of parts counts: enough for
    the executors' cores (``parts_aimed``), and not so light that each leaves a tiny file.
    """

    merge_bytes: int = 16 << 20
    part_bytes_min: int = 2 << 20
    part_bytes_max: int = 16 << 20
    parts_aimed: int = 8
    parts_max: int = 64

    def part_bytes(self, total_bytes: int) -> int:
        return min(max(total_bytes // self.parts_aimed, self.part_bytes_min), self.part_bytes_max)


@dataclass(frozen=True, slots=True)
class FlushPlan:
    """``targets``: where each span is when all went well. A span without a task has nothing to write on its way."""

    tasks: tuple[FlushTask, ...]
    targets: tuple[tuple[SpanPosition, Ts], ...]
    is_behind: bool = False


def plan_flush(
    positions: Sequence[SpanPosition],
    segments: Sequence[SegmentRef],
    limits: FlushLimits,
    *,
    feed: FeedContext,
    weights: Weights = Weights(),
) -> FlushPlan:
    """``segments``: the log (in order) from the lowest recorded Ts to the highest target."""
    tasks: list[FlushTask] = []
    targets: list[tuple[SpanPosition, Ts]] = []
    is_behind = False
    for position in positions:
        wanted = limits.target(position.table.table_id)
        if wanted <= position.checkpoint_ts:
            continue
        ahead = _ahead(position, segments, wanted)
        to_ts = _reachable(position, ahead, wanted, _weight_max(position, feed, weights))
        is_behind |= to_ts < wanted
        targets.append((position, to_ts))
        if limits.is_gone_since(position.table.table_id, position.committed_ts):
            ahead = []  # nobody needs it any more: the sink keeps what it had
        made = _tasks(position, [item for item in ahead if item.first_ts <= to_ts], to_ts, feed, weights)
        change = limits.change_since(position.table.table_id, position.committed_ts) if made else ""
        tasks.extend(replace(task, change=change) if change else task for task in made)
    return FlushPlan(tuple(tasks), tuple(targets), is_behind)


def group_tasks(tasks: Sequence[FlushTask]) -> list[tuple[FlushTask, ...]]:
    """What one executor does one after the other.

    Merging into several spans of one table: side by side, each would find that another commit was faster, and begin
    again. And light tasks of many tables: each Spark task costs more than they do.
    """
    groups: dict[object, list[FlushTask]] = {}
    for number, task in enumerate(tasks):
        is_merged = task.feed.sink_mode is SinkMode.UPSERT and task.table.key
        groups.setdefault(task.table.table_id if is_merged else ("alone", number), []).append(task)
    return _packed(list(groups.values()))


def _packed(groups: Sequence[list[FlushTask]]) -> list[tuple[FlushTask, ...]]:
    """The heaviest first, each to where least is so far."""
    weights = [sum(_weight(task) for task in group) for group in groups]
    count = min(len(groups), max(_GROUPS_MIN, len(groups) // _GROUP_LENGTH, sum(weights) // _GROUP_BYTES))
    packs: list[list[FlushTask]] = [[] for _ in range(count)]
    least = [(0, at) for at in range(count)]
    for at in sorted(range(len(groups)), key=lambda at: (-weights[at], at)):
        weight, pack = heappop(least)
        packs[pack].extend(groups[at])
        heappush(least, (weight + weights[at] + _TASK_BYTES, pack))
    return [tuple(pack) for pack in packs]


def _weight(task: FlushTask) -> int:
    """About: a segment's tables are taken to have as much in it each."""
    return sum(item.bytes // max(len(item.tables), 1) for item in task.segments)


def _ahead(position: SpanPosition, segments: Sequence[SegmentRef], target: Ts) -> list[SegmentRef]:
    """The segments that hold something of the span's table between its record and its target."""
    table_id, recorded = position.table.table_id, position.committed_ts
    return [
        item for item in segments if table_id in item.tables and item.last_ts > recorded and item.first_ts <= target
    ]


def _is_appended(position: SpanPosition, feed: FeedContext) -> bool:
    return feed.sink_mode is SinkMode.CHANGELOG or not position.table.key


def _weight_max(position: SpanPosition, feed: FeedContext, weights: Weights) -> int:
    return weights.part_bytes_max * weights.parts_max if _is_appended(position, feed) else weights.merge_bytes


def _reachable(position: SpanPosition, ahead: Sequence[SegmentRef], target: Ts, weight_max: int) -> Ts:
    """The target, or the last segment boundary before it that the weight allows; always further than the span is."""
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

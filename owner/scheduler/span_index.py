"""Span index: every span's replication set, with indexes that answer questions about all of them without a scan.

Each round needs to know which capture has which spans, which spans are missing, whether anything is in progress, and
the slowest position. These are maintained incrementally: with hundreds of thousands of spans, a round must cost what
has changed. So sets change only through ``change``, ``note`` and ``move_together``; ``want`` alone scans all spans, and
is called when the tables have changed.

Orders are made by the sets (``owner.scheduler.replication``), plans by the policies.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, MutableMapping

from owner.scheduler.lowest import LowestPosition
from owner.scheduler.replication import Orders, ReplicationSet, Role, SetState
from owner.scheduler.together import Group, Groups
from reactor.ids import CaptureId, TableSpan, Ts
from reactor.messages import Place, SpanCheckpoint, SpanState, SpanStatus
from reactor.places import Here
from reactor.records.log_head import LogHead

# looked up once: an enumeration's members are computed attributes
_WRITING, _UNDISTURBED, _WRITER = SpanState.REPLICATING, SetState.REPLICATING, Role.PRIMARY


class SpanIndex:
    """``wanted``: the spans that should be replicated. ``lowest``: the positions of those that have a set.

    Collections are ordered by insertion, which is the order of events: the same history gives the same order.
    """

    def __init__(self) -> None:
        self.sets: dict[TableSpan, ReplicationSet] = {}
        self.wanted: Collection[TableSpan] = ()
        self.lowest = LowestPosition()
        self._wanted: frozenset[TableSpan] = frozenset()
        #: tables whose spans are wanted, but do not count in ``lowest``
        self._aside: frozenset[int] = frozenset()
        self._held: dict[CaptureId, dict[TableSpan, None]] = {}
        #: known spans in any other state than replicating
        self._unsettled: dict[TableSpan, None] = {}
        #: wanted spans that no capture has; those of them without a set
        self._missing: dict[TableSpan, None] = {}
        self._unknown: set[TableSpan] = set()
        #: spans that have a set and are not wanted
        self._surplus: dict[TableSpan, None] = {}
        self._moved: dict[TableSpan, None] = {}
        self._groups = Groups()

    @property
    def missing(self) -> Collection[TableSpan]:
        """Wanted spans that no capture has."""
        return self._missing

    @property
    def surplus(self) -> Collection[TableSpan]:
        """Known spans that are not wanted."""
        return self._surplus

    @property
    def is_settled(self) -> bool:
        """Whether every known span is replicating, with no change pending."""
        return not self._unsettled and not self._missing

    @property
    def is_whole(self) -> bool:
        """Whether the position of every wanted span is known."""
        return not self._unknown

    def held_by(self, capture: CaptureId) -> Collection[TableSpan]:
        """Return the spans that ``capture`` has in any role."""
        return self._held.get(capture, {}).keys()

    def written_by(self, capture: CaptureId) -> list[TableSpan]:
        """Return the spans that ``capture`` writes, sorted."""
        sets = self.sets
        return sorted(span for span in self.held_by(capture) if sets[span].primary == capture)

    def writer_counts(self) -> Counter[CaptureId]:
        """Return how many spans each capture writes, or wrote last; a settled span is on its writer alone."""
        counts = Counter({capture: len(spans) for capture, spans in self._held.items()})
        for span in self._unsettled:
            known = self.sets[span]
            counts.subtract(capture for capture in known.captures if capture != known.primary)
        return counts

    def without_writer(self) -> list[TableSpan]:
        """Return the known spans that no capture writes."""
        return [span for span in self._unsettled if self.sets[span].primary is None]

    def take_moved(self) -> list[TableSpan]:
        """Return the spans whose state may have changed since the last call."""
        moved, self._moved = list(self._moved), {}
        return moved

    def want(self, spans: Iterable[TableSpan], *, aside: frozenset[int] = frozenset()) -> None:
        """Set the wanted spans, in this order. Those of tables in ``aside`` do not count in ``lowest``."""
        for capture in self._groups.by_capture:
            self._part_all(capture)
        self.wanted = tuple(spans)
        self._wanted, self._aside = frozenset(self.wanted), aside
        sets = self.sets
        self._unknown = {span for span in self.wanted if span not in sets and span.table_id not in aside}
        self._missing = dict.fromkeys(span for span in self.wanted if span not in sets or not sets[span].captures)
        self._surplus = dict.fromkeys(span for span in sets if span not in self._wanted)
        self.lowest = LowestPosition()
        for span in self.wanted:
            if span in sets and span.table_id not in aside:
                self.lowest.add(sets[span].checkpoint.checkpoint_ts, sets[span].checkpoint_time)
        for capture in self._groups.by_capture:
            self.join_together(capture, ())

    def add(self, replication: ReplicationSet) -> None:
        """Add a span."""
        span = replication.span
        assert span not in self.sets, "one set for each span"
        self.sets[span] = replication
        if self._counts(span):
            self._unknown.discard(span)
            self.lowest.add(replication.checkpoint.checkpoint_ts, replication.checkpoint_time)
        elif span not in self._wanted:
            self._surplus[span] = None
        self._index(replication, ())

    def discard(self, span: TableSpan) -> None:
        """Remove a span that no capture has."""
        replication = self.sets.pop(span)
        assert not replication.captures, "what a capture has is not forgotten"
        self._unsettled.pop(span, None)
        self._surplus.pop(span, None)
        self._moved[span] = None
        if self._counts(span):
            self.lowest.remove(replication.checkpoint.checkpoint_ts)
            self._unknown.add(span)
        if span in self._wanted:
            self._missing[span] = None

    def change(self, replication: ReplicationSet, act: Callable[[], Orders]) -> Orders:
        """Let ``act`` change the set; remove the span if that ends it."""
        self._part(replication)
        before, before_ts = tuple(replication.captures), replication.checkpoint.checkpoint_ts
        orders = act()
        if self._counts(replication.span):
            self.lowest.move(before_ts, replication.checkpoint.checkpoint_ts, replication.checkpoint_time)
        self._index(replication, before)
        if replication.is_removed:
            self.discard(replication.span)
        return orders

    def note(self, capture: CaptureId, statuses: Iterable[SpanStatus]) -> list[SpanStatus]:
        """Record the checkpoints of replicating writers; return the statuses that say anything more, unprocessed.

        Nearly all that captures report goes through this loop, so it makes no call for a span that has only advanced.
        """
        sets, surplus, aside, others = self.sets, self._surplus, self._aside, []
        steps: list[tuple[Ts, Ts, float, int]] = []
        step: tuple[Ts, Ts, float] | None = None
        count = 0
        for status in statuses:
            span, state, reported, time = status
            known = sets.get(span)
            if (
                known is None
                or state is not _WRITING
                or known.state is not _UNDISTURBED
                or known.captures.get(capture) is not _WRITER
                or len(known.captures) != 1
                or (surplus and span in surplus)
                or (aside and span.table_id in aside)
            ):
                others.append(status)
                continue
            before_ts, before_resolved_ts = known.place.at[0]
            if not (before_ts <= reported[0] <= reported[1] >= before_resolved_ts and time):
                others.append(status)
                continue
            known.place = Here(Place(reported, time))
            if step == (before_ts, reported[0], time):
                count += 1
                continue
            if step is not None:
                steps.append((*step, count))
            step, count = (before_ts, reported[0], time), 1
        if step is not None:
            steps.append((*step, count))
        for before_ts, after_ts, time, many in steps:
            self.lowest.move(before_ts, after_ts, time, many)
        return others

    def begin_together(self, capture: CaptureId, at: Place) -> None:
        """``capture`` reports again who is together."""
        self.end_together(capture)
        self._groups.begin(capture, at)

    def has_together(self, capture: CaptureId) -> bool:
        return capture in self._groups.by_capture

    def end_together(self, capture: CaptureId) -> None:
        """It is not known any more who is."""
        self._part_all(capture)
        self._groups.end(capture)

    def move_together(self, capture: CaptureId, to: Place) -> list[SpanStatus]:
        """Move all that are together to where ``capture`` reports them; return what that says of each that is not
        plain, unprocessed."""
        group = self._groups.by_capture[capture]
        group.reported_ts, group.followed = to.checkpoint.checkpoint_ts, None
        return self._move(group, to)

    def follow_log(self, head: LogHead) -> list[tuple[CaptureId, list[SpanStatus]]]:
        """Move to ``head`` all that are together, and behind whose reported place the log has nothing: captures do not
        report that. Return what it says of those that are not plain, unprocessed."""
        at = Place(SpanCheckpoint(head.resolved_ts, head.resolved_ts), head.resolved_time)
        said: list[tuple[CaptureId, list[SpanStatus]]] = []
        for capture, group in self._groups.by_capture.items():
            if group.followed is not head and head.ends_at(group.reported_ts):
                group.followed = head
                self._move(group, at)
                if behind := [status for status in group.statuses() if self._is_behind(status)]:
                    said.append((capture, behind))
        return said

    def _move(self, group: Group, to: Place) -> list[SpanStatus]:
        before = group.here.at
        if to == before or to.checkpoint < before.checkpoint:
            return []
        group.here.at = to
        if group.plain:
            self.lowest.move(before.checkpoint.checkpoint_ts, to.checkpoint.checkpoint_ts, to.time, len(group.plain))
        return group.statuses()

    def leave_together(self, capture: CaptureId, spans: Iterable[TableSpan]) -> None:
        """``capture`` reports these each by itself."""
        group = self._groups.by_capture.get(capture)
        if group is None:
            return
        for span in spans:
            if span in group.plain:
                self._part(self.sets[span])
            group.others.pop(span, None)

    def join_together(self, capture: CaptureId, spans: Iterable[TableSpan]) -> None:
        """Add spans that have joined, after their positions were noted. A span that only advances, of these or of
        earlier ones, shares the place of the group from now on."""
        group = self._groups.by_capture[capture]
        group.others.update((span, None) for span in spans if span not in group.plain)
        for span in list(group.others):
            known = self.sets.get(span)
            if known is not None and self._is_plain(known, capture) and known.checkpoint == group.here.at.checkpoint:
                known.place = group.here
                group.plain[span] = group.others.pop(span)

    def to_ask(self, capture: CaptureId) -> list[TableSpan]:
        """Return the spans of ``capture`` that do more than advance, sorted: it is asked for their states."""
        sets, group = self.sets, self._groups.by_capture.get(capture)
        unsettled = {span for span in self._unsettled if capture in sets[span].captures}
        return sorted(unsettled.union(group.others if group else ()))

    def validate(self) -> None:
        """Assert that all indexes equal the result of a scan."""
        sets, wanted = self.sets, self._wanted
        held: dict[CaptureId, set[TableSpan]] = {}
        for span, replication in sets.items():
            replication.validate(span)
            for capture in replication.captures:
                held.setdefault(capture, set()).add(span)
        assert {id: spans.keys() for id, spans in self._held.items() if spans} == held, "who has what is wrong"
        unsettled = {span for span, known in sets.items() if known.state is not SetState.REPLICATING}
        assert self._unsettled.keys() == unsettled, "what is under way is wrong"
        writers = Counter(known.primary for known in sets.values() if known.primary is not None)
        assert +self.writer_counts() == writers, "how many spans each capture writes is wrong"
        idle = [span for span, known in sets.items() if known.primary is None]
        assert sorted(self.without_writer()) == sorted(idle), "which spans have no writer is wrong"
        missing = {span for span in wanted if span not in sets or not sets[span].captures}
        assert self._missing.keys() == missing, "what nobody has is wrong"
        assert self._surplus.keys() == sets.keys() - wanted, "what should not be there is wrong"
        counted = {span for span in wanted if span.table_id not in self._aside}
        assert self._unknown == counted - sets.keys(), "of what nothing is known is wrong"
        self.lowest.validate(sets[span].checkpoint.checkpoint_ts for span in counted & sets.keys())
        shared = {span: capture for capture, group in self._groups.by_capture.items() for span in group.plain}
        assert {span for span, known in sets.items() if self._groups.of(known.place)} == shared.keys(), "who shares"
        for span, capture in shared.items():
            assert self._is_plain(sets[span], capture), f"{span} is {sets[span].state}, and moves with others"

    def _is_plain(self, known: ReplicationSet, capture: CaptureId) -> bool:
        """Return whether nothing is to be noted of a span but where it is; like the loop of ``note``."""
        span = known.span
        is_undisturbed = known.state is _UNDISTURBED and known.captures == {capture: _WRITER}
        return is_undisturbed and span not in self._surplus and span.table_id not in self._aside

    def _is_behind(self, status: SpanStatus) -> bool:
        known = self.sets.get(status.span)
        return known is not None and known.checkpoint < status.checkpoint

    def _part(self, known: ReplicationSet) -> None:
        """Let a span have its own place, before anything else is noted of it."""
        group = self._groups.of(known.place)
        if group is not None:
            group.others[known.span] = group.plain.pop(known.span)
            known.place = Here(group.here.at)

    def _part_all(self, capture: CaptureId) -> None:
        group = self._groups.by_capture.get(capture)
        for span in list(group.plain) if group else ():
            self._part(self.sets[span])

    def _counts(self, span: TableSpan) -> bool:
        return span in self._wanted and span.table_id not in self._aside

    def _index(self, replication: ReplicationSet, before: Iterable[CaptureId]) -> None:
        span, after = replication.span, replication.captures
        for capture in before:
            if capture not in after:
                self._held[capture].pop(span, None)
        for capture in after:
            self._held.setdefault(capture, {})[span] = None
        self._moved[span] = None
        _put(self._unsettled, span, replication.state is not SetState.REPLICATING)
        _put(self._missing, span, replication.state is SetState.ABSENT and span in self._wanted)


def _put(spans: MutableMapping[TableSpan, None], span: TableSpan, is_in: bool) -> None:
    if is_in:
        spans[span] = None
    else:
        spans.pop(span, None)

"""Checks: the invariants that must hold at every step; the first violation names who and when.

- the sink: every commit has exactly the rows that the source committed in its range (``outside.Sink``)
- etcd: no checkpoint goes back or claims what the sink does not have; the log's head only moves forward, and its
  segments hold exactly what the source committed up to its resolved Ts
- captures: no span is written by two captures at once while both sessions are valid
- held tables: everything up to their Ts is in the sink, the log behind it is kept, and a released table has reached the
  checkpoint
- the owner: its spans of a table cover the table, and no changefeed fails permanently or because spans contradict each
  other
- owner and agents: ``validate`` holds after every decision
- roles: what an owner or the elected capture decides is written by no other (``fences``)
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agent.control.agent import Agent
from agent.control.processors import Processors
from agent.log.head import epoch_of
from agent.log.segment import SegmentName
from owner.controller.controller import Controller
from owner.owner import Owner
from reactor import keys
from reactor.errors import InvalidKeyError, WeirError
from reactor.ids import KEY_SPACE, MAX_TS, ChangefeedId, TableSpan, Ts
from reactor.membership.progress import CaptureProgress
from reactor.records.capture import Assignment, OwnerState
from reactor.records.changefeed import ChangefeedInfo, ChangefeedStatus, FeedState, UnitRecord
from reactor.records.log_head import LogHead
from reactor.records.sync_point import SyncPoint
from reactor.records.tables.held import HeldTable, needed_ts
from reactor.records.tables.resync import TableResync
from reactor.records.tables.resync import needed_ts as copied_ts
from reactor.state import ClusterState
from reactor.store.port import Compare, Event
from tests.simulation.crashes import INJECTED, InjectedCrash
from tests.simulation.fences import Fences
from tests.simulation.outside import RowEvent, Sink, Upstream

if TYPE_CHECKING:
    from tests.simulation.node import Node
    from tests.simulation.world import World

#: bugs are logged at this level
_ERROR = "error"
#: errors that no external fault may cause
_NEVER = ("Internal", "InconsistentSpan", "InvalidTransition", "MultiplePrimary")


@dataclass(slots=True)
class Feed:
    """A changefeed as etcd has shown it since its creation. ``rewound_to``: where operators have rewound it."""

    info: ChangefeedInfo
    upstream: Upstream
    sink: Sink
    status: ChangefeedStatus | None = None
    unit: UnitRecord | None = None
    head: LogHead | None = None
    states: list[FeedState] = field(default_factory=list)
    rewound_to: set[Ts] = field(default_factory=set)
    held: dict[int, HeldTable] = field(default_factory=dict)
    resyncs: dict[int, TableResync] = field(default_factory=dict)

    @property
    def is_lost(self) -> bool:
        """Tables of it are still to be copied: its position was lost, or they came with rows before its target."""
        end_ts = MAX_TS if self.info.target_ts is None else self.info.target_ts
        return self.unit is not None and any(
            table.start_ts < self.unit.lost_ts or (table.to_copy and table.start_ts <= end_ts)
            for table in self.unit.tables
        )


class Checks:
    """``feeds``: the existing changefeeds. ``world.violate`` is called for every violation."""

    def __init__(self, world: "World") -> None:
        self.feeds: dict[ChangefeedId, Feed] = {}
        self._assignments: dict[ChangefeedId, Assignment] = {}
        self._world = world
        self._state = ClusterState(world.cluster)
        self._fences = Fences(world)

    @property
    def state(self) -> ClusterState:
        """The cluster as of the last revision that was checked."""
        return self._state

    def on_write(self, events: Sequence[Event], compares: Sequence[Compare]) -> None:
        """Check one revision of etcd, and what its transaction compared."""
        self._check_keys(events)
        self._fences.on_write(events, compares)
        self._state.apply(events)
        if self._state.broken:
            self._world.violate(f"a record cannot be read: {min(self._state.broken.values())}")
        for event in events:
            try:
                key = keys.parse(event.key)
            except InvalidKeyError:
                continue
            match key:
                case keys.InfoKey():
                    self._on_info(key.changefeed, event)
                case keys.StatusKey() if event.value is not None:
                    self._on_status(key.changefeed, ChangefeedStatus.decode(event.value, key=event.key))
                case keys.ProgressKey() if event.value is not None:
                    for id in CaptureProgress.decode(event.value, key=event.key).changefeeds:
                        known = self._state.changefeeds.get(id)
                        if known is not None and known.status is not None:
                            self._on_status(id, known.status)
                case keys.LogKey() if event.value is not None:
                    self._on_head(key.changefeed, LogHead.decode(event.value, key=event.key))
                case keys.UnitKey() if event.value is not None:
                    self._on_unit(key.changefeed, self._state.changefeeds[key.changefeed].units[key.source])
                case keys.HeldKey():
                    self._on_held(key.changefeed, key.table_id, event)
                case keys.ResyncKey():
                    self._on_resync(key.changefeed, key.table_id, event)
                case keys.SyncPointKey() if event.value is not None:
                    self._on_sync_point(key.changefeed, self._state.changefeeds[key.changefeed].sync_points[key.ts])
                case keys.AssignmentKey():
                    self._on_assignment(key.changefeed, event)
                case keys.OwnerKey():
                    self._world.note(f"candidate {(event.value or b'gone').decode()[:6]}")
                case keys.CaptureKey():
                    self._world.note(f"capture {key.capture[:6]} {'here' if event.value else 'gone'}")

    def removing(self) -> list[ChangefeedId]:
        """Return the changefeeds whose owners have been asked to end."""
        return [id for id, known in sorted(self._assignments.items()) if known.state is OwnerState.REMOVING]

    def note_tick(self, worker: Any) -> None:
        """Check that a worker decides on a state at least as new as its own last commit."""
        if worker.state.revision < worker._cursor.barrier:
            self._world.violate(f"a tick at {worker.state.revision}, before its own commit {worker._cursor.barrier}")

    def validate(self, known: Controller | Owner | Processors | Agent) -> None:
        """Validate an owner or agent after a decision."""
        try:
            known.validate()
        except (AssertionError, WeirError) as error:
            self._world.violate(f"{type(known).__name__} of {known.capture[:6]} is in a state that cannot be: {error}")

    def look(self) -> None:
        """Check the state of the captures themselves."""
        writers: dict[tuple[str, TableSpan], str] = {}
        for node in self._world.nodes:
            for sink, span in _written_by(node):
                other = writers.setdefault((sink, span), node.name)
                if other != node.name:
                    self._world.violate(f"{span} is written by {other} and by {node.name}")
        for node in self._world.nodes:
            for owner in _owners_on(node):
                self._check_spans(node, owner)
                self._fences.look(owner)

    def on_log(self, event: dict[str, Any]) -> None:
        """Check one log line: an error is a bug here, where all faults are known."""
        # asking an actor that crashes fails with the crash's class
        is_wanted = any(word in str(event.get("error")) for word in (INJECTED, InjectedCrash.__name__))
        if event.get("log_level") == _ERROR and not is_wanted:
            fields = {name: value for name, value in event.items() if name not in ("log_level", "exc_info")}
            self._world.violate(f"logged as an error: {fields}")

    def _on_info(self, id: ChangefeedId, event: Event) -> None:
        if event.value is None:
            self._world.note(f"{id} is gone")
            self.feeds.pop(id, None)
            return
        info = ChangefeedInfo.decode(event.value, key=event.key)
        feed = self.feeds.get(id)
        if feed is None or feed.info.sink != info.sink:
            outside = self._world.outside
            self.feeds[id] = Feed(info, outside.upstreams[info.source.sealed], outside.sinks[info.sink.sealed])
        else:
            feed.info = info
        self.feeds[id].sink.target_ts = info.target_ts
        self.feeds[id].states.append(info.state)
        why = f" ({info.error.code}: {info.error.message})" if info.error else ""
        self._world.note(f"{id} {info.state}, epoch {info.epoch}{why}")
        is_lost = (
            info.error is not None and info.error.code == "PositionLost" and self.feeds[id].upstream.removed_ts > 0
        )
        if (info.state is FeedState.FAILED and not is_lost) or (info.error and info.error.code in _NEVER):
            self._world.violate(f"{id} failed{why}")

    def _on_assignment(self, id: ChangefeedId, event: Event) -> None:
        """Check that no owner is replaced before it has ended, or its capture's lease is over."""
        before = self._assignments.pop(id, None)
        if event.value is None:
            self._world.note(f"{id} has no owner")
            return
        now = Assignment.decode(event.value, key=event.key)
        self._world.note(f"{id} {now.state} on {now.capture[:6]}{f', next {now.next[:6]}' if now.next else ''}")
        self._assignments[id] = now
        if before is not None and before.capture != now.capture:
            self._world.violate(f"{id} is given to {now.capture[:6]}, and {before.capture[:6]} has not ended")
        if before is not None and before.state is OwnerState.REMOVING and now.state is OwnerState.LAUNCHED:
            self._world.violate(f"{id} is launched on {now.capture[:6]} while it is being removed")

    def _on_status(self, id: ChangefeedId, status: ChangefeedStatus) -> None:
        feed = self.feeds.get(id)
        if feed is None:
            return
        before, feed.status = feed.status, status
        is_back = before is not None and status.checkpoint_ts < before.checkpoint_ts
        if before is not None and is_back and status.checkpoint_ts not in feed.rewound_to:
            self._world.violate(f"checkpoint of {id} went back from {before.checkpoint_ts} to {status.checkpoint_ts}")
        if before is None or status.checkpoint_ts != before.checkpoint_ts:
            self._world.note(f"{id} at {status.checkpoint_ts}")
            self._check_claim(id, feed, status.checkpoint_ts)

    def _check_claim(self, id: ChangefeedId, feed: Feed, checkpoint_ts: Ts) -> None:
        """Check that every change at or below the checkpoint is in the sink."""
        if not checkpoint_ts:
            return
        for table in feed.upstream.tables:
            if table.table_id not in feed.held and feed.upstream.has(table.table_id, checkpoint_ts):
                self._check_table(id, feed, table.table_id, checkpoint_ts)

    def _check_table(self, id: ChangefeedId, feed: Feed, table_id: int, ts: Ts) -> None:
        stored = feed.sink.tables.get(table_id)
        records = stored.records if stored else {TableSpan(table_id): Ts(0)}
        for span, reached in records.items():
            last_ts = feed.upstream.last_ts(span, ts)
            if reached < last_ts:
                self._world.violate(f"{id} claims {ts}, but {span} changed at {last_ts}, is at {reached}")

    def _on_held(self, id: ChangefeedId, table_id: int, event: Event) -> None:
        feed = self.feeds.get(id)
        if feed is None:
            return
        if event.value is None:
            feed.held.pop(table_id, None)
            self._world.note(f"{id} table {table_id} flows")
            self._check_claim(id, feed, feed.status.checkpoint_ts if feed.status else Ts(0))
            return
        feed.held[table_id] = held = HeldTable.decode(event.value, key=event.key)
        self._world.note(f"{id} table {table_id} {held.stage} at {held.ts}, tries {held.tries}")
        if feed.upstream.has(table_id, held.ts):  # otherwise it has come in the part of the log that is lost
            self._check_table(id, feed, table_id, held.ts)

    def _on_resync(self, id: ChangefeedId, table_id: int, event: Event) -> None:
        feed = self.feeds.get(id)
        if feed is None:
            return
        if event.value is None:
            feed.resyncs.pop(table_id, None)
            self._world.note(f"{id} table {table_id} is not copied any more")
            return
        feed.resyncs[table_id] = resync = TableResync.decode(event.value, key=event.key)
        self._world.note(f"{id} table {table_id} is copied: {resync.stage}, number {resync.number}")

    def _on_sync_point(self, id: ChangefeedId, point: SyncPoint) -> None:
        """Check that readers saw each table exactly as of the point's Ts (see ``read_sink``)."""
        feed = self.feeds.get(id)
        if feed is None:
            return
        self._world.note(f"{id} has a sync point at {point.ts}")
        events = feed.upstream.between(Ts(0), point.ts)
        wanted = Counter(str(event.table_id) for event in events)
        if any(wanted[table] != int(rows) for table, rows in point.versions.items()):
            self._world.violate(f"sync point of {id} at {point.ts} has {point.versions} rows instead of {dict(wanted)}")

    def _on_unit(self, id: ChangefeedId, record: UnitRecord) -> None:
        self._world.note(f"{id} {record.unit} {record.stage}, epoch {record.epoch}")
        feed = self.feeds.get(id)
        if feed is None:
            return
        before, feed.unit = feed.unit, record
        if before is not None and record.epoch < before.epoch:
            self._world.violate(f"unit of {id} went back from {before.epoch} to {record.epoch} ({record.worker})")

    def _on_head(self, id: ChangefeedId, head: LogHead) -> None:
        feed = self.feeds.get(id)
        if feed is None:
            return
        before, feed.head = feed.head or LogHead(), head
        if head.epoch < before.epoch or head.resolved_ts < before.resolved_ts:
            self._world.violate(f"log of {id} went back: {before} to {head}")
        if head.epoch > before.epoch:
            self._world.note(f"log of {id} taken over, epoch {head.epoch}, by {(head.writer or '')[:6]}")
        kept_ts = min(needed_ts(feed.held.values()), copied_ts(feed.resyncs.values()))
        begins_again = feed.unit is not None and feed.unit.lost_ts == head.removed_ts
        if head.removed_ts > before.removed_ts and head.removed_ts > kept_ts and not begins_again:
            self._world.violate(
                f"log of {id} is removed up to {head.removed_ts}, which {feed.held} and {feed.resyncs} need"
            )
        from_ts = max(head.removed_ts, feed.upstream.slot_ts or Ts(0))
        first_seq = head.first_seq
        if head.epoch == before.epoch and head.first_seq == before.first_seq:
            from_ts, first_seq = max(from_ts, before.resolved_ts), before.complete_seq + 1
        wanted = [event.number for event in feed.upstream.between(from_ts, head.resolved_ts)]
        found = [event.number for event in self._in_log(id, head, first_seq) if event.ts > from_ts]
        if found != wanted:
            self._world.violate(f"log of {id} from {from_ts} to {head.resolved_ts} holds {found}, not {wanted}")

    def _in_log(self, id: ChangefeedId, head: LogHead, first_seq: int) -> Iterator[RowEvent]:
        """Yield the events of the segments that the head names, up to the last complete one.

        A writer that does not know yet of its changefeed's removal continues, over files that are gone. Nothing is read
        from there, since a removed changefeed does not come back, and the sink's commits are checked there.
        """
        by_place: dict[tuple[int, int], list[str]] = {}
        storage = self._world.outside.storage(id)
        is_removed = self.feeds[id].info.state is FeedState.REMOVED
        files = storage.dropped | storage.files if is_removed else storage.files
        for text in files:
            parsed = SegmentName.parse(text)
            if parsed is not None:
                by_place.setdefault((parsed.seq, parsed.epoch), []).append(text)
        for seq in range(first_seq, head.complete_seq + 1):
            names = by_place.get((seq, epoch_of(head, seq)), [])
            if len(names) != 1:
                self._world.violate(f"segment {seq} of {id} is {names} under {head}")
            for name in names:
                yield from files[name].events

    def _check_keys(self, events: Sequence[Event]) -> None:
        """Check that a revision never writes a key twice."""
        if len({event.key for event in events}) != len(events):
            self._world.violate(f"one revision writes a key twice: {[event.key for event in events]}")

    def _check_spans(self, node: "Node", owner: Any) -> None:
        """Check that spans are adjacent, and that they cover each table once all captures have answered."""
        for id, changefeed in owner.changefeeds.items():
            if changefeed.run is None:
                continue
            coordinator, ends = changefeed.run.coordinator, dict[int, int]()
            for span in sorted(coordinator.sets):
                parked = span.table_id not in (coordinator._tables or ())
                if (
                    parked
                    or span.table_id in coordinator._catching_up
                    or coordinator._table_spans.get(span.table_id) == ()
                ):
                    continue  # its spans are being stopped or started one by one
                end = ends.setdefault(span.table_id, 0)
                if span.start < end or (span.start > end and coordinator.captures.is_initialized):
                    self._world.violate(f"{node.name}: spans of {id} have a hole or overlap before {span}")
                ends[span.table_id] = span.end
            for table, end in ends.items() if coordinator.captures.is_initialized else ():
                if end != KEY_SPACE:
                    self._world.violate(f"{node.name}: spans of {id} leave the end of table {table} out")


def _written_by(node: "Node") -> Iterator[tuple[str, TableSpan]]:
    """Yield sink and span of everything that this machine's capture would flush now."""
    membership = node.capture.membership if node.capture else None
    if membership is None or membership.candidacy._election._session.is_done:
        return
    for ref in membership.host._processors.values():
        processor: Any = ref._cell.actor
        if processor is None:
            continue  # it has crashed and is not restarted yet
        for span in processor._flusher._positions:
            yield processor._runtime._info.sink.sealed, span


def _owners_on(node: "Node") -> Iterator[Any]:
    """Yield the owners on a machine: that of all changefeeds, or those of single ones."""
    membership = node.capture.membership if node.capture else None
    if membership is None or membership.candidacy._election._session.is_done:
        return
    controller: Any = membership.candidacy.worker._reactor if membership.candidacy.worker is not None else None
    if controller is not None and controller.all is not None:
        yield controller.all
    if membership.owners.worker is not None:
        yield membership.owners.worker._reactor

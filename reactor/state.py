"""Cluster state: the typed snapshot that ticks read, and on which patches are evaluated.

Both views are kept: ``raw`` (bytes and revisions, for ``reactor.txn``) and records. An unreadable value stops only its
own changefeed: it is listed in ``broken``, and the last good record stays, because a missing checkpoint would start
over. No decision may be made for a changefeed while its ``broken`` is not empty. Keys of unknown kinds and other
namespaces are counted and ignored.

``reactor.membership.presence`` decides which captures are shown, once per tick.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

from reactor import keys
from reactor.changes import Changes
from reactor.division import divided as division
from reactor.division.divided import Divided
from reactor.errors import InvalidKeyError, InvalidRecordError
from reactor.ids import CaptureId, ChangefeedId
from reactor.membership.presence import Presence
from reactor.membership.progress import CaptureProgress, ProgressByCapture, newest, replacing
from reactor.records import formats
from reactor.records.access import TokenRecord
from reactor.records.attempts import Attempt, StreamAttempt, Suspects
from reactor.records.capture import Assignment, CaptureInfo, OwnerState
from reactor.records.changefeed import ChangefeedInfo, ChangefeedStatus, UnitRecord
from reactor.records.decoded import decode, put, record_of
from reactor.records.formats import ClusterFormat, Feature
from reactor.records.log_head import LogHead
from reactor.records.schedules import DiffProgress, HandledSignals, LastDiff
from reactor.records.subscription import Subscription
from reactor.records.sync_point import SyncPoint
from reactor.records.tables.change_index import ChangeIndex
from reactor.records.tables.held import HeldTable
from reactor.records.tables.partitioning import TablePartitioning
from reactor.records.tables.resync import TableResync
from reactor.records.tables.schema_change import DdlRecord
from reactor.records.task_position import TaskPosition
from reactor.records.upstream import UpstreamInfo
from reactor.records.waiting import WaitingCapture
from reactor.store.port import Event, KeyValue, Snapshot
from reactor.store.writes import in_order, is_too_large

#: heads of logs move all the time
_parse = lru_cache(8192)(keys.parse)


@dataclass(frozen=True, slots=True)
class Owner:
    """An owner, elected or assigned; ``revision`` (its key's create revision) orders ownerships in time."""

    capture: CaptureId
    revision: int


@dataclass(slots=True)
class ChangefeedState:
    """All that etcd holds about one changefeed. ``broken``: key → why its value cannot be read."""

    id: ChangefeedId
    #: of the owners on all captures: the cluster state's own
    progress: ProgressByCapture = field(default_factory=dict)
    info: ChangefeedInfo | None = None
    stored_status: ChangefeedStatus | None = None
    #: None: no capture owns it, or, before ``Feature.OWNERS``, the elected one
    assignment: Assignment | None = None
    #: of the assignment's creation
    owner_revision: int = 0
    positions: dict[CaptureId, TaskPosition] = field(default_factory=dict)
    units: dict[str, UnitRecord] = field(default_factory=dict)
    heads: dict[str, LogHead] = field(default_factory=dict)
    ddl: ChangeIndex = field(default_factory=ChangeIndex)
    sync_points: dict[int, SyncPoint] = field(default_factory=dict)
    partitionings: dict[int, TablePartitioning] = field(default_factory=dict)
    held: dict[int, HeldTable] = field(default_factory=dict)
    attempts: dict[CaptureId, Attempt] = field(default_factory=dict)
    schema_attempts: dict[CaptureId, Attempt] = field(default_factory=dict)
    suspects: Suspects | None = None
    last_diff: LastDiff | None = None
    diff_progress: DiffProgress | None = None
    signals: HandledSignals | None = None
    #: by source
    stream_attempts: dict[str, StreamAttempt] = field(default_factory=dict)
    resyncs: dict[int, TableResync] = field(default_factory=dict)
    #: by name
    subscriptions: dict[str, Subscription] = field(default_factory=dict)
    #: token and number → a part of a large value (``reactor.division``)
    parts: dict[str, bytes] = field(default_factory=dict)
    #: key → its value that is divided
    divided: dict[str, Divided] = field(default_factory=dict)
    broken: dict[str, str] = field(default_factory=dict)
    #: the last of ``ClusterState.changes`` that is of it; that is more than its owner's progress; that is more than
    #: progress of its log, too
    change: int = 0
    moves: int = 0
    news: int = 0
    _status: ChangefeedStatus | None = None
    _is_status_due: bool = True

    @property
    def status(self) -> ChangefeedStatus | None:
        """The newest that is known: of ``stored_status`` and its owner's progress (``reactor.membership.progress``)."""
        if self._is_status_due:
            self._status = newest(self.progress.values(), self.info, self.stored_status)
            self._is_status_due = False
        return self._status

    def renew_status(self) -> None:
        """What it depends on has changed."""
        self._is_status_due = True

    @property
    def is_ahead(self) -> bool:
        """Whether its progress is newer than its stored status."""
        return self.status is not self.stored_status

    def to_store(self, status: ChangefeedStatus) -> ChangefeedStatus:
        """Return ``status`` as it is to be stored: its owner's progress does not count for it."""
        return replacing(self.stored_status, status) if self.is_ahead else status

    @property
    def exists(self) -> bool:
        """False once its last key is gone."""
        return self.assignment is not None or self.has_records

    @property
    def owner(self) -> Owner | None:
        """The capture that it is assigned to."""
        return Owner(self.assignment.capture, self.owner_revision) if self.assignment else None

    @property
    def is_launched(self) -> bool:
        return self.assignment is not None and self.assignment.state is OwnerState.LAUNCHED

    @property
    def has_records(self) -> bool:
        """Whether there is any key of it besides its assignment."""
        attempts = (self.attempts, self.schema_attempts, self.suspects, self.stream_attempts)
        tables = (
            self.partitionings,
            self.held,
            *attempts,
            self.resyncs,
            self.last_diff,
            self.diff_progress,
            self.signals,
            self.subscriptions,
            self.parts,
        )
        records = (self.positions, self.units, self.heads, self.ddl, self.sync_points, *tables, self.broken)
        return self.info is not None or self.status is not None or any(records)


class ClusterState:
    """One cluster (and one namespace of changefeeds): read it in a tick, change it by patches only."""

    def __init__(self, cluster: str, *, namespace: str = keys.DEFAULT_NAMESPACE, removal_grace_s: float = 5.0) -> None:
        self.cluster = cluster
        self.namespace = namespace
        self.revision = 0
        self.raw: dict[str, KeyValue] = {}
        self.owner: Owner | None = None
        self.changefeeds: dict[ChangefeedId, ChangefeedState] = {}
        self.upstreams: dict[str, UpstreamInfo] = {}
        #: processes that want to join, and what they wait for
        self.waiting: dict[CaptureId, WaitingCapture] = {}
        #: key → why its value cannot be read, over the whole cluster
        self.broken: dict[str, str] = {}
        #: by id
        self.tokens: dict[str, TokenRecord] = {}
        #: the format of stored values that the cluster uses (``reactor.records.formats``)
        self.format = formats.FIRST
        #: of the owners on each capture, also of those that are gone
        self.progress: ProgressByCapture = {}
        #: captures present in this tick
        self.captures: Mapping[CaptureId, CaptureInfo] = {}
        self._presence = Presence(removal_grace_s)
        #: of changefeeds
        self.changes = Changes()
        #: grows with every change of an assignment
        self.assignments = 0
        #: keys of changefeeds whose values are stored whole, and large
        self.large: set[str] = set()

    @property
    def has_owners(self) -> bool:
        """Each changefeed has an owner of its own; else the elected capture owns all."""
        return self.format >= Feature.OWNERS

    def owner_of(self, changefeed: ChangefeedId) -> Owner | None:
        """Return the owner of a changefeed; None if there is none at the moment."""
        if not self.has_owners:
            return self.owner
        feed = self.changefeeds.get(changefeed)
        return feed.owner if feed else None

    @property
    def prefix(self) -> str:
        """The prefix that a worker watches to maintain this state."""
        return keys.cluster_prefix(self.cluster)

    def begin_tick(self, now: float) -> None:
        """Determine which captures are present in the tick at ``now``."""
        self.captures = self._presence.shown(now)

    def load(self, snapshot: Snapshot) -> None:
        """Replace everything by ``snapshot``."""
        present = {item.key for item in snapshot.items}
        for key in sorted(self.raw.keys() - present):
            self.update(key, None, mod_revision=snapshot.revision)
        for item in sorted(snapshot.items, key=lambda item: division.is_pointer(item.value)):
            if self.raw.get(item.key) != item:
                self._store(item.key, item)
        self.revision = snapshot.revision

    def apply(self, events: Iterable[Event]) -> None:
        for event in in_order(events):
            revisions = {"mod_revision": event.mod_revision, "create_revision": event.create_revision}
            self.update(event.key, event.value, **revisions, lease=event.lease)

    def update(
        self, key: str, value: bytes | None, *, mod_revision: int = 0, create_revision: int = 0, lease: int = 0
    ) -> None:
        """Set one key's value, or (None) remove it."""
        item = None if value is None else KeyValue(key, value, create_revision, mod_revision, lease)
        self.revision = max(self.revision, mod_revision)
        self._store(key, item)

    def _store(self, key: str, item: KeyValue | None) -> None:
        try:
            parsed = _parse(key)
        except InvalidKeyError:
            parsed = None  # of a later version, or foreign
        if item is not None and parsed is not None and division.is_pointer(item.value):
            item = replace(item, value=self._joined(parsed, item))
        self._note_size(key, item)
        if item is None:
            self.raw.pop(key, None)
        else:
            self.raw[key] = item
        if parsed is not None:
            self._dispatch(parsed, key, item)

    def _joined(self, key: keys.Key, item: KeyValue) -> bytes:
        """Return the value with its parts; without, if one is missing, which its record then reports."""
        feed = self.changefeeds.get(key.changefeed) if isinstance(key, (keys.FeedKey, keys.PositionKey)) else None
        before = self.raw.get(item.key)
        try:
            parts = feed.parts if feed else {}
            return division.joined(item.value, parts.get, before=before.value if before else None)
        except ValueError:
            return item.value

    def _note_size(self, key: str, item: KeyValue | None) -> None:
        if item is not None and is_too_large(key, item.value):
            self.large.add(key)
        else:
            self.large.discard(key)

    def _dispatch(self, key: keys.Key, text: str, item: KeyValue | None) -> None:
        self.broken.pop(text, None)
        try:
            self._read(key, text, item)
        except InvalidRecordError as error:
            self.broken[text] = str(error)
        if isinstance(key, (keys.FeedKey, keys.PositionKey)) and key.namespace == self.namespace:
            self._note_divided(key.changefeed, text, item)
            self._settle_changefeed(key, text)

    def _note_divided(self, changefeed: ChangefeedId, text: str, item: KeyValue | None) -> None:
        known = self.changefeeds[changefeed].divided
        if item is not None and isinstance(item.value, Divided):
            known[text] = item.value
        else:
            known.pop(text, None)

    def _read(self, key: keys.Key, text: str, item: KeyValue | None) -> None:
        """Update the records of one key; an unreadable value changes none of them."""
        value = item.value if item else None
        match key:
            case keys.CaptureKey():
                self._read_capture(key, text, value)
            case keys.WaitingKey():
                put(self.waiting, key.capture, WaitingCapture, text, value, id=key.capture)
            case keys.OwnerKey():
                self.owner = self._first_owner()
            case keys.UpstreamKey(namespace=self.namespace):
                put(self.upstreams, key.source, UpstreamInfo, text, value)
            case keys.FormatKey():
                self.format = ClusterFormat().number if value is None else ClusterFormat.decode(value, key=text).number
            case keys.TokenKey():
                put(self.tokens, key.token, TokenRecord, text, value, id=key.token)
            case keys.DeleteCountKey() | keys.LogStorageKey() | keys.SecretKeyKey():
                pass  # reactor.txn uses the first; a capture reads the others when it starts
            case keys.ReaderKey() | keys.AuditKey() | keys.UpstreamKey():
                pass  # read on demand, or of another namespace
            case _ if key.namespace != self.namespace:
                pass
            case keys.ProgressKey():
                self._read_progress(key.capture, text, value)
            case keys.AssignmentKey():
                self.assignments += 1
                feed = self._feed(key.changefeed)
                feed.assignment = decode(Assignment, text, value)
                feed.owner_revision = item.create_revision if item else 0
            case _:
                self._read_changefeed(key, text, value)

    def _feed(self, changefeed: ChangefeedId) -> ChangefeedState:
        feed = self.changefeeds.get(changefeed)
        if feed is None:
            feed = self.changefeeds[changefeed] = ChangefeedState(changefeed, self.progress)
        return feed

    def _read_changefeed(self, key: keys.FeedKey | keys.PositionKey, text: str, value: bytes | None) -> None:
        feed = self._feed(key.changefeed)
        match key:
            case keys.InfoKey():
                feed.info = decode(ChangefeedInfo, text, value, id=key.changefeed)
                feed.renew_status()
            case keys.StatusKey():
                feed.stored_status = decode(ChangefeedStatus, text, value)
                feed.renew_status()
            case keys.PositionKey():
                put(feed.positions, key.capture, TaskPosition, text, value)
            case keys.UnitKey():
                put(feed.units, key.source, UnitRecord, text, value)
            case keys.LogKey():
                put(feed.heads, key.source, LogHead, text, value)
            case keys.DdlKey():
                put(feed.ddl, key.ts, DdlRecord, text, value, ts=key.ts)
            case keys.SyncPointKey():
                put(feed.sync_points, key.ts, SyncPoint, text, value, ts=key.ts)
            case keys.PartitioningKey():
                put(feed.partitionings, key.table_id, TablePartitioning, text, value, table_id=key.table_id)
            case keys.HeldKey():
                put(feed.held, key.table_id, HeldTable, text, value, table_id=key.table_id)
            case keys.SchemaAttemptKey():
                put(feed.schema_attempts, key.capture, Attempt, text, value)
            case keys.AttemptKey():
                put(feed.attempts, key.capture, Attempt, text, value)
            case keys.SuspectsKey():
                feed.suspects = decode(Suspects, text, value)
            case keys.StreamAttemptKey():
                put(feed.stream_attempts, key.source, StreamAttempt, text, value)
            case keys.LastDiffKey():
                feed.last_diff = decode(LastDiff, text, value)
            case keys.DiffProgressKey():
                feed.diff_progress = decode(DiffProgress, text, value)
            case keys.SignalsKey():
                feed.signals = decode(HandledSignals, text, value)
            case keys.SubscriptionKey():
                put(feed.subscriptions, key.name, Subscription, text, value)
            case keys.PartKey():
                division.store_part(feed.parts, key.name, value)
            case keys.ResyncKey():
                put(feed.resyncs, key.table_id, TableResync, text, value, table_id=key.table_id)

    def _read_progress(self, capture: CaptureId, text: str, value: bytes | None) -> None:
        before = self.progress.get(capture) or CaptureProgress()
        put(self.progress, capture, CaptureProgress, text, value)
        after = self.progress.get(capture) or CaptureProgress()
        for id in before.changefeeds.keys() | after.changefeeds.keys():
            feed = self.changefeeds.get(id)
            if feed is not None and before.changefeeds.get(id) != after.changefeeds.get(id):
                feed.renew_status()
                feed.change = self.changes.note(id)

    def _read_capture(self, key: keys.CaptureKey, text: str, value: bytes | None) -> None:
        if value is None:
            self._presence.remove(key.capture)
        else:
            self._presence.put(record_of(CaptureInfo, text, value, id=key.capture))

    def _settle_changefeed(self, key: keys.FeedKey | keys.PositionKey, text: str) -> None:
        """Copy the key's fault to its changefeed, and remove a changefeed whose last key is gone."""
        feed = self.changefeeds[key.changefeed]
        feed.change = feed.moves = self.changes.note(feed.id)
        was_broken = feed.broken.pop(text, None)
        if text in self.broken:
            feed.broken[text] = self.broken[text]
        if was_broken or feed.broken or not isinstance(key, keys.LogKey):
            feed.news = self.changes.news = feed.change
        if not feed.exists:
            del self.changefeeds[feed.id]

    def _first_owner(self) -> Owner | None:
        """Return the oldest candidate, which holds the election (see ``reactor.membership.election``)."""
        prefix = keys.owner_prefix(self.cluster) + "/"
        candidates = [item for key, item in self.raw.items() if key.startswith(prefix)]
        if not candidates:
            return None
        first = min(candidates, key=lambda item: item.create_revision)
        return Owner(CaptureId(first.value.decode(errors="replace")), first.create_revision)

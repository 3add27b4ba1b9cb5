"""Signals: does for tables what rows of a table at the source ask for, on the owner.

For those who may write at the source, and cannot reach Weir. Each row of the changefeed's ``signal_table`` is handled
once, in the order of the ids: by its ``kind`` (``resync``, ``pause`` or ``resume``) for the table that its ``data``
names, as ``schema.table`` or as JSON. Rows that were there when the changefeed was created ask for nothing, nor those
of another table that an update names, up to the first look at it.
"""

from collections.abc import Sequence
from typing import Any, Final, Protocol

import anyio
import structlog
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agent.ports.source import SIGNAL_MAX, Signal
from capture.api import port as views
from capture.api.access import Caller
from capture.member.ownership import router
from capture.member.services import CaptureState, PresentMembership
from reactor import keys
from reactor.errors import NotOwnerError, OwnerNotFoundError, StoreError, WeirError
from reactor.ids import ChangefeedId
from reactor.records.access import Role
from reactor.records.base import RowsPerSecond
from reactor.records.changefeed import ChangefeedInfo, FeedState, Unit
from reactor.records.schedules import HandledSignals
from reactor.state import ChangefeedState
from reactor.store.port import Compare, Put, Target

LOOK_S: Final = 5.0
#: rows that may be in a signal table: their ids are stored
ROWS_MAX: Final = 1_000
_RUNNING = (FeedState.NORMAL, FeedState.WARNING)
#: characters of an id, for the same reason
ID_MAX: Final = 64
#: of the audit trail, as HTTP would answer
_DONE, _REFUSED = 200, 409

_UNREADABLE: Final = (
    "a signal is ignored: its data has to be schema.table, or JSON with table, where and rows_per_second (from 100 on)"
)

_log = structlog.get_logger()


class Asks(Protocol):
    """The part of ``capture.member.cluster_service`` that signals need."""

    async def resync_table(self, changefeed_id: str, table: str, *, rows_per_second: int | None = None) -> Any: ...

    async def repair(self, changefeed_id: str, asked: views.RepairAsked) -> Any: ...

    async def pause_table(self, changefeed_id: str, table: str) -> Any: ...

    async def resume_table(self, changefeed_id: str, table: str) -> Any: ...


class Trail(Protocol):
    """The part of ``capture.member.access`` that signals need."""

    async def begin(self, caller: Caller, method: str, path: str, source: str, *, detail: str = "") -> str: ...

    async def end(self, entry: str, status: int) -> None: ...


class Reads(Protocol):
    """The part of the data plane that signals need."""

    async def signals(self, info: ChangefeedInfo, limit: int) -> Sequence[Signal]: ...


class SignalData(BaseModel):
    """``where`` and ``rows_per_second``: of a resync."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    table: str = Field(pattern=r"^[^.]+\..+$", max_length=512)
    where: str = Field("", max_length=SIGNAL_MAX)
    rows_per_second: RowsPerSecond | None = None

    @classmethod
    def read(cls, text: str) -> "SignalData":
        """:raises ValidationError: it is neither a table nor the JSON of one."""
        return cls.model_validate_json(text) if text.lstrip().startswith("{") else cls(table=text.strip())


class SignalTables:
    """Of one capture, over all its memberships."""

    def __init__(self, capture: CaptureState, service: Asks, trail: Trail, reads: Reads) -> None:
        self._capture = capture
        self._service = service
        self._trail = trail
        self._reads = reads
        #: why a changefeed's table could not be read last
        self._troubles: dict[ChangefeedId, str] = {}
        #: whose tables are looked at; a source that does not answer delays no other one's signals
        self._looking: set[ChangefeedId] = set()
        #: by changefeed, its table and the ids that were handled here: the stored ones may not be seen yet
        self._known: dict[ChangefeedId, tuple[str, set[str]]] = {}

    async def run(self) -> None:
        async with anyio.create_task_group() as looks:
            while True:
                await anyio.sleep(LOOK_S)
                membership = self._capture.membership
                if membership is None:
                    continue
                feeds = membership.state.changefeeds
                self._known = {id: known for id, known in self._known.items() if id in feeds}
                for _, feed in sorted(feeds.items()):
                    is_due = feed.id not in self._looking and router.answers(membership, feed.id)
                    if is_due and feed.info is not None and _is_asked(feed, feed.info):
                        self._looking.add(feed.id)
                        looks.start_soon(self._look, membership, feed.info, feed.signals)

    async def _look(self, membership: PresentMembership, info: ChangefeedInfo, handled: HandledSignals | None) -> None:
        try:
            rows = await self._reads.signals(info, ROWS_MAX + 1)
            await self._handle_all(membership, info, rows, handled)
        except WeirError as error:
            self._on_trouble(info, str(error))
        finally:
            self._looking.discard(info.id)

    async def _handle_all(
        self,
        membership: PresentMembership,
        info: ChangefeedInfo,
        rows: Sequence[Signal],
        handled: HandledSignals | None,
    ) -> None:
        there, table = ids_of(rows), info.config.signal_table
        self._troubles.pop(info.id, None)
        # a record without a table is of an earlier version
        stored = handled if handled is not None and handled.table in ("", table) else None
        here, seen = self._known.get(info.id, ("", set[str]()))
        is_first = stored is None and here != table
        known = there if is_first else there & {*(stored.ids if stored else ()), *(seen if here == table else ())}
        self._known[info.id] = (table, known)
        for row in rows:
            if row.id in known:
                continue
            try:
                await self._handle(info, row)
            except (NotOwnerError, OwnerNotFoundError, StoreError):
                return  # the next owner does it
            known.add(row.id)
            stored = await self._store(membership, info, known)
        if stored is None or stored.table != table or known != {*stored.ids}:
            await self._store(membership, info, known)

    async def _handle(self, info: ChangefeedInfo, row: Signal) -> None:
        fields = {"changefeed": info.id, "id": row.id, "kind": row.kind[:64]}
        kind = row.kind.strip().lower()
        caller = Caller(f"signal {row.id} in {info.config.signal_table}", Role.OPERATOR, "signal")
        path = f"/changefeeds/{info.id}/tables/{kind[:64]}"
        try:
            data = SignalData.read(row.data)
        except ValidationError:
            _log.warning(_UNREADABLE, **fields)
            await self._trail.end(await self._trail.begin(caller, "SIGNAL", path, "source"), _REFUSED)
            return
        entry = await self._trail.begin(caller, "SIGNAL", path, "source", detail=data.table)
        try:
            await self._do(info.id, kind, data)
        except (NotOwnerError, OwnerNotFoundError, StoreError):
            raise
        except WeirError as error:
            _log.warning("a signal is refused", table=data.table, error=str(error), **fields)
            await self._trail.end(entry, _REFUSED)
        else:
            _log.info("a signal is obeyed", table=data.table, **fields)
            await self._trail.end(entry, _DONE)

    async def _do(self, id: ChangefeedId, kind: str, data: SignalData) -> None:
        match kind:
            case "resync" if data.where:
                limit = data.rows_per_second
                asked = views.RepairAsked(tables=(data.table,), where=data.where, rows_per_second=limit)
                await self._service.repair(id, asked)
            case "resync":
                await self._service.resync_table(id, data.table, rows_per_second=data.rows_per_second)
            case "pause":
                await self._service.pause_table(id, data.table)
            case "resume":
                await self._service.resume_table(id, data.table)
            case _:
                raise WeirError(f"signal kind {kind[:64]!r} is not known; known are resync, pause and resume")

    def _on_trouble(self, info: ChangefeedInfo, trouble: str) -> None:
        if self._troubles.get(info.id) != trouble:
            _log.warning("signals are not read", changefeed=info.id, error=trouble)
        self._troubles[info.id] = trouble

    async def _store(self, membership: PresentMembership, info: ChangefeedInfo, known: set[str]) -> HandledSignals:
        """Unless the changefeed is gone: a record must not outlive it."""
        record = handled_signals(info, known)
        state = membership.state
        stored = state.raw.get(str(keys.InfoKey(state.cluster, info.namespace, info.id)))
        if stored is None:
            return record
        is_there = Compare(stored.key, Target.CREATE_REVISION, stored.create_revision)
        put = Put(str(keys.SignalsKey(state.cluster, info.namespace, info.id)), record.encode())
        try:
            await membership.client.txn([is_there], [put])
        except StoreError as error:
            _log.warning("it is not stored that signals are handled", changefeed=info.id, error=str(error))
        return record


def ids_of(rows: Sequence[Signal]) -> set[str]:
    """Return the ids of a signal table's rows.

    :raises WeirError: they are too many, or too long, to be stored.
    """
    if len(rows) > ROWS_MAX:
        raise WeirError(f"signal-table has more than {ROWS_MAX} rows; delete those of the past")
    if any(len(row.id) > ID_MAX for row in rows):
        raise WeirError(f"signal-table has an id of more than {ID_MAX} characters; delete its row")
    return {row.id for row in rows}


def handled_signals(info: ChangefeedInfo, ids: set[str]) -> HandledSignals:
    """Return the record that these rows of the changefeed's signal table are handled."""
    return HandledSignals(ids=tuple(sorted(ids)), table=info.config.signal_table)


def _is_asked(feed: ChangefeedState, info: ChangefeedInfo) -> bool:
    """Before the log is followed only what is there is noted."""
    is_due = feed.signals is None or any(unit.unit is Unit.SYNC for unit in feed.units.values())
    return bool(info.config.signal_table) and info.state in _RUNNING and is_due and not feed.broken

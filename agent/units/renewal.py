"""Renewal: what a changefeed whose position is lost begins with again: its tables, and a position behind the lost one.

The sync unit that finds ``UnitRecord.needs_position`` has its source make a new position and stores it with the log's
head (``agent.units.records``); until that is stored, whoever comes next makes another one. Each table keeps the Ts that
it began at, which is below the new position, so it is copied again (``owner.feed.renewal``).
"""

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import structlog

from agent.log.epochs import newest_epoch
from agent.log.storage import LogDirectory
from agent.ports.snapshot import Wait
from agent.ports.source import Identity, Position, Source
from agent.units.beginning import Begun, begin
from agent.units.manifest import Manifest
from agent.units.records import UnitRecords
from reactor import failpoints
from reactor.failpoints import Point
from reactor.ids import Ts
from reactor.keys import LogKey
from reactor.records.changefeed import UnitRecord
from reactor.records.log_head import LogHead
from reactor.records.tables.partitioning import LEFT_MAX, LeftTable
from reactor.records.tables.table import TableRecord
from reactor.store.port import MetaStore

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Place:
    """The place of the record."""

    records: UnitRecords
    client: MetaStore
    log: LogKey
    manifest: Manifest
    files: LogDirectory


async def take_position(
    record: UnitRecord, source: Source, place: Place, *, wait: Wait, ask: Callable[..., Awaitable[Any]]
) -> UnitRecord:
    """The record at a new position; ``ask``: calls the source in a thread. ``wait``: for the moment at which a stream
    can begin.

    :raises WeirError: the source has none now, or another worker has taken the unit over.
    """
    lost = await lost_position(place.client, place.log, record)
    server = Identity(record.system_id, record.timeline)

    def take(found: Sequence[TableRecord]) -> Position:
        return source.begin_again(tables_now(record.tables, found), lost, server, wait)

    # one that is unfit is held, as its copy is refused: it keeps no other from the new position
    begun: Begun = await ask(partial(begin, accepts_unfit=True), source, take)
    failpoints.reach(Point.POSITION_TAKEN)
    start, tables = begun.position, tables_now(record.tables, begun.tables)
    left = left_behind(record.tables, tables, lost.ts, time=time.time())
    await ask(place.manifest.write_begun, record.epoch, list(begun.schemas.values()))
    now = record.with_(tables=tables, left=(*record.left, *left)[-LEFT_MAX:], **begun.report.identity.fields())
    after = begun_again(now, start)
    after = after.with_(joining=begun.joining)  # all others that were to join are among the tables
    await place.records.renew(after, place.log, start, newest_epoch=await ask(newest_epoch, place.files))
    _log.info("the changefeed has a new position", ts=start.ts, lost_ts=lost.ts, tables=len(tables))
    failpoints.reach(Point.POSITION_RECORDED)
    return after


def begun_again(record: UnitRecord, start: Position) -> UnitRecord:
    """The record of a source that is read from ``start`` on, with all tables that its filter wants."""
    return record.with_(start_ts=start.ts, start_position=start.text, lost_ts=start.ts, joining=())


def tables_now(known: Sequence[TableRecord], found: Sequence[TableRecord]) -> tuple[TableRecord, ...]:
    """The tables as the source has them now. One that is known by its name lies where it lay; what is gone from the
    source, or has another name there, is left at the sink (``left_behind``)."""
    before = {table.table_id: table for table in known}
    gone = before.keys() - {table.table_id for table in found}
    for table in (before[id] for id in sorted(gone)):
        _log.warning("a table is gone from the source and stays at the sink", table=f"{table.schema_name}.{table.name}")
    return tuple(_continued(before.get(table.table_id), table) for table in found)


def _continued(known: TableRecord | None, found: TableRecord) -> TableRecord:
    if known is None:
        return found.with_(start_ts=Ts(0), consistent_ts=Ts(0))
    found = found.with_(start_ts=known.start_ts, consistent_ts=known.consistent_ts)
    if (known.schema_name, known.name) == (found.schema_name, found.name):
        found = found.with_(location=known.location)
    return found.keeping(known)


def left_behind(
    known: Sequence[TableRecord], tables: Sequence[TableRecord], ts: Ts, *, time: float
) -> tuple[LeftTable, ...]:
    """Tables of the sink that none of ``tables`` continues. They are marked there, so that a copy of a table that took
    such a name can take their place.

    ``ts``: where the log ends; ``time``: Unix seconds.
    """
    continued = {(table.table_id, table.path) for table in tables}
    return tuple(
        LeftTable(
            table_id=one.table_id, schema_name=one.schema_name, name=one.name, location=one.location, ts=ts, time=time
        )
        for one in known
        if (one.table_id, one.path) not in continued
    )


async def lost_position(client: MetaStore, log: LogKey, record: UnitRecord) -> Position:
    """The furthest that was known: where the log is, or where it should have begun."""
    item = await client.get(str(log))
    if item is None:
        return Position(record.start_ts, record.start_position)
    head = LogHead.decode(item.value, key=str(log))
    return Position(head.resolved_ts, head.position)

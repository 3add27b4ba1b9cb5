"""Read back: has tables copied whose rows the log does not tell, on the owner.

Such a table is held: a new one that no publication sends, or that got rows before it was published or had its name;
one whose schema change gave old rows values that only the source knows; a partitioned one whose partitions came or
went with rows; one with an update that left values out of a row that the sink lacks. What ``weir table resync`` does
for one table, this does for all of them: the source sends them from then on, and they are copied. What prevents it is
tried again, less and less often; until then the table is held. For left-out values only the rows concerned are read
first (``capture.member.amendments.reading_back``); the table is copied if that does not help.

A table that the changefeed had already is copied only with ``on-unknown-values = "resync"`` or for its partitions,
which come and go by design, and if the sink is to be as the source is: mode ``incremental`` and filters that keep
rows at the sink want more, or less, than a copy has.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

import anyio
import structlog

from agent.errors import SinkFencedError
from agent.filter import events
from capture.member.ownership import router
from capture.member.services import CaptureState
from reactor.errors import NotOwnerError, OwnerNotFoundError, WeirError
from reactor.ids import ChangefeedId, Ts
from reactor.records.changefeed import ChangefeedInfo, FeedState, Mode, Unit
from reactor.records.tables.held import LEFT_OUT_VALUE, PARTITION_ROWS, UNKNOWN_VALUES, HeldTable, HoldOrigin, HoldStage
from reactor.records.tables.schema_change import pending_tables
from reactor.records.tables.table import TableRecord
from reactor.state import ChangefeedState

_LOOK_S = 1.0
_RETRY_S, _RETRY_MAX_S = 5.0, 300.0
#: the owner changes up to two records for each, in one transaction
_COPIED_AT_ONCE = 45
#: how often rows of a table are read at one position of it, before it is copied
_READS_MAX = 3
#: codes of the sink for what only the source knows
_UNKNOWN = (LEFT_OUT_VALUE, UNKNOWN_VALUES)
_RUNNING = (FeedState.NORMAL, FeedState.WARNING)

_log = structlog.get_logger()

#: a changefeed, and a table's number in its source
_Table = tuple[ChangefeedId, int]


class TakesIn(Protocol):
    """The part of ``capture.member.cluster_service`` that this needs. ``copy_problems``: what prevents the copies of
    held tables, for those who look."""

    copy_problems: dict[_Table, str]

    async def take_in(self, changefeed_id: str, tables: Sequence[HeldTable]) -> Mapping[int, WeirError]: ...

    async def read_rows(self, changefeed_id: str, held: HeldTable) -> int: ...


class ReadBack:
    """Of one capture, over all its memberships. ``clock``: seconds, which never go back."""

    def __init__(self, capture: CaptureState, service: TakesIn, *, clock: Callable[[], float] = anyio.current_time):
        self._capture = capture
        self._service = service
        self._clock = clock
        #: when each was tried last and is tried again, and why it failed
        self._tried: dict[_Table, tuple[float, float, str]] = {}
        #: where each was when rows of it were read, and how often that was
        self._read: dict[_Table, tuple[Ts, int]] = {}

    async def run(self) -> None:
        while True:
            await anyio.sleep(_LOOK_S)
            waiting = dict(self._waiting())
            self._forget(waiting)
            due: dict[ChangefeedId, list[HeldTable]] = defaultdict(list)
            for (id, table), held in waiting.items():
                if self._clock() >= self._tried.get((id, table), (0.0, 0.0, ""))[1]:
                    due[id].append(held)
            for id, tables in due.items():
                wrong = [held for held in tables if not await self._read_rows(id, held)]
                for first in range(0, len(wrong), _COPIED_AT_ONCE):
                    await self._copy(id, wrong[first : first + _COPIED_AT_ONCE])

    def _forget(self, waiting: Mapping[_Table, HeldTable]) -> None:
        """A table that is held again soon after its copy is copied less and less often."""
        kept = self._clock() - _RETRY_MAX_S
        self._tried = {key: tried for key, tried in self._tried.items() if key in waiting or tried[1] > kept}
        self._read = {key: read for key, read in self._read.items() if key in self._tried}
        for key in self._service.copy_problems.keys() - waiting.keys():
            del self._service.copy_problems[key]

    def _waiting(self) -> Iterator[tuple[_Table, HeldTable]]:
        membership = self._capture.membership
        if membership is None:
            return
        for id, feed in sorted(membership.state.changefeeds.items()):
            info = feed.info
            if not router.answers(membership, id):
                continue
            if info is None or feed.broken or info.state not in _RUNNING or info.target_ts is not None:
                continue
            for held in _unknown(feed, info):
                yield (id, held.table_id), held

    async def _read_rows(self, id: ChangefeedId, held: HeldTable) -> bool:
        """Return whether the table continues without a copy."""
        key, fields = (id, held.table_id), {"changefeed": id, "table": held.name}
        ts, times = self._read.get(key, (held.ts, 0))
        times = times if ts == held.ts else 0
        if held.error.code != LEFT_OUT_VALUE or times >= _READS_MAX or self._is_changing(id, held):
            return False
        try:
            rows = await self._service.read_rows(id, held)
        except (NotOwnerError, OwnerNotFoundError, SinkFencedError):
            return True  # the next owner, or the next round, does it
        except WeirError as error:
            _log.warning("rows of a held table cannot be read back", error=str(error), **fields)
            return False
        except Exception:
            _log.exception("reading rows back has crashed", **fields)
            return False
        if rows:
            _log.info("rows of a held table are read back", rows=rows, reason=held.error.message, **fields)
            self._read[key] = held.ts, times + 1
            self._note(key, "", fields)
        return rows > 0

    def _is_changing(self, id: ChangefeedId, held: HeldTable) -> bool:
        """Return whether the sink's rows have another schema than the source's."""
        membership = self._capture.membership
        feed = membership.state.changefeeds.get(id) if membership else None
        return feed is None or any(held.table_id in record.pending_ids for record in feed.ddl.pending)

    async def _copy(self, id: ChangefeedId, tables: Sequence[HeldTable]) -> None:
        """Together: a changefeed begins again with the tables that it takes in, so that one by one none would flow
        meanwhile."""
        try:
            problems = {table: str(error) for table, error in (await self._service.take_in(id, tables)).items()}
        except (NotOwnerError, OwnerNotFoundError):
            return  # the next owner does it
        except WeirError as error:
            problems = dict.fromkeys((held.table_id for held in tables), str(error))
        except Exception as error:
            _log.exception("copies of held tables have crashed", changefeed=id, tables=_names(tables))
            if len(tables) > 1:  # whichever of them is the cause
                for held in tables:
                    await self._copy(id, [held])
                return
            problems = {tables[0].table_id: type(error).__name__}
        if copied := [held for held in tables if held.table_id not in problems]:
            reason = copied[0].error.message
            _log.info("held tables are copied", reason=reason, changefeed=id, tables=_names(copied))
        for held in tables:
            problem = problems.get(held.table_id, "")
            self._note((id, held.table_id), problem, {"changefeed": id, "tables": held.name})

    def _note(self, key: _Table, problem: str, fields: Mapping[str, str]) -> None:
        began, due, before = self._tried.get(key, (0.0, 0.0, ""))
        if problem and problem != before:
            _log.warning("a held table cannot be copied yet", error=problem, **fields)
        self._service.copy_problems[key] = problem
        now = self._clock()
        self._tried[key] = now, now + min(max(2 * (due - began), _RETRY_S), _RETRY_MAX_S), problem


def _names(tables: Sequence[HeldTable]) -> str:
    return ", ".join(held.name for held in tables)


def _unknown(feed: ChangefeedState, info: ChangefeedInfo) -> list[HeldTable]:
    """Return the held tables whose rows the log does not tell. Tables that join, are being copied, or wait for another
    table to give up their name are left out; but not lost ones that were renamed before they were copied: their copy
    waits for the name, which waits for their copy."""
    units = [unit for unit in feed.units.values() if unit.unit is Unit.SYNC]
    if not units:
        return []
    known = {table.table_id: table for unit in units for table in unit.tables}
    joining = {".".join(name) for unit in units for name in unit.joining}
    taken = {f"{table.schema_name}.{table.name}" for table in known.values()}
    found = []
    for id, held in sorted(feed.held.items()):
        if held.stage is HoldStage.TRIED or held.name in joining:
            continue
        if id in feed.resyncs:
            is_wanted = held.stage is HoldStage.LOST and _is_renamed(feed, held)
        elif id in known:
            is_wanted = _is_wanted(held, known[id], info)
        else:
            is_wanted = held.origin is HoldOrigin.SOURCE and held.name not in taken
        if is_wanted:
            found.append(held)
    return found


def _is_renamed(feed: ChangefeedState, held: HeldTable) -> bool:
    """Return whether its name at the source is another one by now, and it has not been copied."""
    if feed.resyncs[held.table_id].table is not None:
        return False
    after = pending_tables(feed.ddl.pending).get(held.table_id)
    return after is not None and f"{after.schema_name}.{after.name}" != held.name


def _is_wanted(held: HeldTable, table: TableRecord, info: ChangefeedInfo) -> bool:
    """Return whether a table that the changefeed had is to be made what the source has."""
    is_of_sink = held.origin in (HoldOrigin.WRITE, HoldOrigin.SCHEMA)
    is_unknown = held.origin is HoldOrigin.SOURCE or (is_of_sink and held.error.code in _UNKNOWN)
    config = info.config
    is_asked_for = config.on_unknown_values == "resync" or held.error.code == PARTITION_ROWS
    if not is_unknown or not is_asked_for or info.mode is Mode.INCREMENTAL:
        return False
    return not events.rules_for(config.filter, table.schema_name, table.name).leaves_rows

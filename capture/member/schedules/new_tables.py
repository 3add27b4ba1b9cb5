"""New tables: has tables copied that came to a source in a way that its stream could not follow, on the owner.

Such a table (one that no publication sends, or that got rows before it was published or had its name) is held. What
``weir table resync`` does for one table, this does for all that the changefeed never had: the source sends them from
then on, and they are copied. What prevents it is tried again, less and less often; until then the table stays held.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

import anyio
import structlog

from capture.member.ownership import router
from capture.member.services import CaptureState
from reactor.errors import NotOwnerError, OwnerNotFoundError, WeirError
from reactor.ids import ChangefeedId
from reactor.records.changefeed import FeedState, Unit
from reactor.records.held import HeldTable, HoldOrigin, HoldStage
from reactor.state import ChangefeedState

_LOOK_S = 1.0
_RETRY_S, _RETRY_MAX_S = 5.0, 300.0
_RUNNING = (FeedState.NORMAL, FeedState.WARNING)

_log = structlog.get_logger()

#: a changefeed, and a table's number in its source
_Table = tuple[ChangefeedId, int]


class Copies(Protocol):
    """The part of ``capture.member.cluster_service`` that this needs."""

    async def take_in(self, changefeed_id: str, tables: Sequence[str]) -> None: ...


class NewTables:
    """Of one capture, over all its memberships. ``clock``: seconds, which never go back."""

    def __init__(self, capture: CaptureState, service: Copies, *, clock: Callable[[], float] = anyio.current_time):
        self._capture = capture
        self._service = service
        self._clock = clock
        #: when each was tried last and is tried again, and why it failed
        self._tried: dict[_Table, tuple[float, float, str]] = {}

    async def run(self) -> None:
        while True:
            await anyio.sleep(_LOOK_S)
            waiting = dict(self._waiting())
            self._tried = {key: tried for key, tried in self._tried.items() if key in waiting}
            due: dict[ChangefeedId, list[HeldTable]] = defaultdict(list)
            for (id, table), held in waiting.items():
                if self._clock() >= self._tried.get((id, table), (0.0, 0.0, ""))[1]:
                    due[id].append(held)
            for id, tables in due.items():
                await self._copy(id, tables)

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
            for held in _new(feed):
                yield (id, held.table_id), held

    async def _copy(self, id: ChangefeedId, tables: Sequence[HeldTable]) -> None:
        """All at once, as a changefeed that takes tables in begins again; one by one if one of them prevents that."""
        fields = {"changefeed": id, "tables": ", ".join(held.name for held in tables)}
        try:
            await self._service.take_in(id, [held.name for held in tables])
        except (NotOwnerError, OwnerNotFoundError):
            return  # the next owner does it
        except WeirError as error:
            problem = str(error)
        except Exception as error:
            _log.exception("copies of new tables have crashed", **fields)
            problem = type(error).__name__
        else:
            _log.info("new tables are copied", reason=tables[0].error.message, **fields)
            problem = ""
        if problem and len(tables) > 1:
            for held in tables:
                await self._copy(id, [held])
            return
        for held in tables:
            self._note((id, held.table_id), problem, fields)

    def _note(self, key: _Table, problem: str, fields: Mapping[str, str]) -> None:
        began, due, before = self._tried.get(key, (0.0, 0.0, ""))
        if problem and problem != before:
            _log.warning("a new table cannot be copied yet", error=problem, **fields)
        now = self._clock()
        self._tried[key] = now, now + min(max(2 * (due - began), _RETRY_S), _RETRY_MAX_S), problem


def _new(feed: ChangefeedState) -> list[HeldTable]:
    """Return the tables that the source could not follow, and the changefeed never had; but for those that join, or
    wait for a table that had their name."""
    units = [unit for unit in feed.units.values() if unit.unit is Unit.SYNC]
    if not units:
        return []
    tables = [table for unit in units for table in unit.tables]
    known = {table.table_id for table in tables}
    taken = {".".join(name) for unit in units for name in unit.joining}
    taken.update(f"{table.schema_name}.{table.name}" for table in tables)
    return [
        held
        for _, held in sorted(feed.held.items())
        if held.origin is HoldOrigin.SOURCE and held.stage is not HoldStage.TRIED
        if held.table_id not in known and held.name not in taken
    ]

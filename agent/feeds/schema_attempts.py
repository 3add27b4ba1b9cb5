"""Schema attempts: this capture's note in etcd of the tables whose schema it is changing at the sink, so that its end
is traced to them.

What ``agent.feeds.attempts`` is for rows. Tables that may have ended a capture (``owner.feed.holds.suspects``) are
changed one at a time, and not while others of them are written.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import anyio
import structlog

from reactor.errors import StoreError
from reactor.ids import ChangefeedId
from reactor.keys import SchemaAttemptKey
from reactor.records.attempts import Attempt
from reactor.records.tables.held import tried_after_end
from reactor.state import ClusterState
from reactor.store.port import Compare, Delete, MetaStore, Put

_CLOSE_S = 2.0

_log = structlog.get_logger()


@dataclass(eq=False, slots=True)
class _Work:
    tables: frozenset[int]
    is_trial: bool


@dataclass(slots=True)
class SchemaAttempts:
    """Those of all changefeeds at one capture. ``trials``: held while a suspect is written, or changed."""

    client: MetaStore
    state: ClusterState
    trials: anyio.Lock
    _works: dict[ChangefeedId, list[_Work]] = field(default_factory=dict)

    @asynccontextmanager
    async def under_way(
        self, key: SchemaAttemptKey, conditions: Sequence[Compare], tables: frozenset[int]
    ) -> AsyncIterator[None]:
        """Around the change of ``tables``. ``conditions``: hold as long as changefeed and capture are there.

        :raises StoreError: they are suspects, and this could not be noted.
        """
        work = _Work(tables, is_trial=tables <= self._suspects(key.changefeed))
        works = self._works.setdefault(key.changefeed, [])
        async with AsyncExitStack() as stack:
            if work.is_trial:
                await stack.enter_async_context(self.trials)
            works.append(work)
            try:
                await self._store(key, conditions, is_needed=work.is_trial)
                yield
            finally:
                works.remove(work)
                with anyio.move_on_after(_CLOSE_S, shield=True):
                    await self._store(key, conditions, is_needed=False)

    def _suspects(self, changefeed: ChangefeedId) -> frozenset[int]:
        feed = self.state.changefeeds.get(changefeed)
        if feed is None:
            return frozenset()
        return frozenset(feed.suspects.tables if feed.suspects else ()) | tried_after_end(feed.held.values())

    async def _store(self, key: SchemaAttemptKey, conditions: Sequence[Compare], *, is_needed: bool) -> None:
        works = self._works[key.changefeed]
        tables = {table for work in works for table in work.tables}
        note = Attempt(tables=tuple(sorted(tables)), is_trial=all(work.is_trial for work in works))
        try:
            await self.client.txn(conditions, [Put(str(key), note.encode()) if tables else Delete(str(key))])
        except StoreError as error:
            if is_needed:
                raise
            _log.debug("what is under way could not be noted", key=str(key), error=str(error))

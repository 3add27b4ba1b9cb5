"""Attempts: this capture's record in etcd of the tables being written, so that a crash is traced to them.

It costs nothing while the same tables are written repeatedly: the record names all tables of the last seconds, and is
written again when another one is added. Suspects (``owner.feed.holds.suspects``) are recorded exactly, and only while
they are written.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import anyio
import structlog
from anyio import from_thread

from reactor.errors import StoreError
from reactor.keys import AttemptKey
from reactor.records.attempts import Attempt
from reactor.store.port import Compare, Delete, MetaStore, Put

#: a table written longer ago than this is no longer in progress
_FORGET_S = 10.0
_CLOSE_S = 2.0

_log = structlog.get_logger()


class Attempts:
    """The record of one changefeed on this capture. ``conditions``: hold while changefeed and capture exist.

    Work is recorded before it begins. Without etcd's answer it begins all the same, except for suspects. ``trials``:
    only one changefeed of this process writes suspects at a time, otherwise one would be blamed for another's work.
    """

    def __init__(
        self,
        client: MetaStore,
        key: AttemptKey,
        conditions: Sequence[Compare],
        *,
        trials: anyio.Lock,
        clock: Callable[[], float],
    ) -> None:
        self._client = client
        self._key = str(key)
        self._conditions = tuple(conditions)
        self._trials = trials
        self._clock = clock
        self._noted: Attempt | None = None
        #: False after a call whose answer was lost
        self._is_sure = True
        self._noted_at = 0.0
        #: table → when it was last written
        self._used: dict[int, float] = {}

    @asynccontextmanager
    async def under_way(self, *, is_trial: bool) -> AsyncIterator[None]:
        """Enclose work that begins and ends inside. A record of suspects is removed at the end."""
        if not is_trial:
            yield
            return
        async with self._trials:
            try:
                yield
            finally:
                if not self._is_sure or (self._noted is not None and self._noted.is_trial):
                    await self._try(None)

    def begin_in_thread(self, tables: frozenset[int], is_trial: bool) -> None:
        """Call ``begin`` from a worker thread."""
        if (note := self._wanted(tables, is_trial)) != self._noted or not self._is_sure:
            from_thread.run(self._note, note)

    async def begin(self, tables: frozenset[int], is_trial: bool) -> None:
        """Record that ``tables`` are about to be written: all of them suspects if ``is_trial``.

        :raises StoreError: they are suspects, and this could not be recorded.
        """
        if (note := self._wanted(tables, is_trial)) != self._noted or not self._is_sure:
            await self._note(note)

    async def close(self) -> None:
        """Remove the record: nothing of the changefeed is written here any more."""
        if not self._is_sure or self._noted is not None:
            with anyio.move_on_after(_CLOSE_S):
                await self._try(None)

    def _wanted(self, tables: frozenset[int], is_trial: bool) -> Attempt | None:
        """Return the record to store while ``tables`` are written."""
        now = self._clock()
        self._used = {table: at for table, at in self._used.items() if now - at < _FORGET_S} | dict.fromkeys(
            tables, now
        )
        if is_trial:
            return Attempt(tables=tuple(sorted(tables)), is_trial=True)
        known = self._noted
        if (
            known is not None
            and not known.is_trial
            and now - self._noted_at < _FORGET_S
            and tables.issubset(known.tables)
        ):
            return known
        return Attempt(tables=tuple(sorted(self._used))) if self._used else None

    async def _note(self, note: Attempt | None) -> None:
        """:raises StoreError: the record is of suspects, and could not be stored."""
        if note is not None and note.is_trial:
            await self._store(note)
        else:
            await self._try(note)

    async def _try(self, note: Attempt | None) -> None:
        try:
            await self._store(note)
        except StoreError as error:
            _log.debug("what is under way could not be noted", key=self._key, error=str(error))

    async def _store(self, note: Attempt | None) -> None:
        self._is_sure = False
        operation = Put(self._key, note.encode()) if note is not None else Delete(self._key)
        await self._client.txn(self._conditions, [operation])
        self._noted, self._noted_at, self._is_sure = note, self._clock(), True

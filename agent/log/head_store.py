"""Store of the log's head: reads it, and moves it if nobody else has, with the schema changes that it passes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from agent.errors import HoldTooEarlyError, LogFencedError
from agent.log.quiet import QuietMoves
from agent.log.stored_form import format_of, get_prefix_whole, stored_form
from reactor.keys import DdlKey, LogKey, ddl_prefix
from reactor.records.formats import Feature
from reactor.records.log_head import LogHead
from reactor.records.tables.schema_change import DdlRecord, TableChange
from reactor.store.port import Compare, MetaStore, Put, Target


@dataclass(frozen=True, slots=True)
class StoredHead:
    """The stored head; ``revision`` is the key's, 0 if there is no head yet."""

    head: LogHead | None
    revision: int


class HeadStore(Protocol):
    """The store of the head. Errors are ``StoreError``; after one, a swap may or may not have happened."""

    async def read(self) -> StoredHead: ...

    async def swap(
        self, head: LogHead, *, revision: int, ddl: Sequence[DdlRecord] = (), may_wait: bool = False
    ) -> int | None:
        """Write ``head`` if the key is still at ``revision``. Return its new revision, or None if the key had changed.

        ``ddl`` is written in the same transaction. ``may_wait``: it is not urgent.

        :raises LogFencedError: the changefeed is gone.
        """
        ...

    async def read_ddl(self) -> list[DdlRecord]:
        """Return the schema changes found so far, by Ts."""
        ...


class MetaHeadStore:
    """The head under its key in etcd. ``guard``: holds while the same incarnation of the changefeed exists; one of the
    same name created later has its own log. ``quiet``: sends what is not urgent."""

    def __init__(
        self, client: MetaStore, key: LogKey, *, guard: Compare | None = None, quiet: QuietMoves | None = None
    ) -> None:
        self._client = client
        self._quiet = quiet
        self._place = key
        self._key = str(key)
        self._guard = guard

    async def read(self) -> StoredHead:
        item = await self._client.get(self._key)
        if item is None:
            return StoredHead(None, 0)
        return StoredHead(LogHead.decode(item.value, key=self._key), item.mod_revision)

    async def swap(
        self, head: LogHead, *, revision: int, ddl: Sequence[DdlRecord] = (), may_wait: bool = False
    ) -> int | None:
        if changes := [change for record in ddl for change in record.changes if _needs_format(change)]:
            await self._refuse_early(changes)
        compares = [Compare(self._key, Target.MOD_REVISION, revision), *([self._guard] if self._guard else [])]
        values = {self._ddl_key(one): one.encode() for one in ddl}
        form = await stored_form(self._client, self._place.cluster, values)
        operations = [Put(self._key, head.encode()), *form.operations]
        store = self._quiet.txns if self._quiet is not None and may_wait else self._client
        result = await store.txn([*compares, *form.compares], operations)
        if result.succeeded:
            return result.revision
        if self._guard is not None and not await still_holds(self._client, self._guard):
            raise LogFencedError("the changefeed was removed; this sync unit stops")
        return None

    async def read_ddl(self) -> list[DdlRecord]:
        place = self._place
        prefix = ddl_prefix(place.cluster, place.namespace, place.changefeed)
        found = await get_prefix_whole(self._client, prefix)
        records = [DdlRecord.decode(item.value, key=item.key) for item in found]
        return sorted(records, key=lambda record: record.ts)

    async def _refuse_early(self, changes: Sequence[TableChange]) -> None:
        """Refuse a hold, or a table that is to be copied, while older captures run: they cannot read it, and would
        write the table. The stored format is never downgraded, so a positive answer is remembered.

        :raises HoldTooEarlyError: older captures run.
        """
        number = await format_of(self._client, self._place.cluster)
        first = max(changes, key=_needs_format)
        if number < _needs_format(first):
            what = first.reason or "a table came with rows that are not in the log"
            raise HoldTooEarlyError(
                f"{what}; to hold the table alone the cluster must use format {_needs_format(first):d}, "
                f"and uses {number}: upgrade all captures; it is tried again"
            )

    def _ddl_key(self, record: DdlRecord) -> str:
        place = self._place
        return str(DdlKey(place.cluster, place.namespace, place.changefeed, record.ts))


def _needs_format(change: TableChange) -> int:
    """0: every one can carry it."""
    if change.table is not None and change.table.to_copy:
        return Feature.NEW_POSITION
    return Feature.HELD_TABLES if change.is_hold else 0


async def still_holds(client: MetaStore, guard: Compare) -> bool:
    """Return whether ``guard`` (on a key's create revision) holds.

    :raises StoreError: no answer.
    """
    item = await client.get(guard.key)
    return (item.create_revision if item else 0) == guard.revision

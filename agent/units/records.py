"""Unit records: stores a unit's progress in etcd, fenced by the order's epoch."""

import anyio
import structlog

from agent.errors import LogFencedError, UnitFencedError
from agent.log.head import begun_again
from agent.log.head_store import still_holds
from agent.log.stored_form import StoredForm, get_whole, stored_form
from agent.ports.source import Identity, Position
from reactor.division.divided import after
from reactor.errors import StoreError, TxnTooLargeError
from reactor.keys import LogKey, UnitKey, ddl_prefix
from reactor.records.changefeed import Unit, UnitRecord
from reactor.records.log_head import LogHead
from reactor.store.port import Compare, Delete, KeyValue, MetaStore, Put, Target

#: fields of the record that the owner writes
OWNED = ("lost_ts", "joining", "copy_limits", "left")
_REMOVED = "the changefeed was removed; this unit stops"
_RETRY_S = 0.2
_RETRY_MAX_S = 5.0
#: operations of one transaction; etcd takes 128 by default
_AT_ONCE = 64

_log = structlog.get_logger()


class UnitRecords:
    """The record of one changefeed's source. Calls retry until etcd answers.

    ``guard``: holds while the same incarnation of the changefeed exists, as in ``agent.log.head_store.MetaHeadStore``.
    """

    def __init__(self, client: MetaStore, key: UnitKey, *, guard: Compare | None = None) -> None:
        self._client = client
        self._key = str(key)
        self._cluster = key.cluster
        self._guard = guard

    async def read(self) -> UnitRecord | None:
        return self._record(await self._read())

    async def require(self) -> UnitRecord:
        """Return the record that an earlier unit has left.

        :raises UnitFencedError: there is none, so the changefeed has been removed since.
        """
        if (record := await self.read()) is None:
            raise UnitFencedError(_REMOVED)
        return record

    async def write(self, record: UnitRecord) -> None:
        """Store ``record``; idempotent.

        While a source is synced, the owner manages its tables and changes them with the schema: they stay as stored. So
        do the fields in ``OWNED``; but ``renew`` also writes ``lost_ts`` and ``joining``, and a dump the first
        ``joining``.

        :raises UnitFencedError: a worker with a newer order has written since, or the changefeed is gone.
        :raises HoldTooEarlyError: it is too large as long as older captures run.
        :raises TxnTooLargeError: it is too large.
        """
        delay_s = _RETRY_S
        while True:
            item = await self._read()
            stored = self._record(item)
            if stored is not None:
                record = _in_place_of(stored, record)
            if stored == record:
                return
            self._refuse_newer(stored, record)
            try:
                if await self._swap(await self._form(record, item), item):
                    return
            except TxnTooLargeError:
                raise
            except StoreError as error:
                _log.warning("writing a unit's record got no answer", key=self._key, error=str(error))
            await anyio.sleep(delay_s)
            delay_s = min(2 * delay_s, _RETRY_MAX_S)

    async def note_server(self, record: UnitRecord, server: Identity) -> None:
        """Store ``record`` with this server, if it is another one than the record's.

        :raises UnitFencedError: see ``write``.
        """
        if server != Identity(record.system_id, record.timeline):
            await self.write(record.with_(**server.fields()))

    async def renew(self, record: UnitRecord, log: LogKey, start: Position, *, newest_epoch: int = 0) -> None:
        """Store ``record``, which begins at ``start``, and let the log begin there too: in one transaction, and the
        schema changes of before go ahead of it. Doing it again changes nothing. ``newest_epoch``: of the log's files.

        :raises UnitFencedError: a worker with a newer order has written since, or the changefeed is gone.
        :raises LogFencedError: whoever reads the log still has come past ``start``.
        """
        while (stored := self._record(item := await self._read())) != record:
            self._refuse_newer(stored, record)
            try:
                await self._renew(record, item, log, start, newest_epoch)
            except TxnTooLargeError:
                raise
            except StoreError as error:
                _log.warning("writing a new position got no answer", key=self._key, error=str(error))
                await anyio.sleep(_RETRY_S)

    async def _renew(
        self, record: UnitRecord, stored: KeyValue | None, log: LogKey, start: Position, newest_epoch: int
    ) -> None:
        """One try; what was stored meanwhile is looked at by the caller."""
        ddl = await self._client.get_prefix(ddl_prefix(log.cluster, log.namespace, log.changefeed))
        doomed = [Delete(item.key) for item in ddl.items]
        while doomed:
            if not await self._swap(StoredForm(tuple(doomed[:_AT_ONCE])), stored):
                return
            doomed = doomed[_AT_ONCE:]
        item = await self._client.get(str(log))
        if item is None:
            await self._swap(await self._form(record, stored), stored)
            return
        before = LogHead.decode(item.value, key=str(log))
        if before.resolved_ts >= start.ts:
            raise LogFencedError(
                f"the log has come to {before.resolved_ts}, past the new position {start.ts}; take another"
            )
        head = begun_again(before, start.ts, position=start.text, newest_epoch=newest_epoch)
        moved = Compare(str(log), Target.MOD_REVISION, item.mod_revision)
        form = await self._form(record, stored)
        await self._swap(StoredForm((*form.operations, Put(str(log), head.encode())), (*form.compares, moved)), stored)

    def _refuse_newer(self, stored: UnitRecord | None, record: UnitRecord) -> None:
        if stored is not None and stored.epoch > record.epoch:
            raise UnitFencedError(
                f"unit {record.unit} was taken over under epoch {stored.epoch}; "
                f"this worker, under epoch {record.epoch}, stops"
            )

    async def _form(self, record: UnitRecord, stored: KeyValue | None) -> StoredForm:
        before = stored.value if stored else None
        values = {self._key: after(before, record)}
        return await stored_form(self._client, self._cluster, values, before={self._key: before} if before else None)

    async def _swap(self, form: StoredForm, stored: KeyValue | None) -> bool:
        unchanged = Compare(self._key, Target.MOD_REVISION, stored.mod_revision if stored else 0)
        compares = [unchanged, *form.compares, *([self._guard] if self._guard else [])]
        if (await self._client.txn(compares, form.operations)).succeeded:
            return True
        if self._guard is not None and not await still_holds(self._client, self._guard):
            raise UnitFencedError(_REMOVED)
        return False

    def _record(self, item: KeyValue | None) -> UnitRecord | None:
        return None if item is None else UnitRecord.decode(item.value, key=self._key)

    async def _read(self) -> KeyValue | None:
        delay_s = _RETRY_S
        while True:
            try:
                return await get_whole(self._client, self._key)
            except StoreError as error:
                if not error.retryable:
                    raise
                _log.warning("reading a unit's record is tried again", key=self._key, error=str(error))
            await anyio.sleep(delay_s)
            delay_s = min(2 * delay_s, _RETRY_MAX_S)


def _in_place_of(stored: UnitRecord, record: UnitRecord) -> UnitRecord:
    """Keep the stored fields that ``record`` does not know, and the tables of a source that is synced."""
    owned = {name: getattr(stored, name) for name in OWNED}
    if stored.unit is record.unit is Unit.DUMP:
        owned["joining"] = record.joining
    record = record.keeping(stored).with_(**owned)
    if stored.unit is record.unit is Unit.SYNC:
        return record.with_(tables=stored.tables)
    known = {table.table_id: table for table in stored.tables if table.model_extra}
    if not known:
        return record
    tables = (table.keeping(known.get(table.table_id, table)) for table in record.tables)
    return record.with_(tables=tuple(tables))

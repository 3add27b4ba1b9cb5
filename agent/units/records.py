"""Unit records: what a unit has done, stored in etcd, fenced by the order's epoch."""

import anyio
import structlog

from agent.errors import UnitFencedError
from agent.log.head import still_holds
from reactor.errors import EtcdError
from reactor.keys import UnitKey
from reactor.records.changefeed import Unit, UnitRecord
from reactor.store.port import Compare, EtcdClient, Put, Target

_RETRY_S = 0.2
_RETRY_MAX_S = 5.0

_log = structlog.get_logger()


class UnitRecords:
    """The record of one changefeed's source. Calls last until etcd has answered; it may be away for a while.

    ``life``: holds while the changefeed is still the one that was started, as in ``agent.log.head.EtcdHeadStore``.
    """

    def __init__(self, client: EtcdClient, key: UnitKey, *, life: Compare | None = None) -> None:
        self._client = client
        self._key = str(key)
        self._life = life

    async def read(self) -> UnitRecord | None:
        return (await self._read())[0]

    async def write(self, record: UnitRecord) -> None:
        """Store ``record``; doing it again changes nothing.

        While a source is synced its tables are the owner's, who changes them with the schema: they stay as stored.

        :raises UnitFencedError: a worker with a newer order has written since, or the changefeed is gone.
        """
        delay_s = _RETRY_S
        while True:
            stored, revision = await self._read()
            if stored is not None:
                record = _in_place_of(stored, record)
            if stored == record:
                return
            if stored is not None and stored.epoch > record.epoch:
                raise UnitFencedError(
                    f"unit {record.unit} was taken over under epoch {stored.epoch}; "
                    f"this worker, under epoch {record.epoch}, stops"
                )
            try:
                if await self._swap(record, revision):
                    return
            except EtcdError as error:
                _log.warning("writing a unit's record got no answer", key=self._key, error=str(error))
            await anyio.sleep(delay_s)
            delay_s = min(2 * delay_s, _RETRY_MAX_S)

    async def _swap(self, record: UnitRecord, revision: int) -> bool:
        compares = [Compare(self._key, Target.MOD_REVISION, revision), *([self._life] if self._life else [])]
        if (await self._client.txn(compares, [Put(self._key, record.encode())])).succeeded:
            return True
        if self._life is not None and not await still_holds(self._client, self._life):
            raise UnitFencedError(f"the changefeed was removed; unit {record.unit} stops")
        return False

    async def _read(self) -> tuple[UnitRecord | None, int]:
        delay_s = _RETRY_S
        while True:
            try:
                item = await self._client.get(self._key)
                return (None, 0) if item is None else (UnitRecord.decode(item.value, key=self._key), item.mod_revision)
            except EtcdError as error:
                if not error.retryable:
                    raise
                _log.warning("reading a unit's record is tried again", key=self._key, error=str(error))
            await anyio.sleep(delay_s)
            delay_s = min(2 * delay_s, _RETRY_MAX_S)


def _in_place_of(stored: UnitRecord, record: UnitRecord) -> UnitRecord:
    """What ``record`` does not know stays as stored, and so do the tables of a source that is synced."""
    record = record.keeping(stored)
    if stored.unit is record.unit is Unit.SYNC:
        return record.with_(tables=stored.tables)
    known = {table.table_id: table for table in stored.tables if table.model_extra}
    if not known:
        return record
    tables = (table.keeping(known.get(table.table_id, table)) for table in record.tables)
    return record.with_(tables=tuple(tables))

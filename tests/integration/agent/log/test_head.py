"""The log with its head in a real etcd: two writers, one of them too late."""

from pathlib import Path

import pytest

from agent.errors import LogError, LogFencedError
from agent.log import retention, segment
from agent.log.head import LogWriter
from agent.log.head_store import MetaHeadStore
from agent.log.reader import LogReader
from agent.log.segment import SegmentName
from agent.log.storage import LogDirectory
from agent.rows.batches import SegmentRef
from agent.units.records import UnitRecords
from reactor.ids import CaptureId, ChangefeedId, Ts
from reactor.keys import FormatKey, LogKey, UnitKey
from reactor.records.changefeed import Unit, UnitRecord, UnitStage
from reactor.records.formats import NEWEST, ClusterFormat
from reactor.records.tables.schema_change import DdlRecord, SchemaChangeKind, TableChange
from reactor.records.tables.table import TableRecord
from reactor.store import etcd
from reactor.store.port import MetaStore
from tests.unit.agent.log.test_head import held_at
from tests.unit.agent.log_build import batch


def written(place: LogDirectory, log: LogWriter) -> SegmentRef:
    seq = log.head.last_seq + 1
    found = SegmentName(seq, log.head.epoch, Ts(10 * seq), Ts(10 * seq), Ts(10 * seq))
    return segment.write(place, found, [batch(1, (10 * seq, log.head.epoch))])


async def test_a_log_is_written_taken_over_read_and_shortened(etcd_url: str, tmp_path: Path) -> None:
    place = LogDirectory(str(tmp_path), changefeed="feed", source="main")
    client: MetaStore = await etcd.connect([etcd_url])
    try:
        key = LogKey("log-test", "default", ChangefeedId(tmp_path.name.replace("_", "-")), "main")
        old, new = (LogWriter(MetaHeadStore(client, key), capture=CaptureId(name)) for name in ("old", "new"))
        await old.take_over(Ts(5))
        await old.append(written(place, old), is_complete=True, resolved_time=1.0)
        await old.append(written(place, old), is_complete=False, resolved_time=1.0)

        await new.take_over(Ts(5))
        late = written(place, old)
        with pytest.raises(LogFencedError, match="taken over by new"):
            await old.append(late, is_complete=True, resolved_time=2.0)
        await new.append(written(place, new), is_complete=True, resolved_time=3.0)
        await new.append(written(place, new), is_complete=True, resolved_time=4.0)

        stored = await MetaHeadStore(client, key).read()
        assert stored.head == new.head
        refs = LogReader(place).segments(new.head, Ts(5), Ts(30))
        events = [
            event
            for ref in refs
            for _, found, _ in segment.read_batches(ref.path, 1)
            for event in found.column("event").to_pylist()
        ]
        assert events == [b"10/1", b"20/2", b"30/2"]

        removal = retention.plan(new.head, place.entries(), retention.Needs(Ts(20), 0.0), now=1e12)
        await retention.apply(removal, new)
        retention.remove_files(removal, place)
        assert [ref.seq for ref in LogReader(place).segments(new.head, Ts(20), Ts(30))] == [3]
        with pytest.raises(LogError, match="were removed from the change log"):
            LogReader(place).segments(new.head, Ts(0), Ts(30))
        assert len(place.names()) == 1
    finally:
        await client.close()


async def test_schema_changes_of_more_than_one_request_go_ahead_of_the_head(etcd_url: str, tmp_path: Path) -> None:
    """4 MB in 100 records, of which etcd takes 1.5 MiB at once."""
    client: MetaStore = await etcd.connect([etcd_url])
    try:
        await client.put(str(FormatKey("log-test")), ClusterFormat(number=NEWEST).encode())
        key = LogKey("log-test", "default", ChangefeedId(tmp_path.name.replace("_", "-")), "main")
        log = LogWriter(MetaHeadStore(client, key), capture=CaptureId("a"))
        await log.take_over(Ts(5))
        found = [DdlRecord(ts=Ts(ts), changes=(_hold(ts, "x" * 40_000),)) for ts in range(10, 110)]
        await log.advance(Ts(500), resolved_time=1.0, ddl=found)
        assert await log.read_ddl() == found
        assert (await MetaHeadStore(client, key).read()).head == log.head
    finally:
        await client.close()


async def test_ten_thousand_tables_are_held_at_one_position(etcd_url: str, tmp_path: Path) -> None:
    client: MetaStore = await etcd.connect([etcd_url])
    try:
        await client.put(str(FormatKey("log-test")), ClusterFormat(number=NEWEST).encode())
        key = LogKey("log-test", "default", ChangefeedId(tmp_path.name.replace("_", "-")), "main")
        log = LogWriter(MetaHeadStore(client, key), capture=CaptureId("a"))
        await log.take_over(Ts(5))
        await log.advance(Ts(500), resolved_time=1.0, ddl=[held_at(300, 10_000)])
        assert await log.read_ddl() == [held_at(300, 10_000)]
    finally:
        await client.close()


async def test_twenty_thousand_tables_are_one_record(etcd_url: str, tmp_path: Path) -> None:
    client: MetaStore = await etcd.connect([etcd_url])
    try:
        await client.put(str(FormatKey("log-test")), ClusterFormat(number=NEWEST).encode())
        key = UnitKey("log-test", "default", ChangefeedId(tmp_path.name.replace("_", "-")), "main")
        tables = tuple(TableRecord.new(n, "public", f"customer_orders_{n:06}", key=("id",)) for n in range(20_000))
        record = UnitRecord(unit=Unit.SYNC, stage=UnitStage.RUNNING, epoch=1, tables=tables)
        await UnitRecords(client, key).write(record)
        assert await UnitRecords(client, key).require() == record
    finally:
        await client.close()


def _hold(table_id: int, reason: str) -> TableChange:
    return TableChange(kind=SchemaChangeKind.HOLD, table_id=table_id, reason=reason)

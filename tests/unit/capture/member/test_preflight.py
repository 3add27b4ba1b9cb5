"""Preflight: a changefeed has room for its tables in one record of the metadata store."""

import pytest

from agent.errors import SourceConfigError
from capture.member.preflight import refuse_too_many
from reactor.ids import MAX_TS
from reactor.records.changefeed import TableRecord, Unit, UnitRecord, UnitStage
from reactor.txn import BYTES_MAX


def tables(count: int) -> list[TableRecord]:
    return [TableRecord.new(number, "public", f"customer_orders_{number:06}", key=("id",)) for number in range(count)]


def test_as_many_tables_as_etcd_takes_are_accepted_and_no_more() -> None:
    refused = r"matches 20,000 tables, and a changefeed has room for about [0-9,]+ with such names"
    with pytest.raises(SourceConfigError, match=refused) as error:
        refuse_too_many(tables(20_000))
    room = int(str(error.value).split("about ")[1].split(" ")[0].replace(",", ""))
    assert 6_000 < room < 10_000
    refuse_too_many(tables(room))
    copied = tuple(table.with_(start_ts=MAX_TS, consistent_ts=MAX_TS) for table in tables(room))
    assert len(UnitRecord(unit=Unit.SYNC, stage=UnitStage.RUNNING, tables=copied).encode()) < BYTES_MAX
    with pytest.raises(SourceConfigError):
        refuse_too_many(tables(room + 100))

"""Preflight: a changefeed has room for its tables in one record of the metadata store."""

import random

import pytest

from agent.errors import SourceConfigError
from capture.member.preflight import refuse_too_many
from reactor.ids import Ts
from reactor.records.changefeed import TableRecord, Unit, UnitRecord, UnitStage
from reactor.records.packing import packed
from reactor.txn import BYTES_MAX


def tables(count: int) -> list[TableRecord]:
    """Numbered tables."""
    return [TableRecord.new(number, "public", f"customer_orders_{number:06}", key=("id",)) for number in range(count)]


def hashed(count: int) -> list[TableRecord]:
    """Names and numbers that have nothing in common."""
    rng = random.Random(1)
    return [
        TableRecord.new(rng.randrange(1 << 62), "public", f"{rng.randrange(1 << 128):032x}", key=("id",))
        for _ in range(count)
    ]


@pytest.mark.parametrize(("make", "least"), [(tables, 30_000), (hashed, 15_000)])
def test_as_many_tables_as_etcd_takes_are_accepted_and_no_more(make, least: int) -> None:  # type: ignore[no-untyped-def]
    refused = r"matches 100,000 tables, and a changefeed has room for about [0-9,]+ with such names"
    with pytest.raises(SourceConfigError, match=refused) as error:
        refuse_too_many(make(100_000))
    room = int(str(error.value).split("about ")[1].split(" ")[0].replace(",", ""))
    assert room > least
    refuse_too_many(make(room * 95 // 100))
    rng = random.Random(2)
    copied = (
        table.with_(start_ts=Ts(ts := 10**12 + rng.randrange(1 << 40)), consistent_ts=ts + rng.randrange(1 << 20))
        for table in make(room)
    )
    record = UnitRecord(unit=Unit.SYNC, stage=UnitStage.RUNNING, tables=tuple(copied))
    assert len(packed(record.encode())) < BYTES_MAX
    with pytest.raises(SourceConfigError):
        refuse_too_many(make(room * 105 // 100))

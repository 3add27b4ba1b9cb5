"""Packing: large records are stored compressed, read by all who know it, and never half."""

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reactor import keys
from reactor.division.packing import MAGIC, PACKED_FROM, packed, unpacked
from reactor.errors import InvalidRecordError, TxnTooLargeError
from reactor.ids import ChangefeedId, Ts
from reactor.patches import group, patch_record
from reactor.records.changefeed import Unit, UnitRecord, UnitStage
from reactor.records.tables.table import TableRecord
from reactor.store.port import KeyValue
from reactor.txn import Plan, Seen, plan

KEY = keys.UnitKey("c", "default", ChangefeedId("feed"), "main")
COUNT = str(keys.DeleteCountKey("c"))


def record(count: int) -> UnitRecord:
    tables = (TableRecord.new(n, "public", f"customer_orders_{n:06}", key=("id",)) for n in range(count))
    return UnitRecord(unit=Unit.SYNC, stage=UnitStage.RUNNING, tables=tuple(tables))


def moved(old: UnitRecord | None) -> UnitRecord:
    """One table is copied again."""
    assert old is not None
    first, *others = old.tables
    return old.with_(tables=(first.with_(start_ts=Ts(first.start_ts + 7)), *others))


def stored(value: bytes) -> dict[str, KeyValue]:
    return {str(KEY): KeyValue(str(KEY), value, 1, 1)}


def planned(value: bytes, *, format: int) -> Plan:
    change = group([patch_record(KEY, UnitRecord, moved)])
    return plan([Seen.of(change, stored(value))], stored(value), delete_count_key=COUNT, format=format)


@given(st.binary(max_size=2_000), st.integers(0, 200))
def test_what_is_packed_is_unpacked(part: bytes, times: int) -> None:
    value = b"{" + part * times
    found = packed(value)
    assert unpacked(found) == value
    assert packed(found) == found
    assert (found == value) == (len(value) < PACKED_FROM)


def test_twenty_thousand_tables_are_one_value_that_all_stores_take() -> None:
    tables = record(20_000)
    value = packed(tables.encode())
    assert len(value) < 400_000 < 2_000_000 < len(tables.encode())
    assert UnitRecord.decode(value, key="k") == tables


@given(st.data())
def test_a_damaged_value_names_its_key(data: st.DataObject) -> None:
    value = packed(record(1_000).encode())
    at = data.draw(st.integers(len(MAGIC), len(value) - 1))
    damaged = data.draw(
        st.sampled_from([value[:at], value[:at] + bytes([value[at] ^ 0x40]) + value[at + 1 :], value + b"x"])
    )
    with pytest.raises(InvalidRecordError, match=r"^the key does not hold a UnitRecord"):
        UnitRecord.decode(damaged, key="the key")


def test_a_value_that_would_fill_the_memory_is_refused() -> None:
    with pytest.raises(InvalidRecordError):
        UnitRecord.decode(MAGIC + zlib.compress(bytes(65 << 20)), key="k")


@pytest.mark.matrix
def test_a_large_record_is_changed_once_all_captures_read_packed_ones() -> None:
    before = record(20_000).encode()
    refused = planned(before, format=8)
    assert [type(one.error) for one in refused.rejected] == [TxnTooLargeError]
    for value in (before, packed(before)):
        taken = planned(value, format=9)
        written = taken.txn.writes[str(KEY)]
        assert written is not None
        assert written.startswith(MAGIC)
        assert UnitRecord.decode(written, key="k") == moved(UnitRecord.decode(before, key="k"))


def test_a_small_record_stays_as_captures_of_before_read_it() -> None:
    before = record(200).encode()
    assert planned(before, format=9).txn == planned(before, format=8).txn


def test_a_record_that_does_not_change_is_not_written() -> None:
    for value in (record(20_000).encode(), packed(record(20_000).encode())):
        same = group([patch_record(KEY, UnitRecord, lambda old: old)])
        found = plan([Seen.of(same, stored(value))], stored(value), delete_count_key=COUNT, format=9)
        assert found.txn.is_empty

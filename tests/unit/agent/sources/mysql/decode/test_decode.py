"""Decoding rows events that are built by hand: what cannot be got from a server at will, and what must be refused."""

import datetime as dt
import struct
import zlib
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.errors import DecodeError
from agent.rows.changes import BEFORE_FULL, BEFORE_KEY, BEFORE_NONE, DELETE, INSERT, TRUNCATE, UPDATE
from agent.rows.schema import Column, ZeroDates
from agent.sources.mysql.decode import decode as module
from agent.sources.mysql.decode import wire
from agent.sources.mysql.decode.decode import decode
from agent.sources.mysql.decode.types import FieldType
from tests.binlog_rows import as_batch
from tests.example_counts import many
from tests.unit.agent.rows_build import ABSENT, INT, NAME, NOTE, NULL, delete, event, insert, int4, table, text, update

_THREE = table(INT, NAME, NOTE)


def _value(column: Column, raw: bytes, zero_dates: ZeroDates = ZeroDates.NULL) -> Any:
    changes = decode(table(replace(column, name="v"), zero_dates=zero_dates), as_batch([insert(raw), insert(NULL)]))
    changes.after.validate(full=True)
    value, nothing = changes.after.column("v").to_pylist()
    assert nothing is None
    return value


def test_images_and_kinds_of_all_operations() -> None:
    changes = decode(
        table(INT, NAME),
        as_batch(
            [
                insert(int4(1), text("a")),
                update([int4(1), text("a")], [int4(2), NULL]),
                delete(int4(2), NULL),
                bytes([wire.TRUNCATED]),
            ]
        ),
    )
    assert changes.op.tolist() == [INSERT, UPDATE, DELETE, TRUNCATE]
    assert changes.before_kind.tolist() == [BEFORE_NONE, BEFORE_FULL, BEFORE_FULL, BEFORE_NONE]
    assert changes.commit_ts.tolist() == [1000, 1001, 1002, 1003]
    assert changes.after.to_pydict() == {"id": [1, 2, None, None], "name": ["a", None, None, None]}
    assert changes.before is not None
    assert changes.before.to_pydict() == {"id": [None, 1, 2, None], "name": [None, "a", None, None]}
    assert changes.unchanged == {}


def test_version_1_and_extra_data_of_version_2() -> None:
    row = [int4(1), text("a")]
    events = [event(wire.WRITE_V1, row), event(wire.WRITE_V2, row, extra=b"\1\2\3\4")]
    changes = decode(table(INT, NAME), as_batch(events))
    assert changes.after.to_pydict() == {"id": [1, 1], "name": ["a", "a"]}
    assert changes.before is None


def test_rows_of_one_event_are_numbered_from_its_seq() -> None:
    rows = event(wire.WRITE_V2, [int4(1)], [int4(2)], [int4(3)])
    batch = as_batch([rows, rows]).set_column(1, "seq", pa.array([1 << 20, 2 << 20], pa.int64()))
    changes = decode(table(INT), batch)
    assert changes.seq.tolist() == [(1 << 20) + i for i in range(3)] + [(2 << 20) + i for i in range(3)]
    assert changes.commit_ts.tolist() == [1000] * 3 + [1001] * 3


def test_what_an_after_image_leaves_out_is_what_it_was_or_unchanged() -> None:
    changes = decode(
        _THREE,
        as_batch(
            [
                # MINIMAL: the key before, what was set after
                update([int4(1), ABSENT, ABSENT], [ABSENT, text("b"), ABSENT]),
                # NOBLOB: everything but the text
                update([int4(2), NULL, ABSENT], [int4(3), NULL, ABSENT]),
                delete(int4(4), ABSENT, ABSENT),
            ]
        ),
    )
    assert changes.before_kind.tolist() == [BEFORE_KEY] * 3
    assert changes.after.to_pydict() == {"id": [1, 3, None], "name": ["b", None, None], "note": [None] * 3}
    assert changes.before is not None
    assert changes.before.to_pydict() == {"id": [1, 2, 4], "name": [None] * 3, "note": [None] * 3}
    assert {name: mask.tolist() for name, mask in changes.unchanged.items()} == {"note": [True, True, False]}


def test_a_value_before_fills_the_gap_after_also_where_it_is_text() -> None:
    changes = decode(_THREE, as_batch([update([int4(1), text("old"), text("t", 2)], [ABSENT, ABSENT, text("u", 2)])]))
    assert changes.after.to_pylist() == [{"id": 1, "name": "old", "note": "u"}]
    assert changes.unchanged == {}
    assert changes.before_kind.tolist() == [BEFORE_FULL]


def test_an_insert_that_leaves_columns_out_is_refused_with_the_cure() -> None:
    with pytest.raises(DecodeError, match=r"shop\.t: an insert leaves out columns; set binlog_row_image=FULL.* 1001"):
        decode(_THREE, as_batch([insert(int4(1), NULL, NULL), insert(int4(2), ABSENT, NULL)]))


def test_rows_over_many_blocks_and_events() -> None:
    rows = [[int4(i), NULL if i % 3 == 0 else text(f"n{i}")] for i in range(10_007)]
    events = [event(wire.WRITE_V2, *rows[start : start + 999]) for start in range(0, len(rows), 999)]
    changes = decode(table(INT, NAME), as_batch(events))
    changes.after.validate(full=True)
    assert len(rows) > 2 * module._BLOCK_ROWS_MAX
    assert changes.after.column("id").to_pylist() == list(range(10_007))
    assert changes.after.column("name").to_pylist() == [None if i % 3 == 0 else f"n{i}" for i in range(10_007)]
    assert changes.after.column("name").null_count == 3336


def test_the_first_null_may_come_in_a_late_block() -> None:
    rows = [[int4(i), text("x")] for i in range(5000)] + [[int4(5000), NULL]]
    changes = decode(table(INT, NAME), as_batch([event(wire.WRITE_V2, *rows)]))
    assert changes.after.column("name").is_null().to_pylist() == [False] * 5000 + [True]


def test_a_table_of_very_many_columns() -> None:
    columns = [replace(INT, name=f"c{i}", is_key=False) for i in range(250)]
    row = [NULL if i % 7 == 0 else int4(i) for i in range(250)]
    changes = decode(table(*columns), as_batch([event(wire.WRITE_V2, *[row] * 300)]))
    assert changes.after.slice(299).to_pylist() == [{f"c{i}": None if i % 7 == 0 else i for i in range(250)}]


def test_a_slice_of_a_batch_and_an_empty_one() -> None:
    batch = as_batch([insert(int4(i)) for i in range(5)])
    assert decode(table(INT), batch.slice(2, 2)).after.to_pydict() == {"id": [2, 3]}
    nothing = decode(table(INT), batch.slice(5))
    assert len(nothing) == 0
    assert nothing.after.to_pydict() == {"id": []}


def _compressed(kind: int, plain: bytes, head: int, length: int | None = None) -> bytes:
    rows = plain[head:]
    size = (len(rows) if length is None else length).to_bytes(2)
    return bytes([kind]) + plain[1:head] + b"\x82" + size + zlib.compress(rows)


def test_compressed_events_of_both_versions() -> None:
    row, other = [int4(1), text("a" * 100)], [int4(1), text("b" * 100)]
    events = [
        _compressed(wire.WRITE_COMPRESSED_V1, event(wire.WRITE_V1, row), 11),
        _compressed(wire.UPDATE_COMPRESSED, event(wire.UPDATE_V2, row, other), 14),
        insert(int4(2), NULL),
        _compressed(wire.DELETE_COMPRESSED, event(wire.DELETE_V2, other), 13),
    ]
    changes = decode(table(INT, NAME), as_batch(events))
    assert changes.op.tolist() == [INSERT, UPDATE, INSERT, DELETE]
    assert changes.after.column("name").to_pylist() == ["a" * 100, "b" * 100, None, None]


def test_a_damaged_compressed_event_is_refused() -> None:
    plain = event(wire.WRITE_V1, [int4(1), text("a" * 100)])
    for damaged in (
        _compressed(wire.WRITE_COMPRESSED_V1, plain, 11, length=7),
        _compressed(wire.WRITE_COMPRESSED_V1, plain, 11)[:-3],
    ):
        with pytest.raises(DecodeError, match=r"shop\.t: .* at commit 1000"):
            decode(table(INT, NAME), as_batch([damaged]))


@pytest.mark.parametrize(
    "whole",
    [
        insert(int4(1), text("name"), text("a note", 2)),
        update([int4(1), NULL, NULL], [int4(1), text("name"), text("a note", 2)]),
        delete(int4(1), NULL, text("a note", 2)),
    ],
)
def test_an_event_cut_short_is_refused_wherever_it_ends(whole: bytes) -> None:
    assert len(decode(_THREE, as_batch([whole]))) == 1
    for end in range(len(whole)):
        # What ends right behind its head is an event without rows.
        head = 14 if whole[0] == wire.UPDATE_V2 else 13
        if end != head:
            with pytest.raises(DecodeError, match="not a row change of its schema"):
                decode(_THREE, as_batch([whole[:end]]))


_WHOLE = update([int4(1), text("x"), NULL], [int4(1), text("name"), text("a note", 2)]) + b"".join(
    [b"\0", int4(2), text("y"), text("z", 2), b"\2", int4(9), text("w", 2)]
)


@settings(max_examples=many(300), deadline=None)
@given(st.lists(st.tuples(st.integers(0, len(_WHOLE) - 1), st.integers(0, 255)), max_size=4), st.integers(0, 30))
def test_damage_is_refused_or_decoded_but_never_crashes(changed: list[tuple[int, int]], kept_off: int) -> None:
    damaged = bytearray(_WHOLE)
    for at, byte in changed:
        damaged[at] = byte
    try:
        changes = decode(_THREE, as_batch([bytes(damaged[: len(damaged) - kept_off])]))
    except DecodeError:
        return
    changes.after.validate(full=True)


def test_an_event_of_another_table_or_kind_is_refused() -> None:
    for wrong in (insert(int4(1)), b"\x13" + bytes(30), b"", b"\x1e"):
        with pytest.raises(DecodeError, match="not a row change of its schema, at commit 1000"):
            decode(_THREE, as_batch([wrong]))


def test_text_that_is_not_utf8_is_refused_with_its_row() -> None:
    good = [insert(int4(i), text("ä")) for i in range(7)]
    with pytest.raises(DecodeError, match=r"column name cannot be read: text that is not UTF-8.* at commit 1007"):
        decode(table(INT, NAME), as_batch([*good, insert(int4(7), text(b"\xff")), *good]))


def test_what_cannot_be_known_is_refused_with_its_cure() -> None:
    enum = Column("e", FieldType.ENUM, 1, "enum()", collation=45)
    with pytest.raises(DecodeError, match=r"column e cannot be read: the members .*; set binlog_row_metadata=FULL"):
        decode(table(enum), as_batch([insert(b"\1")]))
    unknown = replace(NAME, collation=9_999)
    with pytest.raises(DecodeError, match=r"a character set that is not known .*; convert the column to utf8mb4"):
        decode(table(unknown), as_batch([insert(text(b"\xa4\xa2"))]))
    assert decode(table(unknown), as_batch([insert(text("abc"))])).after.to_pydict() == {"name": ["abc"]}
    with pytest.raises(DecodeError, match="column e cannot be read"):
        decode(table(replace(enum, members=("a", "b"))), as_batch([insert(b"\3")]))


def test_a_column_of_an_unknown_type_is_refused_even_without_rows() -> None:
    for events in ([], [insert(int4(1), b"x")]):
        with pytest.raises(DecodeError, match=r"column odd cannot be read: type 20 is not one .*; leave the table out"):
            decode(table(INT, Column("odd", 20, -1)), as_batch(events))


_YEAR_2024_02 = (2024 * 13 + 2) << 22


def _datetime(packed: int, fraction: bytes = b"") -> bytes:
    return (packed + 0x8000000000).to_bytes(5) + fraction


_CALENDAR = {
    "zero date": (Column("v", FieldType.DATE, 0), bytes(3), "0000-00-00"),
    "zero day": (Column("v", FieldType.DATE, 0), (2024 << 9 | 2 << 5).to_bytes(3, "little"), "2024-02-00"),
    "no such day": (Column("v", FieldType.DATE, 0), (2023 << 9 | 2 << 5 | 29).to_bytes(3, "little"), "2023-02-29"),
    "zero datetime": (Column("v", FieldType.DATETIME2, 0), _datetime(0), "0000-00-00 00:00:00"),
    "fraction": (Column("v", FieldType.DATETIME2, 3), _datetime(_YEAR_2024_02, b"\x04\xce"), "2024-02-00 00:00:00.123"),
    "zero timestamp": (Column("v", FieldType.TIMESTAMP2, 6), bytes(7), "0000-00-00 00:00:00.000000"),
    "old datetime": (Column("v", FieldType.DATETIME, 0), struct.pack("<Q", 20240200111213), "2024-02-00 11:12:13"),
    "old timestamp": (Column("v", FieldType.TIMESTAMP, 0), bytes(4), "0000-00-00 00:00:00"),
}


@pytest.mark.parametrize(("column", "raw", "shown"), _CALENDAR.values(), ids=_CALENDAR.keys())
def test_dates_that_no_calendar_has_follow_the_rule(column: Column, raw: bytes, shown: str) -> None:
    assert _value(column, raw) is None
    assert _value(column, raw, ZeroDates.STRING) == shown
    with pytest.raises(DecodeError, match=r"no calendar has; repair it, or set zero-dates below .source. to null"):
        _value(column, raw, ZeroDates.STRICT)


@pytest.mark.parametrize(("column", "raw", "shown"), _CALENDAR.values(), ids=_CALENDAR.keys())
def test_of_a_keys_dates_that_no_calendar_has_only_one_becomes_null(column: Column, raw: bytes, shown: str) -> None:
    """Different keys stay apart."""
    key = replace(column, is_key=True)
    if set(shown) <= set("0-: ."):
        assert _value(key, raw) is None
    else:
        with pytest.raises(DecodeError, match="a date of the key that no calendar has"):
            _value(key, raw)
    assert _value(key, raw, ZeroDates.STRING) == shown


def test_a_date_turned_null_counts_in_a_column_that_had_no_null() -> None:
    rows = [[(2024 << 9 | 1 << 5 | 1).to_bytes(3, "little")], [bytes(3)]] * 5000
    column = decode(table(Column("v", FieldType.DATE, 0)), as_batch([event(wire.WRITE_V2, *rows)])).after.column("v")
    assert column.null_count == 5000
    assert column.to_pylist() == [dt.date(2024, 1, 1), None] * 5000


_STRING_RULE = {
    "date": (Column("v", FieldType.DATE, 0), (2024 << 9 | 2 << 5 | 29).to_bytes(3, "little"), "2024-02-29"),
    "datetime": (
        Column("v", FieldType.DATETIME2, 6),
        _datetime(_YEAR_2024_02 | 29 << 17 | 23 << 12 | 59 << 6 | 58, (7).to_bytes(3)),
        "2024-02-29 23:59:58.000007",
    ),
    "timestamp": (Column("v", FieldType.TIMESTAMP2, 0), (951_782_400).to_bytes(4), "2000-02-29 00:00:00"),
    "timestamp of second 0": (
        Column("v", FieldType.TIMESTAMP2, 6),
        bytes(4) + (1).to_bytes(3),
        "1970-01-01 00:00:00.000001",
    ),
    "timestamp in December": (Column("v", FieldType.TIMESTAMP2, 0), (946_684_799).to_bytes(4), "1999-12-31 23:59:59"),
}


@pytest.mark.parametrize(("column", "raw", "shown"), _STRING_RULE.values(), ids=_STRING_RULE.keys())
def test_under_the_rule_string_dates_are_text_and_else_the_same_moment(column: Column, raw: bytes, shown: str) -> None:
    assert _value(column, raw, ZeroDates.STRING) == shown
    value = _value(column, raw, ZeroDates.STRICT)
    assert str(value).removesuffix("+00:00") == shown


def _decimal_bytes(text_value: str, precision: int, scale: int) -> bytes:
    """As the server stores it, digit group by digit group."""
    sign, (whole, _, fraction) = text_value.startswith("-"), text_value.lstrip("-").partition(".")
    whole = whole.rjust(precision - scale, "0") if precision > scale else ""
    fraction = fraction.ljust(scale, "0")
    head = len(whole) % 9
    groups = [whole[:head], *(whole[i : i + 9] for i in range(head, len(whole), 9))]
    groups += [fraction[i : i + 9] for i in range(0, len(fraction), 9)]
    sizes = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)
    raw = bytearray(b"".join(int(group).to_bytes(sizes[len(group)]) for group in groups if group))
    raw[0] ^= 0x80
    return bytes(byte ^ 0xFF for byte in raw) if sign else bytes(raw)


@pytest.mark.parametrize(
    ("text_value", "precision", "scale"),
    [
        ("0", 1, 0),
        ("-1.50", 12, 2),
        ("9999999999.99", 12, 2),
        ("-999999999999999999", 18, 0),
        ("1234567890123456789", 19, 0),
        ("-0.00000000000000000000000000000000000001", 38, 38),
        ("-" + "9" * 28 + "." + "9" * 10, 38, 10),
        ("-" + "9" * 35 + "." + "1" * 30, 65, 30),
        ("0." + "0" * 29 + "7", 65, 30),
        ("-12." + "0" * 30, 65, 30),
        ("1" * 39, 39, 0),
    ],
)
def test_decimals_are_exact(text_value: str, precision: int, scale: int) -> None:
    column = Column("v", FieldType.DECIMAL, precision << 8 | scale)
    value = _value(column, _decimal_bytes(text_value, precision, scale))
    assert value == (Decimal(text_value) if precision <= 38 else text_value)


def test_a_decimal_group_of_too_many_digits_is_refused() -> None:
    with pytest.raises(DecodeError, match="column v cannot be read"):
        _value(Column("v", FieldType.DECIMAL, 9 << 8), b"\xff\xff\xff\xff")


_STRING, _VARCHAR = FieldType.STRING, FieldType.VARCHAR
_VALUES: dict[str, tuple[Column, bytes, Any]] = {
    "tinyint": (Column("v", FieldType.TINY, 0), b"\xff", -1),
    "tinyint unsigned": (Column("v", FieldType.TINY, 0, is_unsigned=True), b"\xff", 255),
    "smallint unsigned": (Column("v", FieldType.SHORT, 0, is_unsigned=True), b"\xff\xff", 65_535),
    "smallint": (Column("v", FieldType.SHORT, 0), b"\xfe\xff", -2),
    "int": (Column("v", FieldType.LONG, 0), b"\xfe\xff\xff\xff", -2),
    "bigint": (Column("v", FieldType.LONGLONG, 0), b"\xfe" + b"\xff" * 7, -2),
    "mediumint": (Column("v", FieldType.INT24, 0), b"\x00\x00\x80", -8_388_608),
    "mediumint unsigned": (Column("v", FieldType.INT24, 0, is_unsigned=True), b"\xff\xff\xff", 16_777_215),
    "int unsigned": (Column("v", FieldType.LONG, 0, is_unsigned=True), b"\xff" * 4, 2**32 - 1),
    "bigint unsigned": (
        Column("v", FieldType.LONGLONG, 0, is_unsigned=True),
        (2**64 - 2).to_bytes(8, "little"),
        Decimal(2**64 - 2),
    ),
    "year": (Column("v", FieldType.YEAR, 0), b"\x7c", 2024),
    "year zero": (Column("v", FieldType.YEAR, 0), b"\x00", 0),
    "bit(1)": (Column("v", FieldType.BIT, 1), b"\x01", True),
    "bit(63)": (Column("v", FieldType.BIT, 63), b"\x7f" + b"\xff" * 7, 2**63 - 1),
    "bit(64)": (Column("v", FieldType.BIT, 64), b"\xff" * 7 + b"\xfe", Decimal(2**64 - 2)),
    "time": (Column("v", FieldType.TIME2, 0), (0x800000 + (838 << 12 | 59 << 6 | 59)).to_bytes(3), "838:59:59"),
    "time below zero": (Column("v", FieldType.TIME2, 2), ((0x800000 << 8) - 1).to_bytes(4), "-00:00:00.01"),
    "time old": (Column("v", FieldType.TIME, 0), (-8_385_959 & 0xFFFFFF).to_bytes(3, "little"), "-838:59:59"),
    "char of 1020 bytes": (Column("v", _STRING, 1020, collation=45), text("ä" * 200, 2), "ä" * 200),
    "latin1": (Column("v", _VARCHAR, 10, collation=8), text(b"\x80\xe4\x81"), "€ä\x81"),
    "cp850": (Column("v", _VARCHAR, 10, collation=4), text("Ä▒".encode("cp850")), "Ä▒"),
    "swe7": (Column("v", _VARCHAR, 10, collation=10), text(b"}"), "å"),
    "gbk": (Column("v", _VARCHAR, 10, collation=28), text("中文".encode("gbk")), "中文"),
    "sjis": (Column("v", _VARCHAR, 10, collation=13), text(b"\x81\x5f\xb1\x8a\xbf"), "\\ｱ漢"),
    "ujis": (Column("v", _VARCHAR, 10, collation=12), text(b"\xa1\xc0\xb4\xc1"), "\\漢"),
    "big5": (Column("v", _VARCHAR, 10, collation=1), text(b"\xf9\xd6\xa4\x51\xa2\xcc\xa3\xc0"), "碁十\ufffd?"),
    "eucjpms": (Column("v", _VARCHAR, 10, collation=97), text(b"\xad\xa1\xf5\xa1\x8f\xf3\xf3~"), "①\ue000ⅰ~"),
    "ucs2": (Column("v", _VARCHAR, 10, collation=35), text(b"\0a\x4e\x2d"), "a中"),
    "utf16le": (Column("v", _VARCHAR, 10, collation=56), text("a😀".encode("utf-16-le")), "a😀"),
    "utf32": (Column("v", _VARCHAR, 10, collation=60), text("a😀".encode("utf-32-be")), "a😀"),
    "binary": (Column("v", _STRING, 4, collation=63), text(b"a"), b"a\0\0\0"),
    "varbinary": (Column("v", _VARCHAR, 4, collation=63), text(b"a\0"), b"a\0"),
    "blob": (Column("v", FieldType.BLOB, 3, collation=63), text(b"\xff" * 70_000, 3), b"\xff" * 70_000),
    "vector": (Column("v", FieldType.VECTOR, 4), text(b"\0\0\x80?", 4), b"\0\0\x80?"),
    "enum": (Column("v", FieldType.ENUM, 1, members=("a", "b")), b"\2", "b"),
    "enum refused": (Column("v", FieldType.ENUM, 1, members=("a", "b")), b"\0", ""),
    "set": (Column("v", FieldType.SET, 1, members=("a", "b", "c")), b"\5", "a,c"),
    "set empty": (Column("v", FieldType.SET, 1, members=("a", "b", "c")), b"\0", ""),
    "geometry": (Column("v", FieldType.GEOMETRY, 4), text(b"\xe6\x10\0\0\1wkb", 4), b"\1wkb"),
    "uuid": (Column("v", _STRING, 16, "uuid", collation=63), text(b"\x12\x34"), "12340000-0000-0000-0000-000000000000"),
    "inet4": (Column("v", _STRING, 4, "inet4", collation=63), text(b"\x0a"), "10.0.0.0"),
    "inet6": (Column("v", _STRING, 16, "inet6", collation=63), text(b"\x20\x01"), "2001::"),
    "inet6 of inet4": (
        Column("v", _STRING, 16, "inet6", collation=63),
        text(bytes(10) + b"\xff\xff\1\2\3\4"),
        "::ffff:1.2.3.4",
    ),
    "compressed": (
        Column("v", FieldType.BLOB_COMPRESSED, 2, collation=8),
        text(b"\x8a\x01\xf4" + zlib.compress(b"\xe4" * 500)[2:-4], 2),
        "ä" * 500,
    ),
    "not compressed": (Column("v", FieldType.VARCHAR_COMPRESSED, 99, collation=45), text(b"\0short"), "short"),
}


@pytest.mark.parametrize(("column", "raw", "expected"), _VALUES.values(), ids=_VALUES.keys())
def test_values(column: Column, raw: bytes, expected: Any) -> None:
    assert _value(column, raw) == expected


@pytest.mark.parametrize(
    ("collation", "good", "bad"), [(1, b"?\xa4\x51", b"\xa2\xcc"), (12, b"?a", b"?\xa2\xaf"), (3, b"?", b"\xa4")]
)
def test_a_key_without_a_character_is_refused_as_others_would_be_the_same(
    collation: int, good: bytes, bad: bytes
) -> None:
    column = Column("v", _VARCHAR, 10, collation=collation)
    key = replace(column, is_key=True)
    assert _value(key, text(good)) == _value(column, text(good))
    assert _value(column, text(bad)).strip("?\ufffd") == ""
    with pytest.raises(DecodeError, match="a text of the key"):
        _value(key, text(bad))

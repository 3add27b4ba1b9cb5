"""Result sets in bytes: what the kernels find in packets and make of text."""

import datetime as dt
from collections.abc import Sequence
from decimal import Decimal, localcontext
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.kernels.columns import BadValueError, Texts
from agent.sources.mysql.snapshot import kernels_text
from agent.sources.mysql.snapshot.text_columns import build

_PACKET_MAX = 0xFFFFFF


def _lenenc(value: bytes | None) -> bytes:
    if value is None:
        return b"\xfb"
    size = len(value)
    if size < 251:
        return bytes([size]) + value
    if size < 1 << 16:
        return b"\xfc" + size.to_bytes(2, "little") + value
    return (b"\xfd" + size.to_bytes(3, "little") if size < 1 << 24 else b"\xfe" + size.to_bytes(8, "little")) + value


def _packets(payload: bytes) -> bytes:
    pieces = [payload[at : at + _PACKET_MAX] for at in range(0, len(payload) + 1, _PACKET_MAX)]
    return b"".join(len(piece).to_bytes(3, "little") + bytes([i % 256]) + piece for i, piece in enumerate(pieces))


def _locate(data: bytes, columns: int, *, capacity: int = 100, end: int = -1) -> tuple[list[Any], int, int]:
    block = np.frombuffer(bytearray(data), np.uint8)
    starts, lengths = np.zeros((2, columns, capacity), np.int64)
    rows, at, outcome = kernels_text.locate_rows(block, 0, len(data) if end < 0 else end, 0, starts, lengths)
    found = [
        [
            None if starts[c, r] < 0 else block[starts[c, r] : starts[c, r] + lengths[c, r]].tobytes()
            for c in range(columns)
        ]
        for r in range(rows)
    ]
    return found, at, outcome


_VALUES = st.one_of(st.none(), st.binary(max_size=300), st.just(b"\xfe" * 70_000))


@given(st.lists(st.tuples(_VALUES, _VALUES), max_size=8), st.data())
def test_rows_are_found_however_the_bytes_are_cut(rows: list[tuple[bytes | None, ...]], data: st.DataObject) -> None:
    stream = b"".join(_packets(b"".join(map(_lenenc, row))) for row in rows)
    end = data.draw(st.integers(0, len(stream)))
    found, at, outcome = _locate(stream, 2, end=end)
    assert outcome == kernels_text.MORE
    assert found == [list(row) for row in rows[: len(found)]]
    rest, _, _ = _locate(stream[at:], 2)
    assert [*found, *rest] == [list(row) for row in rows]


@pytest.mark.parametrize("size", [_PACKET_MAX - 5, _PACKET_MAX - 4, _PACKET_MAX, 2 * _PACKET_MAX + 9])
def test_a_row_of_several_packets_is_put_together(size: int) -> None:
    large = bytes(range(256)) * (size // 256 + 1)
    rows: list[list[bytes | None]] = [[large[:size], b"after"], [b"next", None]]
    stream = b"".join(_packets(b"".join(map(_lenenc, row))) for row in rows)
    assert _locate(stream, 2)[0] == rows
    assert _locate(stream[: size // 2], 2) == ([], 0, kernels_text.MORE)


def test_the_end_and_an_error_are_no_rows() -> None:
    row = _packets(_lenenc(b"x"))
    for other in (b"\xfe\0\0\x02\0", b"\xff\x15\x04#42000no"):
        assert _locate(row + _packets(other), 1) == ([[b"x"]], len(row), kernels_text.OTHER_PACKET)


def test_full_matrices_end_the_walk() -> None:
    row = _packets(_lenenc(b"x"))
    assert _locate(row * 3, 1, capacity=2) == ([[b"x"]] * 2, 2 * len(row), kernels_text.FULL)


@pytest.mark.parametrize("payload", [b"", b"\x05ab", b"\x01a\x01b", b"\xfc\x01", b"\xfe" + b"\xff" * 12])
def test_what_is_no_row_is_refused(payload: bytes) -> None:
    assert _locate(_packets(payload), 1)[2] == kernels_text.MALFORMED


def _build(arrow: pa.DataType, *texts: str | None, **options: Any) -> list[Any]:
    return list(_array(arrow, texts, **options).to_pylist())


def _array(arrow: pa.DataType, texts: Sequence[str | None], **options: Any) -> pa.Array:
    data = [b"" if text is None else text.encode() for text in texts]
    lengths = np.array([len(value) for value in data], np.int64)
    starts = np.cumsum(lengths, dtype=np.int64) - lengths
    starts[[i for i, text in enumerate(texts) if text is None]] = -1
    block = np.frombuffer(b"".join(data) + b"?", np.uint8)
    array = build(arrow, Texts(kernels_text.TEXT, block, starts, lengths), **options)
    array.validate(full=True)
    return array


@pytest.mark.parametrize("arrow", [pa.int8(), pa.int16(), pa.int32(), pa.int64()])
def test_integers_and_their_bounds(arrow: pa.DataType) -> None:
    bounds = np.iinfo(arrow.to_pandas_dtype())
    low, high = int(bounds.min), int(bounds.max)
    assert _build(arrow, str(low), None, "0", str(high)) == [low, None, 0, high]
    for wrong in (str(high + 1), str(low - 1), "", "-", "1.0", "1e3", "+1", "99999999999999999999"):
        with pytest.raises(BadValueError) as caught:
            _build(arrow, "1", wrong)
        assert caught.value.row == 1


@given(st.integers(1, 38).flatmap(lambda p: st.tuples(st.just(p), st.integers(0, p))), st.data())
def test_decimals_are_exact(bounds: tuple[int, int], data: st.DataObject) -> None:
    precision, scale = bounds
    unscaled = data.draw(st.lists(st.integers(-(10**precision) + 1, 10**precision - 1), min_size=1, max_size=5))
    with localcontext(prec=80):
        texts = [f"{Decimal(number).scaleb(-scale):.{scale}f}" for number in unscaled]
        read = _build(pa.decimal128(precision, scale), *texts, None)
        assert [int(value.scaleb(scale)) for value in read[:-1]] == unscaled
    assert read[-1] is None


@pytest.mark.parametrize("wrong", ["", "-", "1.234", "1000.0", "12345678901234567890.1", "1,0", "0x1"])
def test_decimals_that_do_not_fit_are_refused(wrong: str) -> None:
    with pytest.raises(BadValueError):
        _build(pa.decimal128(5, 2), wrong)


def test_zeros_behind_a_decimals_scale_change_nothing() -> None:
    assert _build(pa.decimal128(5, 2), "1.230000", "NaN", "-Infinity") == [Decimal("1.23"), None, None]


def test_a_short_text_may_stand_for_a_long_number() -> None:
    assert _build(pa.decimal128(38, 30), "12345678", "-1") == [Decimal(12345678), Decimal(-1)]


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_doubles_come_back(value: float) -> None:
    assert _build(pa.float64(), repr(value), None) == [value, None]


def test_flags_floats_and_their_nonsense() -> None:
    assert _build(pa.bool_(), "0", "1", None) == [False, True, None]
    for arrow, wrong in ((pa.bool_(), "2"), (pa.bool_(), ""), (pa.float32(), "x")):
        with pytest.raises(BadValueError):
            _build(arrow, wrong)


@given(st.dates(), st.times(), st.integers(1, 6))
def test_dates_and_moments(date: dt.date, time: dt.time, digits: int) -> None:
    time = time.replace(microsecond=time.microsecond // 10 ** (6 - digits) * 10 ** (6 - digits))
    fraction = f".{time.microsecond:06}"[: digits + 1]
    text = f"{date:%Y}".zfill(4) + f"-{date:%m-%d} {time:%H:%M:%S}"
    assert _build(pa.date32(), text[:10], None) == [date, None]
    moment = dt.datetime.combine(date, time)
    assert _build(pa.timestamp("us"), text + fraction, None) == [moment, None]
    assert _build(pa.timestamp("us"), text) == [moment.replace(microsecond=0)]


@pytest.mark.parametrize("day", ["0000-00-00", "2024-00-01", "2024-01-00", "2024-02-30", "2023-02-29", "1900-02-29"])
def test_days_that_no_calendar_has(day: str) -> None:
    assert _build(pa.date32(), day, "2024-02-29") == [None, dt.date(2024, 2, 29)]
    assert _build(pa.timestamp("us"), f"{day} 00:00:00") == [None]
    assert _build(pa.string(), day) == [day]
    for arrow, text in ((pa.date32(), day), (pa.timestamp("us"), f"{day} 00:00:00.5")):
        with pytest.raises(BadValueError, match="no calendar"):
            _build(arrow, "x" if text == "" else text, is_strict=True)


@pytest.mark.parametrize(
    "wrong", ["", "2024-1-01", "2024-13-01", "2024/01/01", "20240101", "2024-01-01x", "-024-01-01"]
)
def test_what_is_no_date_is_refused(wrong: str) -> None:
    with pytest.raises(BadValueError):
        _build(pa.date32(), wrong)


@pytest.mark.parametrize("wrong", ["24:00:00", "00:60:00", "00:00:60", "0:00:00", "00:00:00.", "00:00:00.1234567", "x"])
def test_what_is_no_time_is_refused(wrong: str) -> None:
    with pytest.raises(BadValueError):
        _build(pa.timestamp("us"), f"2024-01-01 {wrong}")


def test_bytes_and_text() -> None:
    assert _build(pa.string(), "ä", None, "", "😀") == ["ä", None, "", "😀"]
    assert _build(pa.binary(), "srid12", None, skip=4) == [b"12", None]
    with pytest.raises(BadValueError):
        _build(pa.binary(), "12345", "123", skip=4)


def test_text_that_is_not_utf8_is_named_by_its_row() -> None:
    block = np.frombuffer(b"okay\xff", np.uint8)
    values = Texts(kernels_text.TEXT, block, np.array([0, 4], np.int64), np.array([4, 1], np.int64))
    with pytest.raises(BadValueError, match="not UTF-8") as caught:
        build(pa.string(), values)
    assert caught.value.row == 1


@pytest.mark.parametrize(
    ("arrow", "zero", "other"),
    [
        (pa.date32(), b"0000-00-00", b"2024-02-00"),
        (pa.timestamp("us"), b"0000-00-00 00:00:00.000", b"0000-00-00 00:00:01.000"),
    ],
)
def test_of_a_keys_dates_that_no_calendar_has_only_one_becomes_null(
    arrow: pa.DataType, zero: bytes, other: bytes
) -> None:
    def built(*texts: bytes) -> pa.Array:
        block = np.frombuffer(bytearray(b"".join(texts)), np.uint8)
        lengths = np.array([len(text) for text in texts], np.int64)
        return build(arrow, Texts(kernels_text.TEXT, block, np.cumsum(lengths) - lengths, lengths), is_key=True)

    assert built(zero, zero).to_pylist() == [None, None]
    with pytest.raises(BadValueError, match="a date of the key"):
        built(zero, other)

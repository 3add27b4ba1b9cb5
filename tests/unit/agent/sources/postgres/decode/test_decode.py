"""Decoding row events that are built by hand: what cannot be got from a server at will, and what must be refused."""

import struct
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.errors import DecodeError
from agent.rows.changes import BEFORE_FULL, BEFORE_KEY, BEFORE_NONE, DELETE, INSERT, TRUNCATE, UPDATE
from agent.rows.schema import Column, TableSchema
from agent.sources.postgres.decode import types
from agent.sources.postgres.decode.decode import decode
from tests.example_counts import many

#: NULL, unchanged, text form, binary form
NULL, UNCHANGED = b"n", b"u"


def text(value: str) -> bytes:
    return b"t" + struct.pack("!i", len(value.encode())) + value.encode()


def binary(value: bytes) -> bytes:
    return b"b" + struct.pack("!i", len(value)) + value


def int4(value: int) -> bytes:
    return binary(struct.pack("!i", value))


def row(letter: bytes, *values: bytes) -> bytes:
    return letter + struct.pack("!h", len(values)) + b"".join(values)


def insert(*values: bytes) -> bytes:
    return b"I" + struct.pack("!i", 7) + row(b"N", *values)


def update(new: Sequence[bytes], *, key: Sequence[bytes] = (), old: Sequence[bytes] = ()) -> bytes:
    before = row(b"K", *key) if key else row(b"O", *old) if old else b""
    return b"U" + struct.pack("!i", 7) + before + row(b"N", *new)


def delete(letter: bytes, *values: bytes) -> bytes:
    return b"D" + struct.pack("!i", 7) + row(letter, *values)


def table(*type_ids: int, modifier: int = -1) -> TableSchema:
    return TableSchema(7, "public", "t", tuple(Column(f"c{i}", oid, modifier) for i, oid in enumerate(type_ids)))


def batch(*events: bytes) -> pa.RecordBatch:
    count = len(events)
    return pa.record_batch(
        [
            pa.array(range(100, 100 + count), pa.int64()),
            pa.array(range(count), pa.int64()),
            pa.array(events, pa.large_binary()),
        ],
        names=["commit_ts", "seq", "event"],
    )


def values_of(schema: TableSchema, *events: bytes) -> list[object]:
    changes = decode(schema, batch(*events))
    changes.after.validate(full=True)
    return changes.after.column(0).to_pylist()  # type: ignore[no-any-return]


INT4, TEXT, NUMERIC = 23, 25, 1700


def test_images_and_kinds_of_all_operations() -> None:
    schema = table(INT4, TEXT)
    changes = decode(
        schema,
        batch(
            insert(int4(1), text("a")),
            update([int4(1), text("b")]),
            update([int4(2), text("b")], key=[int4(1), NULL]),
            update([int4(3), text("c")], old=[int4(2), text("b")]),
            delete(b"K", int4(3), NULL),
            delete(b"O", int4(3), text("c")),
            b"T" + struct.pack("!ibi", 1, 0, 7),
        ),
    )
    assert changes.op.tolist() == [INSERT, UPDATE, UPDATE, UPDATE, DELETE, DELETE, TRUNCATE]
    assert changes.before_kind.tolist() == [
        BEFORE_NONE, BEFORE_NONE, BEFORE_KEY, BEFORE_FULL, BEFORE_KEY, BEFORE_FULL, BEFORE_NONE
    ]  # fmt: skip
    assert changes.commit_ts.tolist() == list(range(100, 107))
    assert changes.after.to_pydict() == {
        "c0": [1, 1, 2, 3, None, None, None],
        "c1": ["a", "b", "b", "c", None, None, None],
    }
    assert changes.before is not None
    assert changes.before.to_pydict() == {
        "c0": [None, None, 1, 2, 3, 3, None],
        "c1": [None, None, None, "b", None, "c", None],
    }


def test_there_is_no_before_image_where_no_row_has_one() -> None:
    assert decode(table(INT4), batch(insert(int4(1)))).before is None


def test_an_empty_batch_and_a_slice_of_a_batch() -> None:
    schema = table(INT4)
    assert len(decode(schema, batch())) == 0
    part = batch(*(insert(int4(i)) for i in range(10))).slice(3, 4)
    changes = decode(schema, part)
    assert changes.after.column(0).to_pylist() == [3, 4, 5, 6]
    assert changes.seq.tolist() == [3, 4, 5, 6]


def test_an_unchanged_value_is_neither_null_nor_known() -> None:
    changes = decode(table(INT4, TEXT), batch(insert(int4(1), NULL), update([int4(1), UNCHANGED])))
    assert {name: flags.tolist() for name, flags in changes.unchanged.items()} == {"c1": [False, True]}
    assert changes.after.column("c1").to_pylist() == [None, None]


@pytest.mark.parametrize("form", [text("large"), binary(b"large")])
def test_an_unchanged_value_is_taken_from_the_old_row(form: bytes) -> None:
    events = [update([int4(1), UNCHANGED], old=[int4(1), form]), update([int4(2), UNCHANGED], key=[int4(1), NULL])]
    changes = decode(table(INT4, TEXT), batch(*events))
    assert changes.after.column("c1").to_pylist() == ["large", None]
    assert changes.unchanged["c1"].tolist() == [False, True]


def test_text_and_binary_values_may_stand_in_one_batch() -> None:
    schema = table(INT4)
    assert values_of(schema, insert(int4(-5)), insert(text("7")), insert(NULL), insert(int4(9))) == [-5, 7, None, 9]


@pytest.mark.parametrize("rows", [0, 1, 7, 8, 9, 63, 64, 65])
def test_validity_at_the_edges_of_its_bytes(rows: int) -> None:
    expected = [None if i % 3 == 0 else i for i in range(rows)]
    assert values_of(table(INT4), *(insert(NULL if i is None else int4(i)) for i in expected)) == expected


@pytest.mark.parametrize(
    ("type_id", "value"),
    [
        (16, b"tt"), (21, b"\0"), (INT4, b"\0\0\0"), (20, b""), (700, b"\0"), (701, b"\0" * 9), (1082, b"\0"),
        (1083, struct.pack("!q", -1)), (1083, struct.pack("!q", 86_400_000_001)), (1114, b"\0"), (1184, b"\0"),
        (2950, b"\0" * 15), (3802, b""), (3802, b"\2{}"), (NUMERIC, b"\0\1"),
        (NUMERIC, struct.pack("!hhHh", 1, 0, 0, 0)),
        (NUMERIC, struct.pack("!hhHh", 0, 0, 0x1234, 0)), (TEXT, b"\xff\xfe"), (600, b"\0" * 16),
    ],
)  # fmt: skip
def test_binary_values_that_are_not_of_their_type_are_refused(type_id: int, value: bytes) -> None:
    with pytest.raises(DecodeError, match=r"public\.t: column c0 .* at commit 101"):
        decode(table(type_id), batch(insert(NULL), insert(binary(value))))


@pytest.mark.parametrize(
    ("type_id", "value"),
    [
        (16, "yes"), (21, "32768"), (21, "-32769"), (INT4, "2147483648"), (INT4, ""), (INT4, "-"), (INT4, "1x"),
        (20, "9223372036854775808"), (20, "99999999999999999999"), (700, "one"), (701, ""), (1082, "2024-13-01"),
        (1082, "2024-01-32"), (1082, "2024-01"), (1082, "2024-01-01 "), (1083, "12:00"), (1083, "25:00:00"),
        (1083, "12:00:00.1234567"), (1114, "2024-01-01"), (1114, "2024-01-01T00:00:00"),
        (1184, "2024-01-01 00:00:00+x"),
        (17, "deadbeef"), (17, "\\xabc"), (17, "\\xzz"),
    ],
)  # fmt: skip
def test_texts_that_are_not_of_their_type_are_refused(type_id: int, value: str) -> None:
    with pytest.raises(DecodeError, match=r"public\.t: column c0 .* at commit 101") as caught:
        decode(table(type_id), batch(insert(NULL), insert(text(value)), insert(NULL)))
    assert not value or value not in str(caught.value)


def numeric(sign: int, weight: int, scale: int, *digits: int) -> bytes:
    return binary(struct.pack(f"!HhHh{len(digits)}h", len(digits), weight, sign, scale, *digits))


def _decimal_table(precision: int, scale: int) -> TableSchema:
    return table(NUMERIC, modifier=(precision << 16 | scale & 0x7FF) + 4)


@pytest.mark.parametrize(
    ("precision", "scale", "value"),
    [
        (3, 1, numeric(0, 0, 0, 100)), (12, 2, numeric(0, 0, 3, 1, 1230)), (19, 0, numeric(0, 4, 0, 1000)),
        (38, 0, numeric(0, 9, 0, 100)), (38, 2, numeric(0, 8, 0, *[9999] * 9, 9999)), (38, 10, numeric(0, 50, 0, 1)),
        (5, 2, numeric(0, -2, 8, 1)), (12, 2, numeric(0, 0, 0, 10_000)), (12, 2, numeric(0, 0, 0, -1)),
    ],
)  # fmt: skip
def test_numbers_that_their_decimal_does_not_hold_exactly_are_refused(precision: int, scale: int, value: bytes) -> None:
    with pytest.raises(DecodeError, match="column c0"):
        decode(_decimal_table(precision, scale), batch(insert(value)))


def test_the_largest_number_has_more_digits_than_a_signed_count_holds() -> None:
    largest = decode(table(NUMERIC), batch(insert(numeric(0, 2**15 - 1, 0, *[9] * 2**15)))).after["c0"].to_pylist()
    assert largest == [("0009" * 2**15).lstrip("0")]


@pytest.mark.parametrize("value", ["1000", "0.01", "99999", "1.x", "1.2.3", "-"])
def test_number_texts_that_their_decimal_does_not_hold_exactly_are_refused(value: str) -> None:
    with pytest.raises(DecodeError, match="column c0"):
        decode(_decimal_table(3, 1), batch(insert(text(value))))


@pytest.mark.parametrize(
    "event",
    [
        b"", b"I", b"X" + b"\0" * 20, insert(int4(1))[:-1], insert(int4(1)) + b"\0", insert(int4(1), int4(2)), insert(),
        b"D" + struct.pack("!i", 7) + row(b"N", int4(1)), b"U" + struct.pack("!i", 7) + b"K", insert(b"z"),
        insert(b"t" + struct.pack("!i", -1)), insert(b"b" + struct.pack("!i", 2**31 - 1)),
    ],
)  # fmt: skip
def test_events_that_are_none_are_refused(event: bytes) -> None:
    with pytest.raises(DecodeError, match=r"public\.t: an event is not .* at commit 101"):
        decode(table(INT4), batch(insert(int4(1)), event))


_SCHEMA = TableSchema(7, "public", "t", tuple(Column(f"c{oid}", oid, -1) for oid in sorted(types.KNOWN_OIDS)))


@settings(max_examples=many(300), deadline=None)
@given(
    values=st.lists(
        st.tuples(st.sampled_from([b"t", b"b"]), st.binary(max_size=24)).map(
            lambda pair: pair[0] + struct.pack("!i", len(pair[1])) + pair[1]
        )
        | st.just(NULL),
        min_size=len(_SCHEMA.columns),
        max_size=len(_SCHEMA.columns),
    ),
    damage=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=3),
)
def test_any_bytes_are_decoded_or_refused_but_never_read_past(
    values: list[bytes], damage: list[tuple[int, int]]
) -> None:
    event = bytearray(update(values, old=values))
    for at, byte in damage:
        event[at % len(event)] = byte
    try:
        changes = decode(_SCHEMA, batch(bytes(event)))
    except DecodeError:
        return
    assert len(changes.after) == 1


def test_values_that_arrow_has_no_place_for_become_the_nearest() -> None:
    far = np.iinfo(np.int64).max
    assert values_of(table(1114), *(insert(binary(struct.pack("!q", far - back))) for back in (0, 1))) == values_of(
        table(1114), insert(text("infinity")), insert(text("294276-12-31 23:59:59.999999"))
    )
    days = decode(table(1082), batch(insert(text("4714-11-24 BC")), insert(binary(struct.pack("!i", -2451545)))))
    assert days.after.column(0).cast(pa.int32()).to_pylist() == [-2451545 + 10957] * 2

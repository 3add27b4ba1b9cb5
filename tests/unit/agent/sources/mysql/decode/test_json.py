"""MySQL's binary JSON and partial updates of it: documents built by hand, and python-mysql-replication's reading."""

import base64
import contextlib
import json
import struct
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.errors import DecodeError
from agent.kernels.columns import BadValueError
from agent.rows.changes import UPDATE, Changes
from agent.rows.schema import Column
from agent.sources.mysql.decode import conversions, wire
from agent.sources.mysql.decode.decode import decode
from agent.sources.mysql.decode.json import binary, kernels, numbers
from agent.sources.mysql.decode.types import FieldType
from tests.binlog_rows import as_batch
from tests.example_counts import many
from tests.unit.agent.rows_build import ABSENT, INT, NULL, event, image, int4, table, text

_Encoded = tuple[int, bytes]


def _varied_length(length: int) -> bytes:
    out = b""
    while length > 0x7F:
        out += bytes([length & 0x7F | 0x80])
        length >>= 7
    return out + bytes([length])


def _encode(value: Any, *, is_large: bool = False) -> _Encoded:
    """Type and bytes, as MySQL writes them."""
    match value:
        case None | bool():
            return 4, bytes([0 if value is None else 1 if value else 2])
        case int():
            return _encode_int(value)
        case float():
            return 11, struct.pack("<d", value)
        case str():
            return 12, _varied_length(len(value.encode())) + value.encode()
        case bytes():
            return 15, value
        case list():
            return 2 + is_large, _container([], value, is_large=is_large)
        case _:
            members = sorted(value.items(), key=lambda member: (len(member[0].encode()), member[0].encode()))
            keys, values = [key.encode() for key, _ in members], [item for _, item in members]
            return 0 + is_large, _container(keys, values, is_large=is_large)


def _encode_int(value: int) -> _Encoded:
    for kind, layout in ((5, "<h"), (6, "<H"), (7, "<i"), (8, "<I"), (9, "<q"), (10, "<Q")):
        try:
            return kind, struct.pack(layout, value)
        except struct.error:
            continue
    raise ValueError(value)


def _container(keys: list[bytes], values: list[Any], *, is_large: bool) -> bytes:
    size = 4 if is_large else 2
    start = 2 * size + len(keys) * (size + 2) + len(values) * (1 + size)
    entries, tail = b"", b""
    for key in keys:
        entries += (start + len(tail)).to_bytes(size, "little") + len(key).to_bytes(2, "little")
        tail += key
    for value in values:
        kind, data = _encode(value, is_large=is_large)
        if kind == 4 or (kind in (5, 6, 7, 8) and len(data) <= size):
            entries += bytes([kind]) + data.ljust(size, b"\0")
        else:
            entries += bytes([kind]) + (start + len(tail)).to_bytes(size, "little")
            tail += data
    total = 2 * size + len(entries) + len(tail)
    return len(values).to_bytes(size, "little") + total.to_bytes(size, "little") + entries + tail


def _document(value: Any, *, is_large: bool = False) -> bytes:
    kind, data = _encode(value, is_large=is_large)
    return bytes([kind]) + data


_SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=200)
)
_DOCUMENTS = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text('abcä" \\', max_size=3), inner, max_size=4),
    max_leaves=12,
)


@settings(deadline=None)
@given(_DOCUMENTS, st.booleans())
def test_documents_of_all_shapes_come_out_as_they_went_in(value: Any, is_large: bool) -> None:
    shown = binary.to_text(_document(value, is_large=is_large))
    assert json.loads(shown) == value
    assert isinstance(value, float) == (isinstance(value, float) and ("." in shown or "e" in shown))


@settings(deadline=None)
@given(st.binary(max_size=60) | _DOCUMENTS.map(_document), st.lists(st.tuples(st.integers(0, 50), st.integers(0, 255))))
def test_damage_is_refused_or_read_but_nothing_else(document: bytes, changed: list[tuple[int, int]]) -> None:
    damaged = bytearray(document)
    for at, byte in changed:
        if at < len(damaged):
            damaged[at] = byte
    try:
        binary.to_text(bytes(damaged))
    except ValueError:
        return


def test_the_text_is_mysqls() -> None:
    value: dict[str, Any] = {"bb": [1, 2.0, 'x\n\x01"é'], "a": None, "c": {}}
    assert binary.to_text(_document(value)) == '{"a": null, "c": {}, "bb": [1, 2.0, "x\\n\\u0001\\"é"]}'
    assert binary.to_text(b"") == "null"


#: as MySQL 8 prints them inside JSON
_DOUBLES = {
    0.0: "0.0",
    1.0: "1.0",
    -1.5: "-1.5",
    0.1: "0.1",
    1e14: "100000000000000.0",
    1e15: "1e15",
    123456789012345.0: "123456789012345.0",
    1234567890123456.0: "1.234567890123456e15",
    1234567890123456.8: "1234567890123456.8",
    1.2345678901234568e17: "1.2345678901234568e17",
    1e-15: "0.000000000000001",
    1e-16: "1e-16",
    1.5e300: "1.5e300",
    5e-324: "5e-324",
}


@pytest.mark.parametrize(("value", "shown"), _DOUBLES.items())
def test_doubles(value: float, shown: str) -> None:
    assert numbers.double_text(value) == shown


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_doubles_read_back_as_they_were(value: float) -> None:
    assert repr(float(numbers.double_text(value))) == repr(value)


def _opaque(kind: int, data: bytes) -> bytes:
    return bytes([15, kind]) + _varied_length(len(data)) + data


def _packed(year: int, month: int, day: int, clock: int = 0, micros: int = 0) -> bytes:
    return struct.pack("<q", (((year * 13 + month) << 22 | day << 17 | clock) << 24) + micros)


_OPAQUE = {
    "decimal": (_opaque(246, b"\x05\x02\x80\x7b\x2d"), "123.45"),
    "decimal below one": (_opaque(246, b"\x05\x02\x7f\xff\xfa"), "-0.05"),
    "decimal whole": (_opaque(246, b"\x0a\x00\x81\x00\x00\x00\x07"), "1000000007"),
    "date": (_opaque(10, _packed(2015, 1, 15)), '"2015-01-15"'),
    "datetime": (_opaque(12, _packed(2015, 1, 15, 23 << 12 | 24 << 6 | 25, 12)), '"2015-01-15 23:24:25.000012"'),
    "timestamp": (_opaque(7, _packed(2015, 1, 15, 23 << 12)), '"2015-01-15 23:00:00.000000"'),
    "time": (_opaque(11, struct.pack("<q", -((100 << 12 | 1 << 6 | 2) << 24))), '"-100:01:02.000000"'),
    "blob": (_opaque(252, b"\1\2\3"), '"base64:type252:' + base64.b64encode(b"\1\2\3").decode() + '"'),
}


@pytest.mark.parametrize(("document", "shown"), _OPAQUE.values(), ids=_OPAQUE.keys())
def test_values_of_sql_types(document: bytes, shown: str) -> None:
    assert binary.to_text(document) == shown


@pytest.mark.matrix
def test_a_large_document_costs_its_size() -> None:
    value = [{"name": "x" * 20, "n": i} for i in range(20_000)]
    assert json.loads(binary.to_text(_document(value, is_large=True))) == value


def _converted(*documents: bytes | None) -> list[str | None]:
    """By the kernel, where that does it."""
    texts = conversions.json(pa.array(documents, pa.binary()))
    texts.validate(full=True)
    return texts.to_pylist()  # type: ignore[no-any-return]


@settings(deadline=None)
@given(st.lists(st.none() | _DOCUMENTS | st.decimals(-(10**6), 10**6, places=3).map(float), max_size=5), st.booleans())
def test_the_kernel_writes_what_python_writes(values: list[Any], is_large: bool) -> None:
    documents = [None if value is None else _document([value], is_large=is_large) for value in values]
    assert _converted(*documents) == [None if one is None else binary.to_text(one) for one in documents]


@pytest.mark.parametrize("value", [*_DOUBLES, 2.675, -0.001, 1e9, 999999999999999.0, 0.1 + 0.2, 1 / 3, 123.456789012])
def test_the_kernels_doubles_are_pythons(value: float) -> None:
    document = _document({"d": value, "e": -value})
    assert _converted(document) == [binary.to_text(document)]


def test_the_kernel_does_the_common_documents_by_itself() -> None:
    offsets, out, is_left = np.zeros(3, np.int32), np.zeros(4000, np.uint8), np.zeros(2, np.bool_)
    common = _document({"a": [1, -2, 2**40, 2**64 - 1, True, None, 'é"\n\x02'], "b": {"price": 12.5, "n": -0.07}})
    rare = _document([1 / 3])
    ends = np.cumsum([0, len(common), len(rare)]).astype(np.int32)
    size = kernels.write_documents(np.frombuffer(common + rare, np.uint8), ends, offsets, out, is_left)
    assert is_left.tolist() == [False, True]
    assert out[:size].tobytes().decode() == binary.to_text(common)


@settings(deadline=None, max_examples=many(300))
@given(st.binary(max_size=60) | _DOCUMENTS.map(_document), st.lists(st.tuples(st.integers(0, 50), st.integers(0, 255))))
def test_damage_is_refused_by_the_kernel_too(document: bytes, changed: list[tuple[int, int]]) -> None:
    damaged = bytearray(document)
    for at, byte in changed:
        if at < len(damaged):
            damaged[at] = byte
    with contextlib.suppress(BadValueError):
        _converted(b"", bytes(damaged), None)


_DOC = Column("doc", FieldType.JSON, 4, "json")
_OTHER = replace(_DOC, name="other")
_TABLE = table(INT, _DOC, _OTHER)
_REPLACE, _INSERT, _REMOVE = 0, 1, 2


def _change(operation: int, path: str, value: Any = None) -> bytes:
    written = b"" if operation == _REMOVE else text(_document(value))
    return bytes([operation]) + text(path) + written


def _partial_event(before: list[Any], after: list[Any], changed: int, *, options: int = 1) -> bytes:
    """``changed``: a bit for each JSON column that holds changes."""
    whole = event(wire.UPDATE_V2, before, after)
    head = len(whole) - len(image(*before)) - len(image(*after))
    partial = bytes([options]) + (bytes([changed]) if options else b"")
    return bytes([wire.PARTIAL_UPDATE]) + whole[1:head] + image(*before) + partial + image(*after)


def _doc(value: Any) -> bytes:
    return text(_document(value), 4)


def _decoded(*events: bytes) -> Changes:
    changes = decode(_TABLE, as_batch(list(events)))
    assert set(changes.op.tolist()) == {UPDATE}
    return changes


_BEFORE = {"a": 1, "b": [1, 2, 3], "long name": {"x y": "z"}}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ([_change(_REPLACE, "$.a", "new")], {**_BEFORE, "a": "new"}),
        ([_change(_REPLACE, "$.b[1]", [])], {**_BEFORE, "b": [1, [], 3]}),
        ([_change(_INSERT, "$.b[3]", 4), _change(_REMOVE, "$.b[0]")], {**_BEFORE, "b": [2, 3, 4]}),
        ([_change(_INSERT, "$.c", None)], {**_BEFORE, "c": None}),
        ([_change(_REMOVE, '$."long name"."x y"')], {**_BEFORE, "long name": {}}),
        ([_change(_INSERT, '$."long name"."q\\"q"', 1)], {**_BEFORE, "long name": {"x y": "z", 'q"q': 1}}),
        ([_change(_REPLACE, "$", [1])], [1]),
    ],
)
def test_a_partial_update_gives_the_whole_document(changes: list[bytes], expected: Any) -> None:
    before = [int4(1), _doc(_BEFORE), _doc("same")]
    after = [int4(1), text(b"".join(changes), 4), _doc([7])]
    decoded = _decoded(_partial_event(before, after, 0b01))
    assert json.loads(decoded.after.column("doc")[0].as_py()) == expected
    assert decoded.after.column("other").to_pylist() == ["[7]"]
    assert decoded.before is not None
    assert json.loads(decoded.before.column("doc")[0].as_py()) == _BEFORE


def test_a_member_that_is_put_in_is_where_mysql_sorts_it() -> None:
    before = [int4(1), _doc({"a": 1, "bbb": 2}), NULL]
    after = [int4(1), text(_change(_INSERT, "$.cc", 3), 4), NULL]
    assert _decoded(_partial_event(before, after, 1)).after.column("doc").to_pylist() == ['{"a": 1, "cc": 3, "bbb": 2}']


def test_the_bits_count_json_columns_that_the_image_lacks() -> None:
    before = [int4(1), _doc([1]), _doc([2])]
    after = [ABSENT, ABSENT, text(_change(_REPLACE, "$[0]", 3), 4)]
    decoded = _decoded(_partial_event(before, after, 0b10))
    assert decoded.after.to_pylist() == [{"id": 1, "doc": "[1]", "other": "[3]"}]


def test_an_event_of_the_partial_kind_without_changes() -> None:
    before, after = [int4(1), _doc([1]), NULL], [int4(2), _doc([2]), NULL]
    decoded = _decoded(_partial_event(before, after, 0, options=0))
    assert decoded.after.to_pylist() == [{"id": 2, "doc": "[2]", "other": None}]


def test_without_the_document_before_it_is_refused_with_the_cure() -> None:
    changed = text(_change(_REMOVE, "$.a"), 4)
    with pytest.raises(DecodeError, match=r"shop\.t: .* not in the log; set binlog_row_value_options='' .* 1000$"):
        _decoded(_partial_event([int4(1), ABSENT, ABSENT], [ABSENT, changed, ABSENT], 1))


@pytest.mark.parametrize("path", ["$.nothing", "$.b[9]", "$.a.b", "$x", "$.b.c"])
def test_changes_that_do_not_fit_are_refused(path: str) -> None:
    changed = text(_change(_REPLACE, path, 1), 4)
    with pytest.raises(DecodeError, match=r"shop\.t: .* at commit 1000"):
        _decoded(_partial_event([int4(1), _doc(_BEFORE), NULL], [int4(1), changed, NULL], 1))

"""Binary JSON: parses MySQL's binary documents into a tree that can be modified and formatted.

Objects become dicts in their stored order (MySQL sorts keys by length, then bytes), arrays become lists, and every
scalar becomes the text that MySQL prints for it (``Scalar``). Offsets are relative to the start of the enclosing object
or array, and nested containers are not copied, so the cost is linear in the document's size.
"""

import base64
import struct
from collections.abc import Callable
from typing import Final, TypeAlias

from agent.sources.mysql.decode.json import numbers

_SMALL_OBJECT, _LARGE_OBJECT, _SMALL_ARRAY, _LARGE_ARRAY, _LITERAL = 0, 1, 2, 3, 4
_INT16, _UINT16, _INT32, _UINT32, _INT64, _UINT64, _DOUBLE, _STRING, _OPAQUE = 5, 6, 7, 8, 9, 10, 11, 12, 15
#: Weir's own type: the rest is JSON text (of a partial update that has been applied)
_MARK: Final = b"\xff"

# field types of opaque values
_DECIMAL = 246
_DATES: Final = frozenset({10, 12, 7})
_TIME = 11

_LITERALS: Final = ("null", "true", "false")
_ESCAPES: Final = {
    **{number: f"\\u{number:04x}" for number in range(0x20)},
    **{ord(character): f"\\{name}" for character, name in zip('\b\f\n\r\t"\\', 'bfnrt"\\', strict=True)},
}


class Scalar(str):
    """The JSON text of a scalar."""

    __slots__ = ()


class _Document(bytes):
    """A document's bytes. The total size of all parsed values is limited to the document's size: otherwise offsets of a
    damaged document that lead to the same place again could take forever."""

    left: int

    def spend(self, count: int) -> None:
        self.left -= count
        if self.left < 0:
            raise ValueError("its offsets overlap")


Node: TypeAlias = dict[str, "Node"] | list["Node"] | Scalar


def quoted(text: str) -> Scalar:
    return Scalar('"' + text.translate(_ESCAPES) + '"')


def to_text(document: bytes) -> str:
    """Return the JSON text of a document.

    :raises ValueError: it is malformed.
    """
    return document[1:].decode() if document[:1] == _MARK else render(parse(document))


def parse(document: bytes) -> Node:
    """Parse a document.

    :raises ValueError: it is malformed.
    """
    # an empty value is the literal null
    if not document:
        return Scalar("null")
    data = _Document(document)
    data.left = len(data)
    try:
        return _value(data, data[0], 1)
    except (struct.error, IndexError, RecursionError) as error:
        raise ValueError(f"damaged: {error}") from None


def marked_text(node: Node) -> bytes:
    """Return a value for a row's JSON column that ``to_text`` returns unchanged."""
    return _MARK + render(node).encode()


def render(node: Node) -> str:
    """Format a tree like MySQL."""
    if isinstance(node, Scalar):
        return node
    if isinstance(node, dict):
        return "{" + ", ".join(f"{quoted(key)}: {render(value)}" for key, value in node.items()) + "}"
    return "[" + ", ".join(map(render, node)) + "]"


def _value(data: _Document, kind: int, at: int) -> Node:
    match kind:
        case 0 | 1 | 2 | 3:
            return _container(data, kind, at)
        case 4:
            return Scalar(_LITERALS[data[at]])
        case 12:
            length, at = _variable_length(data, at)
            return quoted(_slice(data, at, length).decode())
        case 15:
            return _opaque(data, at)
        case _ if read := _NUMBERS.get(kind):
            return read(data, at)
    raise ValueError(f"JSON type {kind}")


def _number(layout: str) -> Callable[[_Document, int], Scalar]:
    unpack = struct.Struct(layout).unpack_from
    return lambda data, at: Scalar(unpack(data, at)[0])


def _double(data: _Document, at: int) -> Scalar:
    return Scalar(numbers.double_text(struct.unpack_from("<d", data, at)[0]))


_NUMBERS: Final = {
    _INT16: _number("<h"),
    _UINT16: _number("<H"),
    _INT32: _number("<i"),
    _UINT32: _number("<I"),
    _INT64: _number("<q"),
    _UINT64: _number("<Q"),
    _DOUBLE: _double,
}
#: types stored in an entry itself instead of at an offset: in small containers, and in large ones
_INLINED: Final = (frozenset({_LITERAL, _INT16, _UINT16}), frozenset({_LITERAL, _INT16, _UINT16, _INT32, _UINT32}))


def _container(data: _Document, kind: int, start: int) -> Node:
    is_large, is_object = kind in (_LARGE_OBJECT, _LARGE_ARRAY), kind in (_SMALL_OBJECT, _LARGE_OBJECT)
    offset = struct.Struct("<I" if is_large else "<H")
    count, size = offset.unpack_from(data, start)[0], offset.unpack_from(data, start + offset.size)[0]
    if start + size > len(data):
        raise ValueError("it ends too early")
    data.spend(2 * offset.size + count * (1 + offset.size + (offset.size + 2 if is_object else 0)))
    keys_at = start + 2 * offset.size
    values_at = keys_at + count * (offset.size + 2) if is_object else keys_at
    values = [_entry(data, start, values_at + i * (1 + offset.size), offset, _INLINED[is_large]) for i in range(count)]
    if not is_object:
        return values
    keys = (_key(data, start, keys_at + i * (offset.size + 2), offset) for i in range(count))
    return dict(zip(keys, values, strict=True))


def _key(data: _Document, start: int, at: int, offset: struct.Struct) -> str:
    length = int.from_bytes(data[at + offset.size : at + offset.size + 2], "little")
    return _slice(data, start + offset.unpack_from(data, at)[0], length).decode()


def _entry(data: _Document, start: int, at: int, offset: struct.Struct, inlined: frozenset[int]) -> Node:
    kind = data[at]
    if kind in inlined:
        return _value(data, kind, at + 1)
    target = offset.unpack_from(data, at + 1)[0]
    # a container is stored after its entries: this prevents a damaged one from containing itself
    if start + target <= at:
        raise ValueError("an offset points backwards")
    return _value(data, kind, start + target)


def _slice(data: _Document, at: int, length: int) -> bytes:
    if at + length > len(data):
        raise ValueError("it ends too early")
    data.spend(length)
    return data[at : at + length]


def _variable_length(data: bytes, at: int) -> tuple[int, int]:
    """Return a length in seven bits per byte, lowest first, and the offset after it."""
    length = 0
    for i in range(5):
        length |= (data[at + i] & 0x7F) << 7 * i
        if data[at + i] < 0x80:
            return length, at + i + 1
    raise ValueError("a length without end")


def _opaque(data: _Document, at: int) -> Scalar:
    """Format a value of an SQL type that JSON lacks."""
    kind = data[at]
    length, at = _variable_length(data, at + 1)
    value = _slice(data, at, length)
    if kind == _DECIMAL:
        return Scalar(numbers.decimal_text(value))
    if kind in _DATES:
        return Scalar(f'"{numbers.datetime_text(value, is_date=kind == 10)}"')
    if kind == _TIME:
        return Scalar(f'"{numbers.time_text(value)}"')
    return Scalar(f'"base64:type{kind}:{base64.b64encode(value).decode()}"')

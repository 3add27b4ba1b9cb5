"""Partial JSON: completes updates that only log their changes inside of documents (``binlog_row_value_options``).

Each after image of such an event has a bit for every JSON column: set if the column has a list of changes instead of a
document. ``whole_update`` computes the documents and returns an ordinary update event.

A change is an operation, a path and, except for removals, a value in binary form.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

from agent.errors import RESYNC
from agent.rows.schema import TableSchema
from agent.sources.mysql.decode import types, wire
from agent.sources.mysql.decode.json import binary
from agent.sources.mysql.decode.json.binary import Node
from agent.sources.mysql.decode.row_parts import bit, bitmaps_at, length_at, value_end
from agent.sources.mysql.decode.types import FieldType

_REPLACE, _INSERT, _REMOVE = 0, 1, 2
_WORDS: Final = ("replace", "insert", "remove")
#: the value option for columns with lists of changes
_HAS_CHANGES = 1
_NO_DOCUMENT: Final = (
    "a partial JSON update whose document before is not in the log; "
    f"set binlog_row_value_options='' or binlog_row_image=FULL on the server; {RESYNC}"
)
_STEP: Final = re.compile(r'\[(\d+)\]|\."((?:[^"\\]|\\.)*)"|\.([^.\["]+)', re.DOTALL)


#: computes the new document from the old one, its changes, and the number of its length bytes
_Change = Callable[[bytes | None, bytes, int], bytes]


@dataclass(frozen=True, slots=True)
class _Layout:
    """``widths`` of all columns, and which are JSON."""

    widths: tuple[int, ...]
    is_json: tuple[bool, ...]

    @classmethod
    def of(cls, schema: TableSchema) -> "_Layout":
        widths = tuple(types.wire_width(column) for column in schema.columns)
        return cls(widths, tuple(column.type_id == FieldType.JSON for column in schema.columns))


def whole_update(schema: TableSchema, event: bytes, *, lists_changes: bool = False) -> bytes:
    """Return an ordinary update. ``lists_changes``: if the log lacks a document, use the list of its changes instead.

    :raises ValueError: the event is damaged, or the log lacks a document. (Also IndexError.)
    """
    layout = _Layout.of(schema)
    count, at = bitmaps_at(event, wire.PARTIAL_UPDATE)
    if count != len(layout.widths):
        raise ValueError("an event is not a row change of its schema")
    size = (count + 7) // 8
    before_has, after_has = event[at : at + size], event[at + size : at + 2 * size]
    at += 2 * size
    parts = [bytes([wire.UPDATE_V2]), event[1:at]]
    while at < len(event):
        start = at
        before, at = _values(event, at, before_has, layout)
        parts.append(event[start:at])
        change = partial(_changed, lists_changes=lists_changes)
        after, at = _after_image(event, at, after_has, layout, before, change)
        parts.append(after)
    return b"".join(parts)


def _values(event: bytes, at: int, has: bytes, layout: _Layout) -> tuple[dict[int, bytes], int]:
    """Return an image's values by column, without NULL and omitted ones, and the offset after it."""
    present = [column for column in range(len(layout.widths)) if bit(has, column)]
    nulls = event[at : at + (len(present) + 7) // 8]
    at += len(nulls)
    values = {}
    for number, column in enumerate(present):
        if not bit(nulls, number):
            end = value_end(event, at, layout.widths[column])
            if end > len(event):
                raise ValueError("an event is not a row change of its schema")
            values[column] = event[at:end]
            at = end
    return values, at


def _after_image(
    event: bytes, at: int, has: bytes, layout: _Layout, before: dict[int, bytes], change: _Change
) -> tuple[bytes, int]:
    """Return the image in the form of an ordinary update, and the offset after it."""
    options, at = length_at(event, at)
    bits = b""
    if options & _HAS_CHANGES:
        size = (sum(layout.is_json) + 7) // 8
        bits, at = event[at : at + size], at + size
    # the bits count all JSON columns, even those that the image lacks
    json_columns = [column for column, is_json in enumerate(layout.is_json) if is_json]
    changed = {column for number, column in enumerate(json_columns) if bits and bit(bits, number)}
    nulls_at = at
    values, at = _values(event, at, has, layout)
    present = sum(bit(has, column) for column in range(len(layout.widths)))
    image = [event[nulls_at : nulls_at + (present + 7) // 8]]
    for column, value in values.items():
        width = -layout.widths[column]
        image.append(change(before.get(column), value, width) if column in changed else value)
    return b"".join(image), at


def _changed(before: bytes | None, changes: bytes, width: int, *, lists_changes: bool) -> bytes:
    """Return the new document; ``width``: its number of length bytes."""
    if before is None and lists_changes:
        return _with_length(_listed(changes[width:]), width)
    if before is None:
        raise ValueError(_NO_DOCUMENT)
    document = binary.parse(before[width:])
    for operation, path, value in _changes(changes[width:]):
        document = _apply(document, operation, path, value)
    return _with_length(document, width)


def _with_length(document: Node, width: int) -> bytes:
    text = binary.marked_text(document)
    return len(text).to_bytes(width, "little") + text


def _listed(data: bytes) -> Node:
    """Return the changes as a document."""
    changes: list[Node] = []
    at = 0
    while at < len(data):
        operation, path, value, at = _change_at(data, at)
        change: dict[str, Node] = {"op": binary.quoted(_WORDS[operation]), "path": binary.quoted(path)}
        changes.append(change if value is None else {**change, "value": value})
    return changes


def _changes(data: bytes) -> Iterator[tuple[int, list[str | int], Node | None]]:
    at = 0
    while at < len(data):
        operation, path, value, at = _change_at(data, at)
        yield operation, _steps(path), value


def _change_at(data: bytes, at: int) -> tuple[int, str, Node | None, int]:
    """Return operation, path, value, and the offset after them."""
    operation = data[at]
    length, at = length_at(data, at + 1)
    path, at = data[at : at + length].decode(), at + length
    value = None
    if operation != _REMOVE:
        length, at = length_at(data, at)
        value, at = binary.parse(data[at : at + length]), at + length
    return operation, path, value, at


def _steps(path: str) -> list[str | int]:
    """Split ``$.a[3]."b c"`` into names and indexes."""
    steps: list[str | int] = []
    at = 1
    while at < len(path):
        found = _STEP.match(path, at)
        if found is None:
            raise ValueError(f"a JSON path that is none: {path}")
        index, quoted, plain = found.groups()
        steps.append(int(index) if index is not None else plain if quoted is None else _unquoted(quoted))
        at = found.end()
    return steps


def _unquoted(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text)


def _apply(document: Node, operation: int, path: list[str | int], value: Node | None) -> Node:
    if not path:
        if operation != _REPLACE or value is None:
            raise ValueError("a change of a whole document that does not replace it")
        return value
    parent = document
    for step in path[:-1]:
        parent = _child(parent, step)
    last = path[-1]
    if isinstance(parent, dict) and isinstance(last, str):
        _apply_to_object(parent, operation, last, value)
    elif isinstance(parent, list) and isinstance(last, int):
        _apply_to_array(parent, operation, last, value)
    else:
        raise ValueError("a JSON path that does not fit its document")
    return document


def _child(parent: Node, step: str | int) -> Node:
    if isinstance(parent, dict) and isinstance(step, str) and step in parent:
        return parent[step]
    if isinstance(parent, list) and isinstance(step, int):
        return parent[step]
    raise ValueError("a JSON path that does not fit its document")


def _apply_to_object(members: dict[str, Node], operation: int, name: str, value: Node | None) -> None:
    if (name in members) == (operation == _INSERT):
        raise ValueError("a change of a JSON member that is not there, or there already")
    if value is None:
        del members[name]
        return
    members[name] = value
    if operation == _INSERT:
        # MySQL sorts members by length, then bytes
        ordered = sorted(members.items(), key=lambda member: (len(member[0].encode()), member[0].encode()))
        members.clear()
        members.update(ordered)


def _apply_to_array(items: list[Node], operation: int, index: int, value: Node | None) -> None:
    if value is None:
        del items[index]
    elif operation == _INSERT:
        items.insert(index, value)
    else:
        items[index] = value

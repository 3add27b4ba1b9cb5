"""Rows events built by hand, for what no server at hand writes, and for what must be refused."""

import struct
from collections.abc import Sequence
from types import EllipsisType
from typing import Final

from agent.rows.schema import Column, TableSchema, ZeroDates
from agent.sources.mysql.decode import wire
from agent.sources.mysql.decode.types import FieldType
from agent.sources.mysql.dialect import DIALECT

#: values of an image: NULL, and left out
NULL: Final = None
ABSENT: Final = ...
Value = bytes | None | EllipsisType


def int4(value: int) -> bytes:
    return struct.pack("<i", value)


def text(value: str | bytes, prefix: int = 1) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return len(data).to_bytes(prefix, "little") + data


def table(*columns: Column, zero_dates: ZeroDates = ZeroDates.NULL) -> TableSchema:
    return TableSchema(7, "shop", "t", columns, dialect=DIALECT, zero_dates=zero_dates)


INT = Column("id", FieldType.LONG, 0, "int", is_key=True)
NAME = Column("name", FieldType.VARCHAR, 160, "varchar(40)", collation=45)
NOTE = Column("note", FieldType.BLOB, 2, "text", collation=45)


def _bits(flags: Sequence[bool]) -> bytes:
    return sum(flag << i for i, flag in enumerate(flags)).to_bytes((len(flags) + 7) // 8, "little")


def image(*values: Value) -> bytes:
    """What an image holds: which values are NULL, and the others. Values that are left out leave nothing."""
    there = [value for value in values if value is not ABSENT]
    return _bits([value is NULL for value in there]) + b"".join(value for value in there if isinstance(value, bytes))


def event(kind: int, *images: Sequence[Value], extra: bytes = b"") -> bytes:
    """One event of one or more rows: for updates ``images`` alternate, before and after.

    Which columns the images have is read off the first ones.
    """
    is_update = kind in (wire.UPDATE_V1, wire.UPDATE_V2)
    present = [_bits([value is not ABSENT for value in one]) for one in images[: 2 if is_update else 1]]
    extra_part = struct.pack("<H", 2 + len(extra)) + extra if kind >= wire.WRITE_V2 else b""
    head = bytes([kind]) + bytes(6) + b"\1\0" + extra_part + bytes([len(images[0])])
    return head + b"".join(present) + b"".join(image(*one) for one in images)


def insert(*row: Value) -> bytes:
    return event(wire.WRITE_V2, row)


def update(before: Sequence[Value], after: Sequence[Value]) -> bytes:
    return event(wire.UPDATE_V2, before, after)


def delete(*row: Value) -> bytes:
    return event(wire.DELETE_V2, row)

"""Table map parser: converts a table map event to a ``TableSchema``, as far as the log describes the table.

There is one for every version of a table, parsed in Python once per version. Its content depends on the server's
``binlog_row_metadata``: FULL has names of columns, keys and members of enums and sets; MINIMAL only types, signs and
character sets; MariaDB's NO_LOG only types. ``TableMap`` has what the event contains; its users complete it or refuse.

The optional metadata is a list of fields that each describe one class of columns (the numeric ones, the character ones,
…) in order; a column that is assigned to the wrong class would shift all following ones.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from agent.errors import DecodeError
from agent.rows.schema import Column, TableSchema
from agent.sources.mysql.decode import charsets, type_names, types
from agent.sources.mysql.decode.table_ids import table_id
from agent.sources.mysql.decode.types import CHARACTER_TYPES, NUMERIC_TYPES, FieldType
from agent.sources.mysql.dialect import DIALECT

T = TypeVar("T")

_SIGNS, _DEFAULT_CHARSET, _CHARSETS, _NAMES, _SET_MEMBERS, _ENUM_MEMBERS = 1, 2, 3, 4, 5, 6
_KEY, _KEY_WITH_PREFIXES, _MEMBERS_DEFAULT_CHARSET, _MEMBERS_CHARSETS = 8, 9, 10, 11

#: number of metadata bytes per type
_METADATA_BYTES: Final[Mapping[int, int]] = {
    **dict.fromkeys((FieldType.FLOAT, FieldType.DOUBLE, FieldType.BLOB, FieldType.BLOB_COMPRESSED), 1),
    **dict.fromkeys((FieldType.TIMESTAMP2, FieldType.DATETIME2, FieldType.TIME2), 1),
    **dict.fromkeys((FieldType.JSON, FieldType.GEOMETRY, FieldType.VECTOR), 1),
    **dict.fromkeys((FieldType.VARCHAR, FieldType.VARCHAR_COMPRESSED, FieldType.VAR_STRING), 2),
    **dict.fromkeys((FieldType.BIT, FieldType.DECIMAL, FieldType.STRING, FieldType.ENUM, FieldType.SET), 2),
}
#: today's names of these types
_RENAMED: Final[Mapping[int, int]] = {
    FieldType.VAR_STRING: FieldType.VARCHAR,
    FieldType.NEWDATE: FieldType.DATE,
}
_STRINGS: Final = frozenset({FieldType.STRING, FieldType.ENUM, FieldType.SET})
_ENUM_OR_SET: Final = frozenset({FieldType.ENUM, FieldType.SET})


@dataclass(frozen=True, slots=True)
class TableMap:
    """``map_id``: the table's number in row events, until the server closes the table.

    If names are missing, columns are called ``@1``, ``@2``, …; if members are missing, enums and sets have none.
    ``has_signs``: it says which numbers are unsigned.
    """

    map_id: int
    schema: TableSchema
    has_names: bool
    has_members: bool
    has_signs: bool


class _Reader:
    """Reads bytes sequentially."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def __bool__(self) -> bool:
        return self._at < len(self._data)

    def take(self, count: int) -> bytes:
        self._at += count
        if self._at > len(self._data):
            raise ValueError("it ends too early")
        return self._data[self._at - count : self._at]

    def number(self, count: int) -> int:
        return int.from_bytes(self.take(count), "little")

    def length(self) -> int:
        """Read a length-encoded integer."""
        first = self.number(1)
        return self.number({0xFC: 2, 0xFD: 3, 0xFE: 8}[first]) if first > 0xFB else first

    def lengths(self) -> list[int]:
        """Read the remaining bytes as length-encoded integers."""
        numbers = []
        while self:
            numbers.append(self.length())
        return numbers

    def text(self) -> bytes:
        return self.take(self.length())


def parse_table_map(body: bytes, *, is_mariadb: bool) -> TableMap:
    """Parse a table map. ``body``: the event after its header, without checksum.

    :raises DecodeError: it is malformed, or has an unknown type.
    """
    try:
        return _parse(_Reader(body), is_mariadb=is_mariadb)
    except (ValueError, KeyError, IndexError, StopIteration) as error:
        cause = f"a table map of the binlog cannot be read ({error})"
        raise DecodeError(f"{cause}; report this with the server's version") from None


def _parse(reader: _Reader, *, is_mariadb: bool) -> TableMap:
    map_id = reader.number(6)
    reader.take(2)
    schema_name, name = (_name(reader) for _ in range(2))
    kinds = reader.take(reader.length())
    columns = _columns(kinds, _Reader(reader.text()))
    for column in columns:
        types.check_layout(column)
    reader.take((len(columns) + 7) // 8)
    optional = dict(_optional_fields(reader))
    columns = _complete(columns, optional, is_mariadb=is_mariadb)
    has_members = not any(c.type_id in _ENUM_OR_SET and not c.members for c in columns)
    columns = [replace(column, type_name=type_names.name_of(column)) for column in columns]
    schema = TableSchema(table_id(schema_name, name), schema_name, name, tuple(columns), dialect=DIALECT)
    return TableMap(
        map_id,
        schema,
        has_names=_NAMES in optional,
        has_members=has_members,
        has_signs=_SIGNS in optional,
    )


def _name(reader: _Reader) -> str:
    name = reader.take(reader.number(1)).decode()
    reader.take(1)
    return name


def _optional_fields(reader: _Reader) -> Iterator[tuple[int, bytes]]:
    while reader:
        yield reader.number(1), reader.text()


def _columns(kinds: bytes, metadata: _Reader) -> list[Column]:
    return [_column(f"@{i}", number, metadata) for i, number in enumerate(kinds, 1)]


def _column(name: str, number: int, metadata: _Reader) -> Column:
    raw = metadata.take(_METADATA_BYTES.get(number, 0))
    match number:
        case FieldType.STRING | FieldType.ENUM | FieldType.SET:
            return Column(name, *_string(raw[0], raw[1]))
        case FieldType.DECIMAL:
            return Column(name, number, raw[0] << 8 | raw[1])
        case FieldType.BIT:
            return Column(name, number, raw[1] * 8 + raw[0])
        case _:
            return Column(name, _RENAMED.get(number, number), int.from_bytes(raw, "little"))


def _string(real_type: int, length: int) -> tuple[int, int]:
    """Decode a type that char, enum and set share: two bits of a char's length over 255 are stored inverted in it."""
    if real_type & 0x30 == 0x30 and real_type not in _STRINGS:
        raise ValueError(f"a column of type {FieldType.STRING} says that it is of type {real_type}")
    if real_type & 0x30 != 0x30:
        return FieldType.STRING, length | (real_type & 0x30 ^ 0x30) << 4
    return real_type, length


def _complete(columns: list[Column], optional: Mapping[int, bytes], *, is_mariadb: bool) -> list[Column]:
    """Add the optional fields to the columns of their classes."""
    columns = _each(columns, NUMERIC_TYPES, _signs(optional.get(_SIGNS, b"")), _with_sign)
    character_types = CHARACTER_TYPES | {FieldType.GEOMETRY} if is_mariadb else CHARACTER_TYPES
    columns = _with_collations(columns, character_types, optional, _DEFAULT_CHARSET, _CHARSETS)
    columns = _with_collations(columns, _ENUM_OR_SET, optional, _MEMBERS_DEFAULT_CHARSET, _MEMBERS_CHARSETS)
    for number, kind in ((_SET_MEMBERS, FieldType.SET), (_ENUM_MEMBERS, FieldType.ENUM)):
        columns = _each(columns, frozenset({kind}), _member_lists(_Reader(optional.get(number, b""))), _with_members)
    names = [name.decode() for name in _texts(_Reader(optional.get(_NAMES, b"")))]
    columns = [replace(column, name=name) for column, name in zip(columns, names, strict=True)] if names else columns
    for index in _key(optional):
        columns[index] = replace(columns[index], is_key=True)
    return columns


def _each(
    columns: list[Column], kinds: frozenset[int], values: Sequence[T], put: Callable[[Column, T], Column]
) -> list[Column]:
    """Assign one value to each column of ``kinds``, in order; without values nothing changes."""
    remaining = iter(values)
    missing = not values
    return [column if missing or column.type_id not in kinds else put(column, next(remaining)) for column in columns]


def _with_sign(column: Column, is_unsigned: bool) -> Column:
    # a year has no sign, but MariaDB logs it as unsigned
    return replace(column, is_unsigned=is_unsigned and column.type_id != FieldType.YEAR)


def _signs(bitmap: bytes) -> list[bool]:
    return [bool(byte << bit & 0x80) for byte in bitmap for bit in range(8)]


def _with_collation(column: Column, collation: int) -> Column:
    # geometry and vector are binary by type, and have no collation
    has_one = column.type_id not in (FieldType.GEOMETRY, FieldType.VECTOR)
    return replace(column, collation=collation) if has_one else column


def _with_collations(
    columns: list[Column], kinds: frozenset[int], optional: Mapping[int, bytes], default: int, each: int
) -> list[Column]:
    """Add collations: one per column, or a default and pairs of index in the class and collation."""
    if each in optional:
        return _each(columns, kinds, _Reader(optional[each]).lengths(), _with_collation)
    if default not in optional:
        return columns
    common, *pairs = _Reader(optional[default]).lengths()
    exceptions = dict(zip(pairs[::2], pairs[1::2], strict=True))
    count = sum(column.type_id in kinds for column in columns)
    return _each(columns, kinds, [exceptions.get(i, common) for i in range(count)], _with_collation)


def _with_members(column: Column, members: list[bytes]) -> Column:
    charset = charsets.charset_of(column.collation)
    try:
        return replace(column, members=tuple(charsets.to_text(charset, member) for member in members))
    except UnicodeDecodeError:  # MariaDB's CONVERT TO CHARACTER SET can leave their bytes as they were
        listed = ", ".join(member.hex() for member in members)
        cause = f"the members {listed} (hexadecimal) of an enum or set are no text of its character set {charset}"
        raise DecodeError(f"{cause}; ALTER TABLE … MODIFY the column with all its members") from None


def _member_lists(reader: _Reader) -> list[list[bytes]]:
    lists = []
    while reader:
        lists.append([reader.text() for _ in range(reader.length())])
    return lists


def _texts(reader: _Reader) -> Iterator[bytes]:
    while reader:
        yield reader.text()


def _key(optional: Mapping[int, bytes]) -> list[int]:
    """Return the indexes of the primary key's columns; a key on a column's prefix counts as one on the column."""
    if _KEY in optional:
        return _Reader(optional[_KEY]).lengths()
    return _Reader(optional.get(_KEY_WITH_PREFIXES, b"")).lengths()[::2]

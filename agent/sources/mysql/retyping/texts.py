"""Texts, bytes and members: character sets, lengths and padding, as the server converts them. By value. Pure.

A character that a character set lacks becomes ``?``. Excess length is truncated, by characters in ``char`` and
``varchar``, by bytes in all others. A value is refused if only its collation can decide whether two texts are equal.
"""

import re
import unicodedata
from collections.abc import Callable
from functools import lru_cache
from typing import Final

from agent.rows.schema import Column
from agent.sources.mysql.decode import charsets, types
from agent.sources.mysql.decode.types import FieldType, Kind
from agent.sources.mysql.retyping.numbers import UnfitError

#: character sets that have every character, with distinct encodings
_COMPLETE: Final = {
    "utf8mb4": "utf-8",
    "utf16": "utf-16-be",
    "utf16le": "utf-16-le",
    "utf32": "utf-32-be",
}
_BASIC: Final = {"utf8mb3": "utf-8", "ucs2": "utf-16-be"}
#: collations that ignore case
_CASELESS: Final = frozenset({8, 11, 33, 45, 76, 192, 224, 246, 255, 2048, 2304})
_DIGITS: Final = re.compile(r"\d+$")
_SIGNED: Final = re.compile(r"[+-]\d+$")
_BASIC_MAX = "\uffff"


def is_short(column: Column) -> bool:
    """Return whether it is ``char`` or ``varchar``, whose length counts characters."""
    return column.type_id in (FieldType.STRING, FieldType.VARCHAR, FieldType.VARCHAR_COMPRESSED)


def length_max(column: Column) -> int:
    """Return the maximum characters of a ``char`` or ``varchar``, bytes of all others."""
    if not is_short(column):
        return (1 << 8 * column.modifier) - 1
    size = column.modifier - (column.type_id == FieldType.VARCHAR_COMPRESSED)
    return size if types.is_binary(column) else size // width(column)


def charset(column: Column) -> str:
    return charsets.charset_of(column.collation)


def width(column: Column) -> int:
    """Return the bytes of the longest character."""
    return charsets.bytes_per_character(charset(column))


def is_complete(column: Column) -> bool:
    """Return whether the character set has every character."""
    return charsets.charset_of(column.collation) in _COMPLETE


def is_ascii_alike(column: Column) -> bool:
    """Return whether the character set encodes ASCII as single bytes."""
    return charsets.charset_of(column.collation) not in {"swe7", "ucs2", "utf16", "utf16le", "utf32"}


def text(column: Column) -> Callable[[str], str]:
    """Return the conversion to a text column."""
    limit, is_char = length_max(column), column.type_id == FieldType.STRING

    def store(value: str) -> str:
        value = translated(value, column.collation)
        if column.type_id == FieldType.VARCHAR_COMPRESSED and len(value) > limit:
            raise UnfitError("a text that is too long for a compressed column")
        value = value[:limit] if is_short(column) else _cut(value, column, limit)
        return value.rstrip(" ") if is_char else value

    return store


def _cut(value: str, column: Column, limit: int) -> str:
    """Truncate to this number of bytes, at a character boundary."""
    if len(value) * charsets.bytes_per_character(charsets.charset_of(column.collation)) <= limit:
        return value
    data = encoded(value, column)
    if len(data) <= limit:
        return value
    codec = {**_COMPLETE, **_BASIC}.get(charsets.charset_of(column.collation))
    if codec is None:
        if not charsets.is_single_byte(charsets.charset_of(column.collation)):
            raise UnfitError("a text that is truncated in a character set of several bytes")
        return value[:limit]
    return data[:limit].decode(codec, "ignore")


def translated(value: str, collation: int) -> str:
    """Encode in another character set and decode again."""
    charset = charsets.charset_of(collation)
    if charset in _COMPLETE or (value.isascii() and charset != "swe7"):
        return value
    if charset in _BASIC:
        return "".join(letter if letter <= _BASIC_MAX else "?" for letter in value)
    if charset == "ascii":
        return "".join(letter if letter.isascii() else "?" for letter in value)
    if charsets.is_single_byte(charset):
        known = _bytes_of(charset)
        return "".join(letter if letter in known else "?" for letter in value)
    raise UnfitError(f"text beyond ASCII in the character set {charset or 'that is not known'}")


@lru_cache(maxsize=64)
def _bytes_of(charset: str) -> dict[str, int]:
    """Return the byte of each character."""
    found: dict[str, int] = {}
    for number, letter in enumerate(charsets.table(charset)):
        found.setdefault(letter, number)
    return found


@lru_cache(maxsize=64)
def _has_gaps(charset: str) -> bool:
    """Return whether some bytes are displayed as ``?`` though they are not."""
    return charset != "ascii" and charsets.is_single_byte(charset) and charsets.table(charset).count("?") > 1


def encoded(value: str, column: Column) -> bytes:
    """Return the bytes that the column stores."""
    charset = charsets.charset_of(column.collation)
    if codec := {**_COMPLETE, **_BASIC}.get(charset):
        return value.encode(codec)
    if value.isascii() and charset != "swe7" and ("?" not in value or not _has_gaps(charset)):
        return value.encode()
    if not charsets.is_single_byte(charset) or _has_gaps(charset):
        raise UnfitError(f"the bytes of a text in the character set {charset or 'that is not known'}")
    known = _bytes_of(charset)
    return bytes(known[letter] for letter in value)


def decoded(data: bytes, column: Column) -> str:
    """Decode bytes as the column's text."""
    charset = charsets.charset_of(column.collation)
    try:
        if codec := {**_COMPLETE, **_BASIC}.get(charset):
            found = data.decode(codec)
        elif charset == "ascii" or (data.isascii() and is_ascii_alike(column)):
            found = data.decode("ascii")
        elif charsets.is_single_byte(charset):
            found = charsets.to_text(charset, data)
        else:
            raise UnfitError(f"bytes beyond ASCII in the character set {charset or 'that is not known'}")
    except UnicodeDecodeError:
        raise UnfitError("bytes that are no text of the character set") from None
    if charset in _BASIC and any(letter > _BASIC_MAX for letter in found):
        raise UnfitError("bytes that are no text of the character set")
    return found


def plain(data: bytes) -> str:
    """Return ASCII text.

    :raises UnfitError: the bytes are not ASCII.
    """
    if not data.isascii():
        raise UnfitError("bytes beyond ASCII")
    return data.decode("ascii")


def binary(column: Column) -> Callable[[bytes], bytes]:
    """Return the conversion to a binary column; ``binary(n)`` is padded with zeros."""
    limit, is_padded = length_max(column), types.kind_of(column) is Kind.BINARY

    def store(data: bytes) -> bytes:
        data = data[:limit]
        return data.ljust(limit, b"\0") if is_padded else data

    return store


def number_of(value: str, column: Column) -> int:
    """Return the number of an enum's member, or a set's bits."""
    if "" in column.members and not value:
        raise UnfitError("the empty member, which may be none")
    if column.type_id == FieldType.ENUM:
        return column.members.index(value) + 1 if value else 0
    bits = {member: 1 << at for at, member in enumerate(column.members)}
    return sum(bits[part] for part in value.split(",")) if value else 0


def member(column: Column, source: Column) -> Callable[[str], str]:
    """Return the conversion to an enum or set. A text that is not a member may be the number of one."""
    of_number = member_of_number(column)

    def of_digits(value: str) -> str:
        if not is_ascii_alike(source):
            raise UnfitError("a number in a character set that is not like ASCII")
        return of_number(int(value))

    return _into_enum(column, of_digits) if column.type_id == FieldType.ENUM else _into_set(column, of_digits)


def member_of_number(column: Column) -> Callable[[int], str]:
    def enum(number: int) -> str:
        return column.members[number - 1] if 1 <= number <= len(column.members) else ""

    def chosen(number: int) -> str:
        if number < 0 or number >> len(column.members):
            raise UnfitError("a number that has more bits than the set has members")
        return ",".join(item for at, item in enumerate(column.members) if number >> at & 1)

    return enum if column.type_id == FieldType.ENUM else chosen


def _into_enum(column: Column, of_digits: Callable[[str], str]) -> Callable[[str], str]:
    def store(value: str) -> str:
        value = value.rstrip(" ")
        if not value:
            return ""
        found = _found(value, column)
        if found is not None:
            return found
        return of_digits(value) if _DIGITS.match(value) else ""

    return store


def _into_set(column: Column, of_digits: Callable[[str], str]) -> Callable[[str], str]:
    def store(value: str) -> str:
        found = {_found(part.rstrip(" "), column) for part in value.split(",")} if value else set()
        if found - {None}:
            return ",".join(item for item in column.members if item in found)
        return of_digits(value) if _DIGITS.match(value) else ""

    return store


def _found(value: str, column: Column) -> str | None:
    """Return the member that the column recognises in the text, or None."""
    if value in column.members:
        return value
    if value[:1].isspace() or not value.isprintable() or _SIGNED.match(value):
        raise UnfitError("a text whose place among the members only the collation knows")
    alike = [item for item in column.members if _folded(item) == _folded(value)]
    is_sure = value.isascii() and all(item.isascii() for item in alike)
    if alike and (not is_sure or column.collation not in _CASELESS):
        raise UnfitError("a text whose place among the members only the collation knows")
    if not alike and not value.isascii():
        raise UnfitError("a text whose place among the members only the collation knows")
    return alike[0] if alike else None


def _folded(value: str) -> str:
    plain = (letter for letter in unicodedata.normalize("NFKD", value) if not unicodedata.combining(letter))
    return "".join(plain).casefold()

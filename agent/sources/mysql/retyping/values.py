"""Single values: converts a value of a column to a number, a text or bytes for another column. Pure.

``retyping`` converts whole arrays, including dates and times.
"""

from collections.abc import Callable
from typing import Any, Final

from agent.rows.schema import Column
from agent.sources.mysql.decode import types
from agent.sources.mysql.decode.types import FieldType, Kind
from agent.sources.mysql.retyping import identifiers, numbers, texts
from agent.sources.mysql.retyping.families import NUMBERS, Family, vector_length
from agent.sources.mysql.retyping.numbers import UnfitError
from agent.sources.mysql.retyping.terms import RetypeTerms

#: of a vector: a FLOAT
_ELEMENT_BYTES: Final = 4

Scalar = Callable[[Any], Any]


def by_value(before: Column, after: Column, families: tuple[Family, Family], terms: RetypeTerms) -> Scalar:
    """Return the conversion.

    :raises UnfitError: there is none; its text names the cause.
    """
    old, new = families
    if Family.OPAQUE in families:
        return _identifier(before, after, families)
    if new in (Family.TEXT, Family.BYTES, Family.MEMBERS):
        return _into_text(before, after, families, terms)
    if new in NUMBERS:
        if types.kind_of(before) is Kind.COMPRESSED:
            raise UnfitError("a compressed column is converted to texts and bytes only")
        if old in (Family.TEXT, Family.BYTES) and new is Family.YEAR:
            text = _text_of(before, old, terms)
            return lambda value: numbers.year_of_text(text(value))
        number, store = _number_of(before, old, new, terms), number_store(before, after, new)
        return lambda value: store(number(value))
    if new is Family.JSON and old is Family.WHOLE:
        return lambda value: str(int(value))
    raise no_way(new)


def no_way(new: Family) -> UnfitError:
    """Return the error for a family of types to which few or no others are converted."""
    if new is Family.JSON:
        return UnfitError("only integers are converted to JSON")
    return UnfitError("only texts, bytes, numbers, dates and times are converted to it")


def _identifier(before: Column, after: Column, families: tuple[Family, Family]) -> Scalar:
    """Return the conversion of a uuid, inet4 or inet6 to a text or its bytes and back, or of a vector to a shorter
    one."""
    one, other = types.kind_of(before), types.kind_of(after)
    if one in identifiers.KINDS and families[1] is Family.TEXT:
        return texts.text(after)
    if other in identifiers.KINDS and families[0] is Family.TEXT:
        return identifiers.of_text(other)
    if one in identifiers.KINDS and families[1] is Family.BYTES:
        packed, store = identifiers.packed(one), texts.binary(after)
        return lambda value: store(packed(value))
    if other in identifiers.KINDS and families[0] is Family.BYTES:
        return identifiers.of_bytes(other)
    if before.type_id == FieldType.VECTOR == after.type_id and (length := vector_length(after)):
        return lambda value: value[: length * _ELEMENT_BYTES]
    if identifiers.KINDS & {one, other}:
        raise UnfitError("uuid, inet4 and inet6 are converted to and from texts and bytes only")
    raise UnfitError("geometries, vectors and times of servers before 5.6 are not converted")


def _number_of(before: Column, old: Family, new: Family, terms: RetypeTerms) -> Scalar:
    """Return the conversion via a number."""
    match old:
        case Family.BIT if new is Family.REAL:
            return numbers.signed_bits
        case Family.WHOLE | Family.BIT | Family.YEAR:
            return int
        case Family.DECIMAL:
            return numbers.parsed_decimal
        case Family.REAL:
            return lambda value: value
        case Family.MEMBERS:
            return lambda value: texts.number_of(value, before)
        case Family.TEXT | Family.BYTES:
            text = _text_of(before, old, terms)
            is_whole = new is Family.BIT or (terms.is_mariadb and new is Family.WHOLE)
            parsed = numbers.whole_prefix if is_whole else numbers.parsed
            return lambda value: parsed(text(value))
    raise UnfitError("JSON is converted to texts and bytes only")


def number_store(before: Column, after: Column, new: Family) -> Scalar:
    """Return the conversion of a number.

    :raises UnfitError: the column has no numbers.
    """
    match new:
        case Family.WHOLE:
            return numbers.whole(after, before)
        case Family.BIT:
            return numbers.bit(after, before)
        case Family.YEAR:
            return numbers.year(before)
        case Family.DECIMAL:
            return numbers.decimal(after)
        case Family.REAL:
            return numbers.real(after)
    raise no_way(new)


def _text_of(before: Column, old: Family, terms: RetypeTerms) -> Scalar:
    """Return the conversion to the text that the server prints."""
    if old in (Family.DECIMAL, Family.REAL) and "zerofill" in before.type_name:
        raise UnfitError("the server pads the numbers with zeros")
    match old:
        case Family.WHOLE:
            return numbers.whole_text(before)
        case Family.BIT:
            return lambda value: str(int(value))
        case Family.YEAR:
            return lambda value: f"{value:04}"
        case Family.DECIMAL:
            return lambda value: value if isinstance(value, str) else f"{value:f}"
        case Family.REAL:
            return lambda value: numbers.real_text(value, before, is_mariadb=terms.is_mariadb)
        case Family.TEXT | Family.MEMBERS | Family.JSON:
            return lambda value: value
        case Family.BYTES:
            return lambda value: value.decode("latin-1")
    raise AssertionError(f"{old} is converted elsewhere")


def _into_text(before: Column, after: Column, families: tuple[Family, Family], terms: RetypeTerms) -> Scalar:
    old, new = families
    if old is Family.BYTES and new is Family.TEXT:
        cut = texts.text(after)
        return lambda value: cut(texts.decoded(value, after))
    if old is Family.BYTES and new is Family.BYTES:
        return texts.binary(after)
    if FieldType.STRING == before.type_id == after.type_id and before.modifier == after.modifier:
        raise UnfitError("some servers copy the stored bytes, others convert them")
    if new is Family.MEMBERS and old is Family.BYTES:
        found = texts.member(after, before)
        return lambda value: found(texts.plain(value))
    if new is Family.BYTES and old in (Family.TEXT, Family.MEMBERS):
        store = texts.binary(after)
        return lambda value: store(texts.encoded(value, before))
    if terms.is_mariadb and new is Family.MEMBERS and old in (Family.REAL, Family.DECIMAL):
        return _numbered_member(before, after, old)
    if new is Family.MEMBERS and (old is Family.BIT or (terms.is_mariadb and old in NUMBERS)):
        of_number = texts.member_of_number(after)
        return lambda value: of_number(int(value))
    if old is Family.BIT and not texts.is_short(after):
        return _bits_of(before, after, new)
    text, rest = _text_of(before, old, terms), from_text(before, after, new)
    return lambda value: rest(text(value))


def _numbered_member(before: Column, after: Column, old: Family) -> Scalar:
    """Return the conversion of a number with digits to the member of the rounded number."""
    number, of_number = numbers.parsed_decimal if old is Family.DECIMAL else float, texts.member_of_number(after)
    return lambda value: of_number(numbers.rounded(number(value), source=before))


def _bits_of(before: Column, after: Column, new: Family) -> Scalar:
    """Return the conversion via the stored bytes of BIT."""
    size = (before.modifier + 7) // 8
    if new is Family.BYTES:
        return lambda value: int(value).to_bytes(size)
    cut = texts.text(after)
    return lambda value: cut(texts.decoded(int(value).to_bytes(size), after))


def from_text(before: Column, after: Column, new: Family) -> Scalar:
    """Return the conversion from a text."""
    if new is Family.TEXT:
        return texts.text(after)
    if new is Family.MEMBERS:
        return texts.member(after, before)
    store = texts.binary(after)
    return lambda value: store(value.encode())

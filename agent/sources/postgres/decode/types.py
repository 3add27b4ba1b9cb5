"""PostgreSQL types: which of them Weir knows, and the Arrow type each column becomes (the table is ``docs/types.md``).

A *known* type has a binary form that the kernels read. Every other type travels as its text form and becomes a
string; since pgoutput's ``binary`` option is one switch for the whole stream, a stream with such a column is opened in
text mode (who opens it decides with ``is_known``).

Enums and domains have oids of their own in every database. ``resolve_column`` replaces them once, where a schema is
built: a domain by its base type (with the domain's modifier), an enum by the pseudo type ``anyenum`` (its own oid
is the modifier then). So a ``TableSchema`` that is written down decodes without asking the database again.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Any, Final

import pyarrow as pa

from agent.rows.schema import Column, TableSchema, with_source_type


class Kind(Enum):
    """The wire format of a value; one kernel each, for the binary and for the text form."""

    BOOL = auto()
    INT2 = auto()
    INT4 = auto()
    INT8 = auto()
    FLOAT4 = auto()
    FLOAT8 = auto()
    NUMERIC = auto()
    TEXT = auto()
    BYTEA = auto()
    DATE = auto()
    TIME = auto()
    TIMESTAMP = auto()
    TIMESTAMPTZ = auto()
    UUID = auto()
    JSONB = auto()
    #: no binary form that Weir reads: text form only
    OTHER = auto()


#: ``anyenum``: means every enum type in a resolved schema.
ENUM_OID: Final = 3500
NUMERIC_OID: Final = 1700
#: Arrow's widest exact decimal is decimal128
DECIMAL_PRECISION_MAX: Final = 38

_KINDS: Final[Mapping[int, Kind]] = {
    16: Kind.BOOL,
    17: Kind.BYTEA,
    19: Kind.TEXT,  # name
    20: Kind.INT8,
    21: Kind.INT2,
    23: Kind.INT4,
    25: Kind.TEXT,
    114: Kind.TEXT,  # json
    700: Kind.FLOAT4,
    701: Kind.FLOAT8,
    1042: Kind.TEXT,  # bpchar
    1043: Kind.TEXT,  # varchar
    1082: Kind.DATE,
    1083: Kind.TIME,
    1114: Kind.TIMESTAMP,
    1184: Kind.TIMESTAMPTZ,
    NUMERIC_OID: Kind.NUMERIC,
    2950: Kind.UUID,
    ENUM_OID: Kind.TEXT,
    3802: Kind.JSONB,
}
#: Types whose text is a name in the catalog, which changes without a change of the row: regproc, regprocedure, regoper,
#: regoperator, regclass, regtype, regconfig, regdictionary, regnamespace, regrole, regcollation, aclitem.
NAMES_OF_OBJECTS: Final = frozenset((24, 2202, 2203, 2204, 2205, 2206, 3734, 3769, 4089, 4096, 4191, 1033))
#: Types whose binary form the kernels read.
KNOWN_OIDS: Final = frozenset(_KINDS)

_ARROW: Final[Mapping[Kind, pa.DataType]] = {
    Kind.BOOL: pa.bool_(),
    Kind.INT2: pa.int16(),
    Kind.INT4: pa.int32(),
    Kind.INT8: pa.int64(),
    Kind.FLOAT4: pa.float32(),
    Kind.FLOAT8: pa.float64(),
    Kind.TEXT: pa.string(),
    Kind.BYTEA: pa.binary(),
    Kind.DATE: pa.date32(),
    Kind.TIME: pa.time64("us"),
    Kind.TIMESTAMP: pa.timestamp("us"),
    Kind.TIMESTAMPTZ: pa.timestamp("us", tz="UTC"),
    Kind.UUID: pa.string(),
    Kind.JSONB: pa.string(),
    Kind.OTHER: pa.string(),
}


def kind_of(column: Column) -> Kind:
    return _KINDS.get(column.type_id, Kind.OTHER)


def is_known(column: Column) -> bool:
    """Return whether the column's binary form can be read; ``column`` is resolved (see ``resolve_column``)."""
    return column.type_id in KNOWN_OIDS


def numeric_precision(modifier: int) -> tuple[int, int] | None:
    """``(precision, scale)`` of a numeric's typmod, or None for a bare ``numeric``. The scale may be negative."""
    if modifier < 4:
        return None
    packed = modifier - 4
    scale = ((packed & 0x7FF) ^ 0x400) - 0x400
    return (packed >> 16) & 0xFFFF, scale


def arrow_type(column: Column) -> pa.DataType:
    """Return the column's Arrow type. A numeric that no decimal128 holds exactly becomes its text."""
    kind = kind_of(column)
    return _decimal_type(column.modifier) if kind is Kind.NUMERIC else _ARROW[kind]


def _decimal_type(modifier: int) -> pa.DataType:
    bounds = numeric_precision(modifier)
    if bounds is None or bounds[1] < 0:
        return pa.string()
    # PostgreSQL 15+ allows numeric(3, 5): values below 0.01. Arrow and the lakes want scale <= precision.
    precision = max(bounds)
    return pa.decimal128(precision, bounds[1]) if precision <= DECIMAL_PRECISION_MAX else pa.string()


def arrow_schema(schema: TableSchema) -> pa.Schema:
    """The table's Arrow schema: every field nullable, with the source's type name in its metadata."""
    return pa.schema([_field(column) for column in schema.columns])


def _field(column: Column) -> pa.Field:
    field = pa.field(column.name, arrow_type(column))
    return with_source_type(field, column.type_name or str(column.type_id))


#: Enums and domains of one database, for ``read_user_types``.
USER_TYPES_SQL: Final = (
    "SELECT oid::int8, typtype::text, typbasetype::int8, typtypmod FROM pg_catalog.pg_type WHERE typtype IN ('d', 'e')"
)


@dataclass(frozen=True, slots=True)
class UserType:
    """An enum (``base`` is 0) or a domain over ``base`` with ``modifier``."""

    is_enum: bool
    base: int = 0
    modifier: int = -1


def read_user_types(rows: Iterable[Sequence[Any]]) -> dict[int, UserType]:
    """Parse the rows of ``USER_TYPES_SQL``, by oid; fields may be numbers or their text."""
    return {
        int(oid): UserType(is_enum=kind == "e", base=int(base), modifier=int(modifier))
        for oid, kind, base, modifier in rows
    }


def resolve_column(column: Column, user_types: Mapping[int, UserType]) -> Column:
    """Replace a domain by its base type and an enum by ``ENUM_OID``; any other column is returned as it is."""
    type_id, modifier = column.type_id, column.modifier
    while (user_type := user_types.get(type_id)) is not None:
        if user_type.is_enum:  # which one it is, the modifier says
            return replace(column, type_id=ENUM_OID, modifier=type_id)
        # of domains over domains, the innermost one with a modifier restricts the values
        modifier = user_type.modifier if user_type.modifier >= 0 else modifier
        type_id = user_type.base
    return replace(column, type_id=type_id, modifier=modifier)

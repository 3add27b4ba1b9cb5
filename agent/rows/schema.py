"""Table schema: a table's columns as its source declared them at one log position, and their Arrow types.

A ``TableSchema`` is a value: it is stored in segment metadata (as JSON) and staged manifests, and pickled in task
descriptors. Its source decides which Arrow type a column becomes (``agent.sources.<kind>.types``), so sinks and flush
tasks never need source type ids.
"""

import json
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Final

import pyarrow as pa

#: dialect of tables that were stored before the field existed
FIRST_DIALECT: Final = "postgresql"


class ZeroDates(StrEnum):
    """The treatment of a date that no calendar has (MySQL's ``0000-00-00``, ``2024-02-00``, ``2024-02-31``)."""

    #: reject it
    STRICT = "strict"
    #: replace it by NULL
    NULL = "null"
    #: replicate all dates, datetimes and timestamps of the table as text
    STRING = "string"


@dataclass(frozen=True, slots=True)
class Column:
    """One column.

    ``type_id`` and ``modifier`` are the source's own (PostgreSQL: type oid and atttypmod; MySQL: field type and the
    metadata word of a table map); ``type_name`` is for people. ``is_key``: the column belongs to the replica identity
    that updates and deletes carry. MySQL only: ``is_unsigned``; ``collation`` (its number; 0 if the type has none, 63
    is binary); ``members`` of an enum or set, in order. PostgreSQL only: ``place``, the column's permanent number, 0 if
    not known: it distinguishes a renamed column from a new one, and does not count in comparisons.
    """

    name: str
    type_id: int
    modifier: int
    type_name: str = ""
    is_key: bool = False
    is_unsigned: bool = False
    collation: int = 0
    members: tuple[str, ...] = ()
    place: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class TableSchema:
    """One version of one table.

    ``replica_identity`` is PostgreSQL's letter: d (key), n (nothing), f (full), i (index). ``dialect``: the source
    whose types and events these are, which decodes them. MySQL only: ``zero_dates`` of the changefeed's configuration;
    ``collation``, the default of future text columns, 0 if not known; it is stored in the table's record.
    """

    table_id: int
    schema_name: str
    name: str
    columns: tuple[Column, ...]
    replica_identity: str = "d"
    dialect: str = FIRST_DIALECT
    zero_dates: ZeroDates = ZeroDates.NULL
    collation: int = field(default=0, compare=False)

    @property
    def qualified_name(self) -> str:
        return f"{self.schema_name}.{self.name}"

    @property
    def key(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns if column.is_key)

    def to_json(self) -> str:
        fields = asdict(self)
        del fields["collation"]
        fields["columns"] = [_without_defaults(column) for column in fields["columns"]]
        return json.dumps(fields, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str | bytes) -> "TableSchema":
        fields = json.loads(text)
        columns = tuple(_column(column) for column in fields.pop("columns"))
        zero_dates = ZeroDates(fields.pop("zero_dates", ZeroDates.NULL))
        return cls(columns=columns, zero_dates=zero_dates, **fields)


def _without_defaults(column: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in column.items() if value or name in ("name", "type_id", "modifier")}


def _column(fields: dict[str, Any]) -> Column:
    return Column(**{**fields, "members": tuple(fields.get("members", ()))})


#: columns of every batch in the change log: commit Ts, ordinal inside the transaction, the event as the source sent it
LOG_BATCH = pa.schema([("commit_ts", pa.int64()), ("seq", pa.int64()), ("event", pa.large_binary())])

#: metadata key of an Arrow field: the source's own name of the column's type
SOURCE_TYPE = b"weir.source_type"


def with_source_type(field: pa.Field, type_name: str) -> pa.Field:
    return field.with_metadata({SOURCE_TYPE: type_name.encode()})

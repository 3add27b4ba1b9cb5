"""A table's columns as its source declared them at one position of the log, and the Arrow types they become.

A ``TableSchema`` is a value: it travels in segment metadata (as JSON), in task descriptors (pickled) and in staged
manifests. Which Arrow type a column becomes is decided by its source (``agent.sources.<kind>.types``) and written down
here, so that sinks and flush tasks never look at source type ids.
"""

import json
from dataclasses import asdict, dataclass

import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Column:
    """One column.

    ``type_id`` and ``modifier`` are the source's own (PostgreSQL: type oid and atttypmod); ``type_name`` is for
    people. ``is_key`` says whether it belongs to the replica identity that updates and deletes carry.
    """

    name: str
    type_id: int
    modifier: int
    type_name: str = ""
    is_key: bool = False


@dataclass(frozen=True, slots=True)
class TableSchema:
    """One version of one table.

    ``replica_identity`` is PostgreSQL's letter: d (key), n (nothing), f (full), i (index).
    """

    table_id: int
    schema_name: str
    name: str
    columns: tuple[Column, ...]
    replica_identity: str = "d"

    @property
    def qualified_name(self) -> str:
        return f"{self.schema_name}.{self.name}"

    @property
    def key(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns if column.is_key)

    def to_json(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str | bytes) -> "TableSchema":
        fields = json.loads(text)
        columns = tuple(Column(**column) for column in fields.pop("columns"))
        return cls(columns=columns, **fields)


#: Columns of every batch in the change log: commit Ts, ordinal inside the transaction, the event as the source sent it.
LOG_BATCH = pa.schema([("commit_ts", pa.int64()), ("seq", pa.int64()), ("event", pa.large_binary())])

#: Metadata key of an Arrow field: the source's own name of the column's type.
SOURCE_TYPE = b"weir.source_type"


def with_source_type(field: pa.Field, type_name: str) -> pa.Field:
    return field.with_metadata({SOURCE_TYPE: type_name.encode()})

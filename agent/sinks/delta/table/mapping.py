"""Column mapping: the names and ids under which a Delta table's files have its columns (Delta's mode ``name``).

A table with a mapping has a *physical* name and an id for each column, in the column's metadata. Data files, statistics
and values of partitions are under physical names. So a column is renamed, or dropped, without its files: the new column
of a dropped one's name gets a physical name that no file has. A table without a mapping has its columns under their own
names.

The mapping of a table begins with its columns' own names as the physical ones: files from before stay as they are.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Final, Self
from uuid import uuid4

import pyarrow as pa
from deltalake import Schema

from agent.errors import RESYNC, TableHeldError

#: the feature's name in a table's protocol
FEATURE: Final = "columnMapping"
_MODE: Final = "delta.columnMapping.mode"
_LAST_ID: Final = "delta.columnMapping.maxColumnId"
_ID: Final = "delta.columnMapping.id"
_PHYSICAL: Final = "delta.columnMapping.physicalName"
#: pyarrow's key of a Parquet column's id
_FIELD_ID: Final = "PARQUET:field_id"
#: the writer version that brings the feature without naming it
_WRITER: Final = 5
#: the features of writers that a version has without naming them, and all versions above it
_IMPLIED: Final = {
    2: ("appendOnly", "invariants"),
    3: ("checkConstraints",),
    4: ("changeDataFeed", "generatedColumns"),
    _WRITER: (FEATURE,),
}

Action = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Column:
    """``name``: the physical one."""

    name: str
    id: int


@dataclass(frozen=True)
class ColumnNames:
    """``columns``: by name, None if the table has no mapping. ``last_id``: the highest id that was ever given."""

    columns: Mapping[str, Column] | None = None
    last_id: int = 0

    @classmethod
    def of(cls, protocol: Action, configuration: Mapping[str, str | None], schema: str) -> Self:
        """``schema``: Delta's JSON.

        :raises TableHeldError: the table has a mapping that Weir does not write.
        """
        if not is_set(configuration) or not _is_supported(protocol):
            return cls()
        mode = configuration[_MODE]
        if mode != "name":
            raise TableHeldError(
                f"others have given a Delta table column mapping of mode {mode!r}, and Weir writes mode 'name' alone; "
                f"move the table away, and {RESYNC}"
            )
        try:
            fields = json.loads(schema)["fields"]
            columns = {
                item["name"]: Column(str(item["metadata"][_PHYSICAL]), int(item["metadata"][_ID])) for item in fields
            }
            last_id = max([int(configuration.get(_LAST_ID) or 0), *(column.id for column in columns.values())])
        except (ValueError, LookupError, TypeError) as error:
            raise TableHeldError(
                f"the column mapping of a Delta table is damaged ({type(error).__name__}: {error}); undo what another "
                f"writer has done and resume the changefeed, or {RESYNC}"
            ) from None
        return cls(columns, last_id)

    @property
    def is_mapped(self) -> bool:
        return self.columns is not None

    @cached_property
    def _names(self) -> dict[str, str]:
        return {column.name: name for name, column in (self.columns or {}).items()}

    def physical(self, name: str) -> str:
        """Return the name of a column in files. One that the table lacks has its own, unless another column has it."""
        column = (self.columns or {}).get(name)
        if column is not None:
            return column.name
        return f"{name}-new" if name in self._names else name

    def logical(self, physical: str) -> str:
        return self._names.get(physical, physical)

    def in_file(self, schema: pa.Schema) -> pa.Schema:
        """Return the columns of a file with the columns ``schema``."""
        if self.columns is None:
            return schema
        return pa.schema(
            [
                pa.field(self.physical(item.name), item.type, item.nullable, self._parquet_metadata(item.name))
                for item in schema
            ]
        )

    def _parquet_metadata(self, name: str) -> dict[str, str] | None:
        column = (self.columns or {}).get(name)
        return None if column is None else {_FIELD_ID: str(column.id)}

    def described(self, schema: pa.Schema, before: str = "") -> str:
        """Return Delta's JSON of a table's, or a file's, columns. ``before``: that of the table until now, whose
        columns keep what others have said of them."""
        plain = Schema.from_arrow(schema).to_json()
        if self.columns is None and not before:
            return plain
        found = json.loads(plain)
        said = {_physical_of(item): item for item in json.loads(before)["fields"]} if before else {}
        for item in found["fields"]:
            known = said.get(self.physical(item["name"]), {})
            if known.get("type") == item["type"]:
                item["metadata"] = dict(known.get("metadata") or {})
            column = (self.columns or {}).get(item["name"])
            if column is not None:
                item["metadata"] |= {_ID: column.id, _PHYSICAL: column.name}
        return json.dumps(found)

    def has_file(self, schema: str) -> bool:
        """Return whether a file that is described by ``schema`` has its columns as the table has them."""
        if not self.is_mapped and _PHYSICAL not in schema:
            return True
        return all(self.physical(name) == physical for name, physical in file_names(schema).items())

    def begun(self, names: Sequence[str]) -> Self:
        """Return the mapping of a table that had none."""
        assert self.columns is None, "it has begun"
        return type(self)({name: Column(name, at) for at, name in enumerate(names, 1)}, len(names))

    def after(self, origins: Sequence[tuple[str, str | None]]) -> Self:
        """Return the names of the table's columns afterwards: each with the column that it was, or None."""
        if self.columns is None:
            return self
        known = [origin for _, origin in origins if origin is not None]
        assert len(known) == len({*known}), "each column becomes one"
        columns, last_id = dict[str, Column](), self.last_id
        for name, origin in origins:
            if origin is not None:
                columns[name] = self.columns[origin]
            else:
                last_id += 1
                columns[name] = Column(f"col-{uuid4()}", last_id)
        return type(self)(columns, last_id)

    def configured(self, configuration: Mapping[str, str | None]) -> dict[str, str | None]:
        """Return the table's properties with those of the mapping."""
        if self.columns is None:
            return dict(configuration)
        return {**configuration, _MODE: "name", _LAST_ID: str(self.last_id)}


NO_MAPPING: Final = ColumnNames()


def is_set(configuration: Mapping[str, str | None]) -> bool:
    """Return whether a table's properties say that it has a mapping."""
    return (configuration.get(_MODE) or "none") != "none"


def _is_supported(protocol: Action) -> bool:
    version = int(protocol["minWriterVersion"])
    return FEATURE in (protocol.get("writerFeatures") or ()) if version >= 7 else version >= _WRITER


def _physical_of(item: Mapping[str, Any]) -> str:
    return str((item.get("metadata") or {}).get(_PHYSICAL) or item["name"])


@lru_cache(256)
def file_names(schema: str) -> Mapping[str, str]:
    """Return the physical name of each column of a file, by name. ``schema``: Delta's JSON, as ``described``."""
    return {item["name"]: _physical_of(item) for item in json.loads(schema)["fields"]}


@lru_cache(256)
def names_of_file(schema: str) -> ColumnNames:
    """Return the names of a file's columns. ``schema``: as for ``file_names``."""
    if _PHYSICAL not in schema:
        return NO_MAPPING
    return ColumnNames({name: Column(physical, 0) for name, physical in file_names(schema).items()})


def supporting(protocol: Action, *features: str) -> Action:
    """Return a protocol with more features for readers and writers. It names all that it has, for delta-rs forgets
    those that a version has without naming them when it adds one (seen with 1.6.6)."""
    version = int(protocol["minWriterVersion"])
    if version < 7:
        writers = [name for since, names in _IMPLIED.items() if since <= version for name in names]
    else:
        writers = [*(protocol.get("writerFeatures") or ())]
    readers = [*(protocol.get("readerFeatures") or ())]
    if FEATURE in writers:
        readers.append(FEATURE)
    return {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": sorted({*readers, *features}),
        "writerFeatures": sorted({*writers, *features}),
    }

"""SQL catalog: pyiceberg's, with the metadata of tables kept in memory.

A metadata file never changes, so what was read or written once is known. pyiceberg parses the file for every look at a
table, and copies all of its snapshots for every commit: both grow with the snapshots that are retained. The methods
that are replaced are pyiceberg's own seams between these steps; without them a commit would be slower, and as exact.

A commit looks its table up in the version that it was made from, and nowhere else: the statement that moves the
catalog's entry from that version to the new one is what refuses the second of two.
"""

import sqlite3
from collections import OrderedDict
from contextlib import suppress
from threading import Lock
from typing import Final

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.io import FileIO
from pyiceberg.table import CommitTableResponse, StagedTable, Table, TableProperties
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import (
    AddSchemaUpdate,
    AddSnapshotUpdate,
    SetCurrentSchemaUpdate,
    SetPropertiesUpdate,
    SetSnapshotRefUpdate,
    TableRequirement,
    TableUpdate,
)
from pyiceberg.typedef import Identifier
from pyiceberg.utils.properties import property_as_int
from sqlalchemy import bindparam, event, select, update

from agent.sinks.iceberg.table.io import LakeFileIO, OwnFileIO
from agent.sinks.iceberg.table.metadata import files as metadata_files

#: snapshots that are kept, over all tables: each takes some kilobytes
_SNAPSHOTS_MAX: Final = 10_000
_NAMED: Final = (
    IcebergTables.catalog_name == bindparam("catalog"),
    IcebergTables.table_namespace == bindparam("namespace"),
    IcebergTables.table_name == bindparam("name"),
)
_LOCATION: Final = select(IcebergTables.metadata_location).where(*_NAMED)
#: moves a table's entry from one version to the next
_MOVED: Final = (
    update(IcebergTables)
    .where(*_NAMED, IcebergTables.metadata_location == bindparam("before"))
    .values(metadata_location=bindparam("after"), previous_metadata_location=bindparam("before"))
)
#: updates that look at no snapshot that no ref names
_OF_REFS: Final = (
    AddSchemaUpdate,
    AddSnapshotUpdate,
    SetCurrentSchemaUpdate,
    SetPropertiesUpdate,
    SetSnapshotRefUpdate,
)


class KeepingSqlCatalog(OwnFileIO, SqlCatalog):
    """A catalog of one process."""

    def __init__(self, name: str, **properties: str) -> None:
        self._kept: OrderedDict[str, TableMetadata] = OrderedDict()
        #: of all that is kept; a table without any counts as one
        self._snapshots = 0
        self._lock = Lock()
        super().__init__(name, **properties)

    def _init_catalog(self) -> None:
        if self.engine.dialect.name == "sqlite":
            event.listen(self.engine, "connect", _keep_journal)
        super()._init_catalog()

    def _keep(self, location: str, metadata: TableMetadata) -> None:
        with self._lock:
            self._forget(location)
            self._kept[location] = metadata
            self._snapshots += _size(metadata)
            while len(self._kept) > 1 and self._snapshots > _SNAPSHOTS_MAX:
                self._forget(next(iter(self._kept)))

    def _forget(self, location: str) -> None:
        known = self._kept.pop(location, None)
        if known is not None:
            self._snapshots -= _size(known)

    def _convert_orm_to_iceberg(self, orm_table: IcebergTables) -> Table:
        location = orm_table.metadata_location or ""
        with self._lock:
            known = self._kept.get(location)
            if known is not None:
                self._kept.move_to_end(location)
        if known is None:
            table = super()._convert_orm_to_iceberg(orm_table)
            self._keep(location, table.metadata)
            return table
        return Table(
            identifier=(*Catalog.identifier_to_tuple(orm_table.table_namespace), orm_table.table_name),
            metadata=known,
            metadata_location=location,
            io=self._load_file_io(known.properties, location),
            catalog=self,
        )

    @staticmethod
    def _write_metadata(metadata: TableMetadata, io: FileIO, metadata_path: str) -> None:
        # pyiceberg makes a file access of its own where it creates a table
        metadata_files.write(metadata, LakeFileIO(io.properties), metadata_path)

    def commit_table(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        answer = (
            self._committed(table, requirements, updates)
            if self.engine.dialect.supports_sane_rowcount
            else super().commit_table(table, requirements, updates)
        )
        self._keep(answer.metadata_location, answer.metadata)
        with self._lock:
            self._forget(str(table.metadata_location))
        return answer

    def _committed(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        """:raises CommitFailedException: the table has another version now, or is gone."""
        staged = self._update_and_stage_table(table, table.name(), requirements, updates)
        location = staged.metadata_location
        self._write_metadata(staged.metadata, staged.io, location)
        entry = {**self._entry(table.name()), "before": table.metadata_location, "after": location}
        with self.engine.begin() as connection:
            is_moved = connection.execute(_MOVED, entry).rowcount > 0
        if not is_moved:
            with suppress(OSError):
                staged.io.delete(location)
            raise CommitFailedException(f"{'.'.join(table.name())} has another version now")
        return CommitTableResponse(metadata=staged.metadata, metadata_location=location)

    def load_table(self, identifier: str | Identifier) -> Table:
        entry = self._entry(Catalog.identifier_to_tuple(identifier))
        kinds = self._iceberg_type_filter()
        with self.engine.connect() as connection:
            location = connection.scalar(_LOCATION if kinds is None else _LOCATION.where(kinds), entry)
        if location is None:
            raise NoSuchTableError(f"there is no table {entry['namespace']}.{entry['name']}")
        found = IcebergTables(
            catalog_name=self.name,
            table_namespace=entry["namespace"],
            table_name=entry["name"],
            metadata_location=location,
            previous_metadata_location=None,
        )
        return self._convert_orm_to_iceberg(found)

    def _entry(self, identifier: Identifier) -> dict[str, str]:
        """Return the parameters that name a table in the statements."""
        namespace = Catalog.namespace_to_string(Catalog.namespace_from(identifier))
        return {"catalog": self.name, "namespace": namespace, "name": Catalog.table_name_from(identifier)}

    def _update_and_stage_table(
        self,
        current_table: Table | None,
        table_identifier: Identifier,
        requirements: tuple[TableRequirement, ...],
        updates: tuple[TableUpdate, ...],
    ) -> StagedTable:
        if current_table is None or not all(isinstance(item, _OF_REFS) for item in updates):
            return super()._update_and_stage_table(current_table, table_identifier, requirements, updates)
        known = current_table.metadata
        named = {known.current_snapshot_id, *(ref.snapshot_id for ref in known.refs.values())}
        named |= {item.snapshot_id for item in updates if isinstance(item, SetSnapshotRefUpdate)}
        few = [item for item in known.snapshots if item.snapshot_id in named]
        thin = Table(
            identifier=table_identifier,
            metadata=known.model_copy(update={"snapshots": few, "snapshot_log": [], "metadata_log": []}),
            metadata_location=current_table.metadata_location,
            io=current_table.io,
            catalog=self,
        )
        staged = super()._update_and_stage_table(thin, table_identifier, requirements, updates)
        new = staged.metadata
        whole = {
            "snapshots": [*known.snapshots, *new.snapshots[len(few) :]],
            "snapshot_log": [*known.snapshot_log, *new.snapshot_log],
            "metadata_log": [*known.metadata_log, *new.metadata_log][-_versions_max(new) :],
        }
        return StagedTable(
            identifier=staged.name(),
            metadata=new.model_copy(update=whole),
            metadata_location=staged.metadata_location,
            io=staged.io,
            catalog=self,
        )


def _size(metadata: TableMetadata) -> int:
    return max(len(metadata.snapshots), 1)


def _keep_journal(connection: sqlite3.Connection, _: object) -> None:
    """Let SQLite empty its journal after a transaction, in place of removing the file: half the time of a commit, in
    which other tables wait. A file in another mode, as others may have chosen, stays in it."""
    [mode] = connection.execute("PRAGMA journal_mode").fetchone()
    if mode == "delete":
        connection.execute("PRAGMA journal_mode = truncate")


def _versions_max(metadata: TableMetadata) -> int:
    """Return how many earlier metadata files a table names, by its own property."""
    default = TableProperties.METADATA_PREVIOUS_VERSIONS_MAX_DEFAULT
    found = property_as_int(metadata.properties, TableProperties.METADATA_PREVIOUS_VERSIONS_MAX, default)
    return max(default if found is None else found, 1)

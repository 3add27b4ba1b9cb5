"""Manifests of an Iceberg table: the files of its current snapshot, and the manifests of the next one.

pyiceberg writes manifests of data files only, and of format version 2; those of deletes differ by one word in their
header, and those of version 3 by some fields (``row_ids``). A manifest never changes, so its entries are kept in memory
once they were read.
"""

from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Final
from uuid import uuid4

from pyiceberg.avro.file import AvroOutputFile
from pyiceberg.io import FileIO
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriterV2,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.typedef import TableVersion

from agent.errors import TableForeignError
from agent.sinks.iceberg.table import row_ids
from agent.sinks.iceberg.table.errors import storage_errors
from agent.sinks.iceberg.table.files import VECTORS_VERSION, Vector
from agent.sinks.iceberg.table.layout import Values
from agent.sinks.iceberg.table.metadata import avro
from agent.sinks.iceberg.table.row_ids import RowIds
from agent.sinks.iceberg.table.specs import Specs

#: lists of manifests that are kept in memory, each of up to some dozens
_LISTS_MAX: Final = 1_000
#: entries that are kept in memory, over all tables
_ENTRIES_MAX: Final = 50_000
#: manifests of one kind with at most so many entries are joined when there are ``_JOIN_MANIFESTS`` of them
_JOIN_ENTRIES: Final = 2_000
_JOIN_MANIFESTS: Final = 16

#: a manifest's path, whether it is read as one of version 3, and the first id of its rows
_Name = tuple[str, bool, int | None]
_cache: OrderedDict[_Name, tuple[ManifestEntry, ...]] = OrderedDict()
#: by path, and by the table's version: it says what is read of a list
_lists: OrderedDict[tuple[str, int], tuple[ManifestFile, ...]] = OrderedDict()
_cached = 0
_lock = Lock()


#: where a file is: the id of a partition spec, and the values of its partition
Home = tuple[int, Values]


#: which file of a table it is: the path, and where in it a deletion vector begins
FileKey = tuple[str, int]


def file_key(file: DataFile) -> FileKey:
    vector = row_ids.vector_of(file)
    return str(file.file_path), 0 if vector is None else vector.offset


@dataclass(frozen=True, slots=True, eq=False)
class LiveFile:
    """A file of the current snapshot, and the manifest that names it."""

    entry: ManifestEntry
    manifest: str

    @property
    def file(self) -> DataFile:
        return self.entry.data_file

    @property
    def path(self) -> str:
        return str(self.entry.data_file.file_path)

    @property
    def vector(self) -> Vector | None:
        """Of a deletion vector, whose path others may have too."""
        return row_ids.vector_of(self.file)

    @property
    def key(self) -> FileKey:
        return file_key(self.file)

    @property
    def sequence(self) -> int:
        return self.entry.sequence_number or 0

    @property
    def home(self) -> Home:
        partition = self.entry.data_file.partition
        return self.entry.data_file.spec_id, tuple(partition[at] for at in range(len(partition)))


@dataclass(frozen=True, slots=True, eq=False)
class Live:
    """The files of a table's current snapshot."""

    manifests: tuple[ManifestFile, ...] = ()
    data: tuple[LiveFile, ...] = ()
    deletes: tuple[LiveFile, ...] = ()

    @property
    def keys(self) -> frozenset[FileKey]:
        return keys((*self.data, *self.deletes))


def keys(files: Iterable[LiveFile]) -> frozenset[FileKey]:
    return frozenset(item.key for item in files)


def listed(table: Table, snapshot: Snapshot) -> tuple[ManifestFile, ...]:
    """Return the manifests of a snapshot."""
    with _lock:
        found = _lists.get((snapshot.manifest_list, table.metadata.format_version))
    if found is not None:
        return found
    if table.metadata.format_version < VECTORS_VERSION:
        return tuple(snapshot.manifests(table.io))
    return row_ids.read_list(table.io, snapshot.manifest_list)


def keep_list(table: Table, path: str, found: Sequence[ManifestFile]) -> None:
    """Keep a list of manifests that was written just now: the next commit begins with it."""
    with _lock:
        _lists[path, table.metadata.format_version] = tuple(found)
        while len(_lists) > _LISTS_MAX:
            _lists.popitem(last=False)


def live(table: Table, snapshot_id: int | None = None) -> Live:
    """Return the files of a snapshot; None: the current one.

    :raises TableForeignError: rows are deleted by value, which Weir never does.
    """
    snapshot = table.current_snapshot() if snapshot_id is None else table.metadata.snapshot_by_id(snapshot_id)
    if snapshot is None:
        return Live()
    with storage_errors(".".join(table.name()), "read the manifests of"):
        manifests = listed(table, snapshot)
        found = [LiveFile(entry, item.manifest_path) for item in manifests for entry in entries(table.io, item)]
    if any(item.file.content == DataFileContent.EQUALITY_DELETES for item in found):
        raise TableForeignError(f"others have deleted rows of {'.'.join(table.name())} by value (equality deletes)")
    is_data = [item.file.content == DataFileContent.DATA for item in found]
    data = tuple(item for item, of_data in zip(found, is_data, strict=True) if of_data)
    return Live(manifests, data, tuple(item for item, of_data in zip(found, is_data, strict=True) if not of_data))


def entries(io: FileIO, manifest: ManifestFile) -> tuple[ManifestEntry, ...]:
    """Return the entries that are not deleted."""
    name = _name(manifest)
    with _lock:
        found = _cache.get(name)
        if found is not None:
            _cache.move_to_end(name)
            return found
    read = tuple(_read(io, manifest))
    _keep(name, read)
    return read


def _name(manifest: ManifestFile) -> _Name:
    return manifest.manifest_path, row_ids.is_of_version_3(manifest), row_ids.first_id(manifest)


def _read(io: FileIO, manifest: ManifestFile) -> Iterator[ManifestEntry]:
    if not row_ids.is_of_version_3(manifest):
        yield from manifest.fetch_manifest_entry(io, discard_deleted=True)
        return
    found = row_ids.inherited(row_ids.read_entries(io, manifest), manifest)
    yield from (entry for entry in found if entry.status != ManifestEntryStatus.DELETED)


def _keep(name: _Name, read: tuple[ManifestEntry, ...]) -> None:
    global _cached
    with _lock:
        if name not in _cache:
            _cache[name] = read
            _cached += len(read)
        while _cached > _ENTRIES_MAX and len(_cache) > 1:
            _, gone = _cache.popitem(last=False)
            _cached -= len(gone)


class _Writer(ManifestWriterV2):
    """A manifest of data files or of deletes."""

    def __init__(
        self, table: Table, path: str, snapshot_id: int, content: ManifestContent, spec: PartitionSpec, schema: Schema
    ) -> None:
        super().__init__(spec, schema, table.io.new_output(path), snapshot_id, avro.CODEC)
        self._content = content
        self._version: TableVersion = 3 if table.metadata.format_version == VECTORS_VERSION else 2

    @property
    def version(self) -> TableVersion:
        return self._version

    def new_writer(self) -> AvroOutputFile[ManifestEntry]:
        partition = self._spec.partition_type(self._schema)
        return avro.entries_file(self._output_file, self.version, partition, self._meta)

    def content(self) -> ManifestContent:
        return self._content

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "data" if self._content == ManifestContent.DATA else "deletes"}


def next_manifests(
    table: Table,
    before: Live,
    snapshot_id: int,
    specs: Specs,
    *,
    added: Sequence[DataFile],
    removed: Collection[FileKey],
    ids: RowIds | None = None,
) -> list[ManifestFile]:
    """Write what differs, and return all manifests of the next snapshot. ``removed``: live files. ``ids``: of new rows,
    in a table that has them."""
    found: list[ManifestFile] = []
    used = dict.fromkeys([*(item.partition_spec_id for item in before.manifests), *(file.spec_id for file in added)])
    for content in (ManifestContent.DATA, ManifestContent.DELETES):
        files = before.data if content == ManifestContent.DATA else before.deletes
        coming = [file for file in added if (file.content == DataFileContent.DATA) == (content == ManifestContent.DATA)]
        for spec_id in used:
            mine = [item for item in before.manifests if (item.content, item.partition_spec_id) == (content, spec_id)]
            here = {item.manifest_path for item in mine}
            touched = here & {item.manifest for item in files if item.key in removed}
            small = [item.manifest_path for item in mine if _count(item) <= _JOIN_ENTRIES]
            if len(small) >= _JOIN_MANIFESTS:
                touched.update(small)
            stay = [item for item in mine if item.manifest_path not in touched]
            found += stay if ids is None else [ids.given(item) for item in stay]
            new = [file for file in coming if file.spec_id == spec_id]
            changed = list(_changed(new, [item for item in files if item.manifest in touched], removed, snapshot_id))
            if changed:
                spec = specs.of(spec_id)
                found.append(_written(table, snapshot_id, content, changed, spec, specs.schema(spec), ids))
    return found


def _count(manifest: ManifestFile) -> int:
    return (manifest.added_files_count or 0) + (manifest.existing_files_count or 0)


def _changed(
    new: Iterable[DataFile], files: Iterable[LiveFile], removed: Collection[FileKey], snapshot_id: int
) -> Iterator[ManifestEntry]:
    for file in new:
        yield ManifestEntry.from_args(
            status=ManifestEntryStatus.ADDED,
            snapshot_id=snapshot_id,
            sequence_number=None,
            file_sequence_number=None,
            data_file=file,
        )
    for item in files:
        is_removed = item.key in removed
        yield ManifestEntry.from_args(
            status=ManifestEntryStatus.DELETED if is_removed else ManifestEntryStatus.EXISTING,
            snapshot_id=snapshot_id if is_removed else item.entry.snapshot_id,
            sequence_number=item.entry.sequence_number,
            file_sequence_number=item.entry.file_sequence_number,
            data_file=item.file,
        )


def _written(
    table: Table,
    snapshot_id: int,
    content: ManifestContent,
    changed: Sequence[ManifestEntry],
    spec: PartitionSpec,
    schema: Schema,
    ids: RowIds | None,
) -> ManifestFile:
    path = f"{table.metadata.location}/metadata/{uuid4()}-m{int(content)}.avro"
    with _Writer(table, path, snapshot_id, content, spec, schema) as writer:
        for entry in changed:
            writer.add_entry(entry)
    made = writer.to_manifest_file()
    made = made if ids is None else ids.given(made)
    known = _as_read(changed, table.metadata.next_sequence_number())
    _keep(_name(made), tuple(known if ids is None else row_ids.inherited(list(known), made)))
    return made


def _as_read(changed: Iterable[ManifestEntry], sequence: int) -> Iterator[ManifestEntry]:
    """Yield entries as they are read from their manifest: new ones have the number of their snapshot."""
    for entry in changed:
        if entry.status == ManifestEntryStatus.ADDED:
            yield ManifestEntry.from_args(
                status=entry.status,
                snapshot_id=entry.snapshot_id,
                sequence_number=sequence,
                file_sequence_number=sequence,
                data_file=entry.data_file,
            )
        elif entry.status != ManifestEntryStatus.DELETED:
            yield entry

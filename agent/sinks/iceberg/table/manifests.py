"""Manifests of an Iceberg table: the files of its current snapshot, and the manifests of the next one.

pyiceberg writes manifests of data files only; those of position deletes differ by one word in their header. A manifest
never changes, so its entries are kept in memory once they were read.
"""

from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Final
from uuid import uuid4

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

from agent.errors import TableForeignError
from agent.sinks.iceberg.table.errors import storage_errors
from agent.sinks.iceberg.table.layout import Values
from agent.sinks.iceberg.table.specs import Specs

_CODEC: Final = "deflate"
#: entries that are kept in memory, over all tables
_ENTRIES_MAX: Final = 50_000
#: manifests of one kind with at most so many entries are joined when there are ``_JOIN_MANIFESTS`` of them
_JOIN_ENTRIES: Final = 2_000
_JOIN_MANIFESTS: Final = 16

_cache: OrderedDict[str, tuple[ManifestEntry, ...]] = OrderedDict()
_cached = 0
_lock = Lock()


#: where a file is: the id of a partition spec, and the values of its partition
Home = tuple[int, Values]


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


def live(table: Table, snapshot_id: int | None = None) -> Live:
    """Return the files of a snapshot; None: the current one.

    :raises TableForeignError: rows are deleted by value, which Weir never does.
    """
    snapshot = table.current_snapshot() if snapshot_id is None else table.metadata.snapshot_by_id(snapshot_id)
    if snapshot is None:
        return Live()
    with storage_errors(".".join(table.name()), "read the manifests of"):
        manifests = tuple(snapshot.manifests(table.io))
        found = [LiveFile(entry, item.manifest_path) for item in manifests for entry in entries(table.io, item)]
    if any(item.file.content == DataFileContent.EQUALITY_DELETES for item in found):
        raise TableForeignError(f"others have deleted rows of {'.'.join(table.name())} by value (equality deletes)")
    is_data = [item.file.content == DataFileContent.DATA for item in found]
    data = tuple(item for item, of_data in zip(found, is_data, strict=True) if of_data)
    return Live(manifests, data, tuple(item for item, of_data in zip(found, is_data, strict=True) if not of_data))


def entries(io: FileIO, manifest: ManifestFile) -> tuple[ManifestEntry, ...]:
    """Return the entries that are not deleted."""
    with _lock:
        found = _cache.get(manifest.manifest_path)
        if found is not None:
            _cache.move_to_end(manifest.manifest_path)
            return found
    read = tuple(manifest.fetch_manifest_entry(io, discard_deleted=True))
    _keep(manifest.manifest_path, read)
    return read


def _keep(path: str, read: tuple[ManifestEntry, ...]) -> None:
    global _cached
    with _lock:
        if path not in _cache:
            _cache[path] = read
            _cached += len(read)
        while _cached > _ENTRIES_MAX and len(_cache) > 1:
            _, gone = _cache.popitem(last=False)
            _cached -= len(gone)


class _Writer(ManifestWriterV2):
    """A manifest of data files or of position deletes."""

    def __init__(
        self, io: FileIO, path: str, snapshot_id: int, content: ManifestContent, spec: PartitionSpec, schema: Schema
    ) -> None:
        super().__init__(spec, schema, io.new_output(path), snapshot_id, _CODEC)
        self._content = content

    def content(self) -> ManifestContent:
        return self._content

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "data" if self._content == ManifestContent.DATA else "deletes"}


def next_manifests(
    table: Table, before: Live, snapshot_id: int, specs: Specs, *, added: Sequence[DataFile], removed: Collection[str]
) -> list[ManifestFile]:
    """Write what differs, and return all manifests of the next snapshot. ``removed``: paths of live files."""
    found: list[ManifestFile] = []
    used = dict.fromkeys([*(item.partition_spec_id for item in before.manifests), *(file.spec_id for file in added)])
    for content in (ManifestContent.DATA, ManifestContent.DELETES):
        files = before.data if content == ManifestContent.DATA else before.deletes
        coming = [file for file in added if (file.content == DataFileContent.DATA) == (content == ManifestContent.DATA)]
        for spec_id in used:
            mine = [item for item in before.manifests if (item.content, item.partition_spec_id) == (content, spec_id)]
            here = {item.manifest_path for item in mine}
            touched = here & {item.manifest for item in files if item.path in removed}
            small = [item.manifest_path for item in mine if _count(item) <= _JOIN_ENTRIES]
            if len(small) >= _JOIN_MANIFESTS:
                touched.update(small)
            found += [item for item in mine if item.manifest_path not in touched]
            new = [file for file in coming if file.spec_id == spec_id]
            changed = list(_changed(new, [item for item in files if item.manifest in touched], removed, snapshot_id))
            if changed:
                spec = specs.of(spec_id)
                found.append(_written(table, snapshot_id, content, changed, spec, specs.schema(spec)))
    return found


def _count(manifest: ManifestFile) -> int:
    return (manifest.added_files_count or 0) + (manifest.existing_files_count or 0)


def _changed(
    new: Iterable[DataFile], files: Iterable[LiveFile], removed: Collection[str], snapshot_id: int
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
        is_removed = item.path in removed
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
) -> ManifestFile:
    path = f"{table.metadata.location}/metadata/{uuid4()}-m{int(content)}.avro"
    with _Writer(table.io, path, snapshot_id, content, spec, schema) as writer:
        for entry in changed:
            writer.add_entry(entry)
    _keep(path, tuple(_as_read(changed, table.metadata.next_sequence_number())))
    return writer.to_manifest_file()


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

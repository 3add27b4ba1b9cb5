"""Row ids of tables of format version 3 (row lineage): each row of a data file has the id of the file's first row, plus
its position.

A row that is moved into another file takes its id along, in a column of the file. An entry that comes with a commit has
no first id: the list of manifests has one for the manifest, of the first row of its first such entry, and each snapshot
says which ids it has given away (https://iceberg.apache.org/spec/#row-lineage). PyIceberg 0.12 neither reads nor writes
these fields.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.avro.file import AvroFile
from pyiceberg.io import FileIO, OutputFile
from pyiceberg.manifest import (
    MANIFEST_ENTRY_SCHEMAS,
    MANIFEST_LIST_FILE_SCHEMAS,
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestListWriterV2,
    PartitionFieldSummary,
    _inherit_from_manifest,
)
from pyiceberg.typedef import Record
from pyiceberg.types import LongType, NestedField

from agent.sinks.common.bitmaps.roaring import Positions
from agent.sinks.iceberg.table.files import VECTORS_VERSION, Vector
from agent.sinks.iceberg.table.metadata import avro

#: columns that a file has if its rows come from other files
LINEAGE: Final = (
    NestedField(2147483540, "_row_id", LongType(), required=False),
    NestedField(2147483539, "_last_updated_sequence_number", LongType(), required=False),
)
#: places of fields in records of version 3
_OF_MANIFEST: Final = 15
_FIRST_ID, _ABOUT, _OFFSET, _BYTES = 16, 17, 18, 19


class RowIds:
    """The ids that a commit gives away."""

    def __init__(self, first: int) -> None:
        self.first = self._next = first

    @property
    def count(self) -> int:
        return self._next - self.first

    def given(self, manifest: ManifestFile) -> ManifestFile:
        """Return the manifest with the first id of its rows; one of deletes, or one that has ids, as it is."""
        made = manifest if len(manifest) > _OF_MANIFEST else ManifestFile(*_fields(manifest), None)
        if manifest.content != ManifestContent.DATA or made[_OF_MANIFEST] is not None:
            return made
        made = ManifestFile(*_fields(made))
        made[_OF_MANIFEST] = self._next
        self._next += (manifest.added_rows_count or 0) + (manifest.existing_rows_count or 0)
        return made


def _fields(record: Record) -> Iterator[object]:
    return (record[at] for at in range(len(record)))


def first_id(manifest: ManifestFile) -> int | None:
    found: int | None = manifest[_OF_MANIFEST] if len(manifest) > _OF_MANIFEST else None
    return found


def is_of_version_3(manifest: ManifestFile) -> bool:
    return len(manifest) > _OF_MANIFEST


def inherited(entries: Sequence[ManifestEntry], manifest: ManifestFile) -> Iterator[ManifestEntry]:
    """Yield the entries of a manifest, each data file with the id of its first row, if it has one."""
    following = first_id(manifest)
    for entry in entries:
        file = entry.data_file
        is_mine = entry.status != ManifestEntryStatus.DELETED and file.content == DataFileContent.DATA
        if following is not None and is_mine and _get(file, _FIRST_ID) is None:
            entry = ManifestEntry(*_fields(entry))
            entry.data_file = _with_first_id(file, following)
            following += file.record_count
        yield entry


def _with_first_id(file: DataFile, number: int) -> DataFile:
    made = DataFile(*_fields(file))
    made[_FIRST_ID] = number
    made.spec_id = file.spec_id
    return made


def _get(file: DataFile, at: int) -> int | None:
    found: int | None = file[at] if len(file) > at else None
    return found


def vector_of(file: DataFile) -> Vector | None:
    """Return the place of a deletion vector; None: it is a file of another kind."""
    if file.file_format != FileFormat.PUFFIN or len(file) <= _BYTES or file[_ABOUT] is None:
        return None
    return Vector(str(file[_ABOUT]), int(file[_OFFSET]), int(file[_BYTES]))


def first_id_of(file: DataFile) -> int | None:
    """Return the id of a data file's first row; None: it has none."""
    return _get(file, _FIRST_ID)


def with_own(rows: pa.Table, file: DataFile, places: Positions, sequence: int) -> pa.Table:
    """Return rows whose columns of lineage are as they are read: what their file does not say comes from the manifest.
    ``places``: of the rows in the file, ``sequence``: the file's number."""
    first = first_id_of(file)
    if first is None:
        return rows
    of_id, of_number = (rows.schema.get_field_index(item.name) for item in LINEAGE)
    ids = pc.coalesce(rows.column(of_id), pa.array(first + places))
    numbers = pc.coalesce(rows.column(of_number), pa.scalar(sequence, pa.int64()))
    return rows.set_column(of_id, rows.field(of_id), ids).set_column(of_number, rows.field(of_number), numbers)


def read_list(io: FileIO, path: str) -> tuple[ManifestFile, ...]:
    """Read the list of a snapshot's manifests."""
    with AvroFile[ManifestFile](
        io.new_input(path),
        MANIFEST_LIST_FILE_SCHEMAS[VECTORS_VERSION],
        read_types={-1: ManifestFile, 508: PartitionFieldSummary},
        read_enums={517: ManifestContent},
    ) as reader:
        return tuple(reader)


def read_entries(io: FileIO, manifest: ManifestFile) -> list[ManifestEntry]:
    """Read all entries of a manifest, with what they inherit but the ids of rows."""
    with AvroFile[ManifestEntry](
        io.new_input(manifest.manifest_path),
        MANIFEST_ENTRY_SCHEMAS[VECTORS_VERSION],
        read_types={-1: ManifestEntry, 2: DataFile},
        read_enums={0: ManifestEntryStatus, 101: FileFormat, 134: DataFileContent},
    ) as reader:
        return [_inherit_from_manifest(entry, manifest) for entry in reader]


class ListWriter(ManifestListWriterV2):
    """The list of a snapshot's manifests. ``ids``: in version 3, those that the snapshot gives away."""

    def __init__(
        self, output: OutputFile, snapshot_id: int, parent_id: int | None, sequence: int, ids: RowIds | None
    ) -> None:
        super().__init__(output, snapshot_id, parent_id, sequence, avro.CODEC)
        if ids is not None:
            self._format_version = VECTORS_VERSION
            self._meta |= {"format-version": str(VECTORS_VERSION), "first-row-id": str(ids.first)}

    def __enter__(self) -> "ListWriter":
        self._writer = avro.list_file(self._output_file, self._format_version, self._meta)
        self._writer.__enter__()
        return self

"""Orphans: removes files below an Iceberg table's directory that no version of it names, such as those of a writer that
has died.

A file that is written just now is not named yet either, so only files older than a day go, and than the retention.
Files are listed before the newest version is read: what was committed meanwhile is named by it.
"""

import re
import time
from contextlib import suppress
from typing import Final
from urllib.parse import unquote, urlsplit

from pyarrow import fs
from pyiceberg.table import Table

from agent.sinks.iceberg.table.catalogs.lake import TablePlace
from agent.sinks.iceberg.table.errors import storage_errors
from agent.sinks.iceberg.table.io import LakeFileIO
from agent.sinks.iceberg.table.metadata import manifests

_DAY_S: Final = 86_400
_UUID: Final = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
#: names of our data files, and of PyIceberg's metadata; those of other writers are theirs to remove: the directory may
#: be that of a second table, which somebody has registered with the same files
_OWN_NAME: Final = re.compile(
    r"(?:(?:changes|compacted|copy|fitted|rows|schema|snapshot|vanished)-(?:[0-9A-Za-z_-]+-)?[0-9a-f]{12}"
    rf"(?:-deletes)?\.(?:parquet|puffin)|\d{{5,}}-{_UUID}\.metadata\.json|snap-\d+-\d+-{_UUID}\.avro|{_UUID}-m\d+\.avro)"
    r"(?:\.[0-9a-f]{8}\.tmp)?",
    re.ASCII,
)


def remove_orphans(place: TablePlace, *, retention_s: int) -> int:
    """Return how many files were removed.

    :raises SinkError: the catalog or the storage fails.
    """
    io, before = place.opened().io, time.time() - max(retention_s, _DAY_S)
    if not isinstance(io, LakeFileIO):
        return 0
    with storage_errors(place, "list the files of"):
        found = _old_files(io, place.opened().metadata.location, before)
        if not found:
            return 0
        named = _named(place.opened())
    orphans = [path for path in found if _name(path) not in named]
    for path in orphans:
        with suppress(OSError):
            io.delete(path)
    return len(orphans)


def _old_files(io: LakeFileIO, location: str, before: float) -> list[str]:
    scheme, netloc, root = io.parse_location(location, io.properties)
    store = io.fs_by_scheme(scheme, netloc)
    found = []
    for part in ("data", "metadata"):
        for item in store.get_file_info(fs.FileSelector(f"{root}/{part}", allow_not_found=True, recursive=True)):
            is_file = item.type == fs.FileType.File and _OWN_NAME.fullmatch(item.base_name)
            if is_file and item.mtime is not None and item.mtime.timestamp() < before:
                found.append(f"{location.rstrip('/')}/{part}{item.path.removeprefix(f'{root}/{part}')}")
    return found


def _named(table: Table) -> set[str]:
    """Return the names of all files that a version of the table names. Names have identifiers in them, so that a path
    that is written in another way (``s3a``, ``file:/``) is the same file's."""
    metadata = table.metadata
    paths = [table.metadata_location, *(item.metadata_file for item in metadata.metadata_log)]
    paths += [item.statistics_path for item in (*metadata.statistics, *metadata.partition_statistics)]
    for snapshot in metadata.snapshots:
        paths.append(snapshot.manifest_list)
        for manifest in manifests.listed(table, snapshot):
            paths.append(manifest.manifest_path)
            paths += [str(entry.data_file.file_path) for entry in manifests.entries(table.io, manifest)]
    return {_name(path) for path in paths}


def _name(path: str) -> str:
    return unquote(urlsplit(path).path).rsplit("/", 1)[-1]

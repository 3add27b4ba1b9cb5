"""Deletion vectors of format version 3: the deleted rows of a data file as a roaring bitmap, in a Puffin file.

A commit writes one Puffin file (https://iceberg.apache.org/puffin-spec/). It has a blob ``deletion-vector-v1`` for each
data file that loses rows in the commit. A data file has at most one vector, so the new blob also contains the rows that
earlier commits deleted, and replaces their vector. A manifest's entry names the place of a blob within its file, so
readers of a table do not read the footer.
"""

import json
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import version
from typing import Any, Final
from uuid import uuid4

from pyiceberg.io import FileIO

from agent.errors import RESYNC, TableHeldError
from agent.sinks.common.bitmaps import roaring
from agent.sinks.common.bitmaps.roaring import Positions
from agent.sinks.iceberg.table import io as files_io
from agent.sinks.iceberg.table.errors import storage_errors
from agent.sinks.iceberg.table.files import TableFile, Vector
from agent.sinks.iceberg.table.metadata.manifests import Home

_PUFFIN: Final = b"PFA1"
_KIND: Final = "deletion-vector-v1"
#: the id of the column of row positions, ``_pos``
_POSITION_ID: Final = 2147483645
#: of a blob's snapshot and sequence number: those of the commit
_INHERITED: Final = -1
_NO_FLAGS: Final = bytes(4)
_FRAME_BYTES: Final = 8
#: more rows than a data file has, each as a bit
_VECTOR_BYTES_MAX: Final = 64 << 20
#: bytes between two blobs that are read with them
_GAP_BYTES: Final = 256 << 10


def blob(positions: Positions) -> bytes:
    """Return a vector as it is stored: length, bitmap, checksum. ``positions`` are strictly increasing."""
    bitmap = roaring.encode(positions)
    return struct.pack(">I", len(bitmap)) + bitmap + struct.pack(">I", zlib.crc32(bitmap))


def positions_of(data: bytes, path: str) -> Positions:
    """Return the positions of a blob.

    :raises TableHeldError: it is damaged.
    """
    with suppress(struct.error, ValueError):
        (length,) = struct.unpack_from(">I", data)
        bitmap = data[4 : 4 + length]
        (checksum,) = struct.unpack_from(">I", data, 4 + length)
        found = roaring.decode(bitmap) if checksum == zlib.crc32(bitmap) else None
        if found is not None and length + _FRAME_BYTES == len(data):
            return found
    raise _damaged(path)


def _damaged(path: str) -> TableHeldError:
    return TableHeldError(f"the deletion vector in {path} is damaged; bring the file back, or {RESYNC}")


def write(
    io: FileIO, directory: str, label: str, positions: Mapping[str, Positions], homes: Mapping[str, Home]
) -> list[TableFile]:
    """Write the vectors of data files into one Puffin file; none if there are no positions. ``positions``: by data
    file, strictly increasing; ``homes``: of the data files."""
    wanted = {path: places for path, places in positions.items() if len(places)}
    if not wanted:
        return []
    path = f"{directory}/{label}-{uuid4().hex[:12]}-deletes.puffin"
    blobs = {about: blob(places) for about, places in wanted.items()}
    described, places_of, at = list[dict[str, Any]](), dict[str, Vector](), len(_PUFFIN)
    for about, data in blobs.items():
        places_of[about] = Vector(about, at, len(data))
        described.append(_described(places_of[about], len(wanted[about])))
        at += len(data)
    whole = b"".join([_PUFFIN, *blobs.values(), _footer(described)])
    with storage_errors(path, "write"):
        stream = io.new_output(path).create()
        try:
            stream.write(whole)
            stream.close()
        except BaseException:
            with suppress(OSError):
                files_io.discard(stream)
            raise
    return [
        TableFile(
            path,
            len(wanted[about]),
            len(whole),
            spec_id=homes[about][0],
            values=homes[about][1],
            vector=places_of[about],
        )
        for about in wanted
    ]


def read(io: FileIO, path: str, wanted: Sequence[Vector]) -> Iterator[tuple[Vector, Positions]]:
    """Read vectors of one file, those that are near each other in one access.

    :raises SinkError: the file is missing or damaged.
    """
    if not all(vector.offset >= 0 and 0 <= vector.bytes <= _VECTOR_BYTES_MAX for vector in wanted):
        raise _damaged(path)  # memory of that size would be this capture's fault
    with storage_errors(path, "read"), io.new_input(path).open() as stream:
        for run in _runs(sorted(wanted, key=lambda vector: vector.offset)):
            begin = run[0].offset
            stream.seek(begin)
            data = stream.read(run[-1].offset + run[-1].bytes - begin)
            for vector in run:
                at = vector.offset - begin
                yield vector, positions_of(data[at : at + vector.bytes], path)


def _runs(vectors: Sequence[Vector]) -> Iterator[list[Vector]]:
    """Divide vectors in the order of their file where the bytes between two are more than a request is worth."""
    run: list[Vector] = []
    for vector in vectors:
        if run and vector.offset - (run[-1].offset + run[-1].bytes) > _GAP_BYTES:
            yield run
            run = []
        run.append(vector)
    if run:
        yield run


def _described(vector: Vector, count: int) -> dict[str, Any]:
    return {
        "type": _KIND,
        "fields": [_POSITION_ID],
        "snapshot-id": _INHERITED,
        "sequence-number": _INHERITED,
        "offset": vector.offset,
        "length": vector.bytes,
        "properties": {"referenced-data-file": vector.about, "cardinality": str(count)},
    }


def _footer(blobs: list[dict[str, Any]]) -> bytes:
    payload = json.dumps({"blobs": blobs, "properties": {"created-by": f"Weir {version('weir-cdc')}"}}).encode()
    return _PUFFIN + payload + struct.pack("<i", len(payload)) + _NO_FLAGS + _PUFFIN

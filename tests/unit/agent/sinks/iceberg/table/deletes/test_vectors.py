"""Deletion vectors as the specifications of Iceberg and Puffin have them, read here by other means."""

import json
import struct
import zlib
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.table.deletion_vector import deletion_vectors_from_puffin_file
from pyiceberg.table.puffin import PuffinFile
from pyroaring import BitMap

from agent.errors import TableHeldError
from agent.sinks.iceberg.table.deletes import vectors
from agent.sinks.iceberg.table.deletes.positions import Positions
from agent.sinks.iceberg.table.files import Vector
from agent.sinks.iceberg.table.io import LakeFileIO

_MANY = np.arange(200_000, dtype=np.int64)
#: with containers of both kinds, at their limit, and in more than one of them
_SETS: dict[str, Positions] = {
    "one": np.array([7]),
    "ends": np.array([0, 65535, 65536, 2**32 - 1]),
    "array": _MANY[: 4096 * 2 : 2],
    "bitmap": _MANY[: 4097 * 2 : 2],
    "dense": _MANY,
    "far": np.concatenate([_MANY[:5000], _MANY[:10] + (1 << 31)]),
}


def _by_the_book(blob: bytes) -> list[int]:
    """Length and checksum are big-endian, the bitmap is little-endian."""
    (length,) = struct.unpack(">I", blob[:4])
    inside, checksum = blob[4:-4], blob[-4:]
    assert len(inside) == length
    assert checksum == struct.pack(">I", zlib.crc32(inside))
    assert inside[:4] == bytes([0xD1, 0xD3, 0x39, 0x64])
    count, key = struct.unpack("<QI", inside[4:16])
    assert (count, key) == (1, 0)
    return list(BitMap.deserialize(inside[16:]))


@pytest.mark.parametrize("name", _SETS)
def test_a_blob_is_as_the_specification_says(name: str) -> None:
    blob = vectors.blob(_SETS[name])
    assert _by_the_book(blob) == _SETS[name].tolist()
    assert vectors.positions_of(blob, "x.puffin").tolist() == _SETS[name].tolist()


@given(st.sets(st.integers(0, 2**32 - 1) | st.integers(0, 70_000), min_size=1, max_size=300))
def test_every_set_is_read_as_it_was_written(some: set[int]) -> None:
    positions = np.array(sorted(some), np.int64)
    blob = vectors.blob(positions)
    assert _by_the_book(blob) == positions.tolist()
    assert vectors.positions_of(blob, "x.puffin").tolist() == positions.tolist()


@given(st.sets(st.integers(0, 2**40), max_size=300), st.booleans())
def test_what_others_write_is_read(some: set[int], has_runs: bool) -> None:
    """With runs, and with positions above 32 bits."""
    by_key: dict[int, list[int]] = {}
    for at in sorted(some):
        by_key.setdefault(at >> 32, []).append(at & 0xFFFFFFFF)
    parts = [bytes([0xD1, 0xD3, 0x39, 0x64]), struct.pack("<Q", len(by_key))]
    for key, low in by_key.items():
        bitmap = BitMap(low)
        if has_runs:
            bitmap.run_optimize()
        parts += [struct.pack("<I", key), bitmap.serialize()]
    inside = b"".join(parts)
    blob = struct.pack(">I", len(inside)) + inside + struct.pack(">I", zlib.crc32(inside))
    assert vectors.positions_of(blob, "x.puffin").tolist() == sorted(some)


@given(st.data())
def test_a_damaged_blob_is_refused(data: st.DataObject) -> None:
    blob = bytearray(vectors.blob(np.arange(0, 3000, 3)))
    if data.draw(st.booleans()):
        at = data.draw(st.integers(0, len(blob) - 1))
        blob[at] ^= data.draw(st.integers(1, 255))
    else:
        del blob[data.draw(st.integers(0, len(blob) - 1)) :]
    with pytest.raises(TableHeldError, match=r"the deletion vector in x\.puffin is damaged"):
        vectors.positions_of(bytes(blob), "x.puffin")


def test_a_file_has_what_puffin_asks_for(tmp_path: Path) -> None:
    io, homes = LakeFileIO(), {"file:///a": (0, ()), "file:///b": (1, (5,)), "file:///c": (0, ())}
    positions = {"file:///a": _SETS["ends"], "file:///b": _SETS["bitmap"], "file:///c": np.empty(0, np.int64)}
    made = vectors.write(io, f"file://{tmp_path}", "rows", positions, homes)
    [path] = {file.path for file in made}
    data = Path(path.removeprefix("file://")).read_bytes()
    assert {file.bytes for file in made} == {len(data)}
    assert [(file.spec_id, file.values) for file in made] == [(0, ()), (1, (5,))]
    assert data[:4] == data[-4:] == b"PFA1"
    length, flags = struct.unpack("<i4s", data[-12:-4])
    assert flags == bytes(4)
    assert data[-(length + 16) : -(length + 12)] == b"PFA1"
    footer = json.loads(data[-(length + 12) : -12])
    assert [blob["properties"] for blob in footer["blobs"]] == [
        {"referenced-data-file": "file:///a", "cardinality": "4"},
        {"referenced-data-file": "file:///b", "cardinality": "4097"},
    ]
    for blob, file in zip(footer["blobs"], made, strict=True):
        assert (blob["type"], blob["fields"]) == ("deletion-vector-v1", [2147483645])
        assert (blob["snapshot-id"], blob["sequence-number"]) == (-1, -1)
        assert "compression-codec" not in blob
        about = blob["properties"]["referenced-data-file"]
        assert file.vector == Vector(about, blob["offset"], blob["length"])
        [(_, found)] = vectors.read(io, path, [file.vector])
        assert found.tolist() == positions[about].tolist()
    theirs = deletion_vectors_from_puffin_file(PuffinFile(data))
    assert {found.referenced_data_file: found.to_vector().to_pylist() for found in theirs} == {
        about: positions[about].tolist() for about in ("file:///a", "file:///b")
    }


class _Counted(LakeFileIO):
    """Notes the bytes that each access reads."""

    def __init__(self) -> None:
        super().__init__()
        self.opened = 0
        self.read: list[int] = []

    def new_input(self, location: str) -> Any:
        counted, inner = self, super().new_input(location)

        class Stream(BytesIO):
            def read(self, size: int | None = -1) -> bytes:
                counted.read.append(size or 0)
                return super().read(size)

        class Input:
            def open(self) -> Stream:
                counted.opened += 1
                with inner.open() as stream:
                    return Stream(stream.read())

        return Input()


@pytest.mark.parametrize("gap", [0, 256 << 10, (256 << 10) + 1])
def test_vectors_that_are_near_are_read_together(gap: int, tmp_path: Path) -> None:
    blobs = [vectors.blob(np.arange(at, 100 * at, at)) for at in (3, 5, 7)]
    path, data = tmp_path / "some.puffin", b"PFA1"
    wanted = []
    for at, blob in enumerate(blobs):
        data += bytes(gap if at == 2 else 9)
        wanted.append(Vector(f"file:///{at}", len(data), len(blob)))
        data += blob
    path.write_bytes(data)
    counted = _Counted()
    found = dict(vectors.read(counted, f"file://{path}", wanted[::-1]))
    assert [found[vector].tolist() for vector in wanted] == [list(range(at, 100 * at, at)) for at in (3, 5, 7)]
    assert counted.opened == 1
    assert len(counted.read) == (2 if gap > 256 << 10 else 1)


def test_no_file_is_written_for_nothing(tmp_path: Path) -> None:
    assert vectors.write(LakeFileIO(), f"file://{tmp_path}", "rows", {"file:///a": np.empty(0, np.int64)}, {}) == []
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(("offset", "size"), [(-1, 8), (4, -8), (4, 1 << 62), (4, 1 << 34)])
def test_a_size_or_a_place_that_no_vector_has(offset: int, size: int, tmp_path: Path) -> None:
    """Another writer may have named any; memory that is not there would be the capture's fault, and not the table's."""
    path = tmp_path / "x.puffin"
    path.write_bytes(b"PFA1" + vectors.blob(_SETS["one"]))
    with pytest.raises(TableHeldError, match="is damaged"):
        list(vectors.read(LakeFileIO(), str(path), [Vector("a", offset, size)]))

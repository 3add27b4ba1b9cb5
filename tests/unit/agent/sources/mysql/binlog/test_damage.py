"""Damaged binlogs: whatever is in their bytes, it ends in an error of one line, soon, and in little memory.

Files and streams of all ages are changed here and there, most with checksums that fit all the same, so that the damage
comes through to whoever decodes. Kernels check no bounds by themselves: ``make matrix`` runs this file once with those
checks that numba has.
"""

import contextlib
import os
import resource
import struct
import subprocess
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from agent.errors import DecodeError, SourceError
from agent.ports.log_files import LoggedEvent
from agent.ports.source import StreamRestart
from agent.rows.arena import Arena
from agent.sources.mysql.binlog.stream import BinlogStream
from agent.sources.mysql.decode import wire
from agent.sources.mysql.decode.decode import decode
from agent.sources.mysql.decode.json import binary
from agent.sources.mysql.decode.table_map import parse_table_map
from agent.sources.mysql.inspect.file import MAGIC, open_binlog
from agent.sources.mysql.inspect.report import read_events
from agent.sources.mysql.position.positions import BinlogPosition, first_epoch
from reactor.errors import WeirError
from reactor.records.tables.schema_change import DdlRecord
from tests import binlog_files
from tests.binlog import Binlog, Line
from tests.binlog_files import number, rows, table_map
from tests.example_counts import many

AGES = sorted(binlog_files.samples())
#: what lengths, counts and types are damaged to
TELLING = (0, 1, 2, 4, 0x7F, 0x80, 0xFA, 0xFB, 0xFC, 0xFD, 0xFE, 0xFF)
RUNS = settings(max_examples=many(120), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

#: where, and what is put there
Edit = tuple[float, int | bytes]
edits = st.lists(
    st.tuples(
        st.floats(0, 1, exclude_max=True),
        st.sampled_from(TELLING) | st.integers(0, 255) | st.sampled_from([b"\xff" * 4, b"\0" * 4, b"\xff\xff\xff\x7f"]),
    ),
    min_size=1,
    max_size=6,
)


def damaged(data: bytes, begin: int, changes: Sequence[Edit]) -> bytearray:
    found = bytearray(data)
    for where, what in changes:
        at = begin + int(where * (len(found) - begin))
        piece = bytes([what]) if isinstance(what, int) else what
        found[at : at + len(piece)] = piece
    return found


def with_checksums(data: bytearray) -> bytearray:
    """So that they fit, as far as events follow each other."""
    at, has_checksums = len(MAGIC), False
    while at + wire.HEADER_BYTES <= len(data):
        length = int.from_bytes(data[at + wire.LENGTH_AT : at + wire.LENGTH_AT + 4], "little")
        if length < wire.HEADER_BYTES + 5 or at + length > len(data):
            break
        event = bytearray(data[at : at + length - 4])
        if event[wire.TYPE_AT] == wire.FORMAT_DESCRIPTION:
            has_checksums = event[-1] == 1
            event[wire.FLAGS_AT] &= ~binlog_files.IN_USE
        if has_checksums:
            data[at + length - 4 : at + length] = struct.pack("<I", zlib.crc32(event))
        at += length
    return data


def told_until_error(path: Path) -> tuple[list[LoggedEvent], str]:
    found = []
    try:
        for event in read_events(path):
            found.append(event)  # noqa: PERF402 - up to the error
    except WeirError as error:
        return found, str(error)
    return found, ""


@pytest.mark.sample(0.2)
@pytest.mark.parametrize("age", AGES)
@RUNS
@given(changes=edits, cut=st.floats(0, 1), keeps_checksums=st.booleans())
def test_a_damaged_file_is_reported_as_far_as_it_goes(
    tmp_path: Path, age: str, changes: list[Edit], cut: float, keeps_checksums: bool
) -> None:
    data = damaged(binlog_files.samples()[age].data, len(MAGIC), changes)
    data = data if keeps_checksums else with_checksums(data)
    (tmp_path / "b").write_bytes(data[: max(int(cut * 2 * len(data)), 1)])
    found, error = told_until_error(tmp_path / "b")
    assert all("\n" not in event.problem and event.position < len(data) for event in found)
    assert "\n" not in error


@RUNS
@given(st.binary(max_size=300))
def test_any_bytes_behind_a_good_head_are_reported(tmp_path: Path, tail: bytes) -> None:
    (tmp_path / "b").write_bytes(binlog_files.BinlogFile(checksum=False).data + tail)
    with contextlib.suppress(DecodeError):
        for _ in read_events(tmp_path / "b"):
            pass


def streamed(age: str, path: Path) -> bytes:
    """A sample as a server without checksums sends it."""
    path.write_bytes(binlog_files.samples()[age].data)
    log = Binlog(checksum=False).begin()
    places: set[int] = set()
    for event in list(open_binlog(path))[1:]:
        # what lies in a compressed transaction comes with it
        if event.type != wire.ROTATE and event.at not in places:
            log.add(event.type, event.body)
        places.add(event.at)
    return log.data


@pytest.mark.sample(0.2)
@pytest.mark.parametrize("age", AGES)
@RUNS
@example(changes=[(0.439453125, 127), (0.21484375, 1)])
@given(changes=edits)
def test_a_damaged_stream_ends_with_an_error_and_rows_with_theirs(
    tmp_path: Path, age: str, changes: list[Edit]
) -> None:
    head = len(Binlog(checksum=False).begin().data)
    data = damaged(streamed(age, tmp_path / "b"), head, changes)
    with contextlib.closing(Line(is_mariadb=age == "mariadb")) as line:
        line.far.sendall(bytes(data))
        line.far.shutdown(1)
        stream = BinlogStream(
            line,
            Arena(1 << 16),
            position=first_epoch("s", BinlogPosition("binlog.000001")),
            is_wanted=lambda schema_name, name: True,
            describe=lambda body: parse_table_map(body, is_mariadb=age == "mariadb").schema,
            interpret=lambda event: DdlRecord(ts=event.ts, statement=event.statement),
            pause_s=0,
        )
        with pytest.raises((SourceError, DecodeError, StreamRestart)):
            read_to_the_end(stream)


def read_to_the_end(stream: BinlogStream) -> None:
    while True:
        while stream.is_full or stream.complete_rows:  # one definition may follow another
            for batch in stream.take_chunk(Arena(1 << 16)).batches():
                with contextlib.suppress(DecodeError):
                    decode(batch.schema, batch.batch)
        stream.read(timeout_s=5)


MODIFIERS = st.binary(min_size=2, max_size=2)


@RUNS
@given(kind=st.integers(0, 255), metadata=MODIFIERS, values=st.binary(max_size=64), images=st.integers(1, 2))
@example(kind=252, metadata=b"\xff\0", values=b"\0" + b"\1" * 60, images=1)
@example(kind=246, metadata=b"\x02\x1e", values=b"\0" + b"\1" * 60, images=1)
def test_any_type_with_any_modifier_and_any_values(
    tmp_path: Path, kind: int, metadata: bytes, values: bytes, images: int
) -> None:
    """A table map and rows that have nothing to do with each other."""
    file = binlog_files.BinlogFile()
    event = wire.UPDATE_V2 if images == 2 else wire.WRITE_V2
    file.add(wire.TABLE_MAP, table_map(bytes([kind]), metadata)).add(event, rows(values, images=images))
    file.add(wire.TABLE_MAP, table_map(name="u")).add(wire.WRITE_V2, rows(number(7)))
    (tmp_path / "b").write_bytes(file.data)
    last = list(read_events(tmp_path / "b"))[-1]
    assert last.changes is not None
    assert last.changes.after.to_pylist() == [{"@1": 7}]


@RUNS
@given(st.binary(max_size=200))
@example(b"\x02" + b"\xff\xff\x06\x00" + b"\x02\x04\x00" * 3)
def test_any_bytes_as_a_document(data: bytes) -> None:
    with contextlib.suppress(ValueError):
        binary.to_text(data)


def test_a_document_whose_offsets_lead_to_one_place_ends_soon() -> None:
    """Ten levels of fifty values each, all of which are the same one: 50 to the tenth in all."""
    levels, count = 10, 50
    size = 4 + 3 * count
    data = b""
    for level in range(levels):
        left = size * (levels - level)
        data += struct.pack("<HH", count, left) + (b"\x02" + struct.pack("<H", size)) * count
    data += struct.pack("<HH", 0, 4)
    with pytest.raises(ValueError, match="overlap"):
        binary.to_text(b"\x02" + data)


def test_lengths_are_not_believed(tmp_path: Path) -> None:
    """Each says that there are gibibytes, and there are some bytes."""
    huge = struct.pack(">I", 0xFFFFFFF0)
    packed = binlog_files.rows(bytes([0x84]) + huge + zlib.compress(bytes(100)), version=1)
    inner = struct.pack("<IBIIIH", 0, wire.QUERY, 1, 0x3FFFFFFF, 0, 0) + bytes(50)
    file = binlog_files.BinlogFile().add(wire.TABLE_MAP, table_map()).add(wire.WRITE_COMPRESSED_V1, packed)
    file.add(wire.QUERY_COMPRESSED, binlog_files.query("") + bytes([0x84]) + huge + zlib.compress(bytes(100)))
    file.add(wire.TRANSACTION_PAYLOAD, binlog_files.payload(inner))
    file.data += struct.pack("<IBIIIH", 0, wire.QUERY, 1, 0x3FFFFFFF, 0, 0)
    (tmp_path / "b").write_bytes(file.data)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found, error = told_until_error(tmp_path / "b")
    assert "bytes are missing" in error
    assert [one.name for one in found if one.problem] == ["write compressed v1", "query compressed", "damage"]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000


@pytest.mark.minutes(6)
@pytest.mark.matrix
@pytest.mark.timeout(600)
def test_kernels_stay_within_their_bounds(tmp_path: Path) -> None:
    """This file again, with numba's checks."""
    kept = {"NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout", "500", __file__]
    done = subprocess.run(command, env={**os.environ, **kept}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:]

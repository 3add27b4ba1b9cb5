"""Binlog files, written by hand: with checksums and without, cut off, and no such files."""

import struct
from pathlib import Path
from zlib import crc32

import pytest

from agent.errors import DecodeError, SourceConfigError
from agent.sources.mysql.decode.wire import FORMAT_DESCRIPTION, STOP, XID
from agent.sources.mysql.inspect.file import MAGIC, FileEvent, open_binlog


def _event(kind: int, body: bytes, *, length: int | None = None) -> bytes:
    return struct.pack("<IBIIIH", 1_700_000_000, kind, 9, length or 19 + len(body), 0, 0) + body


def _checked(kind: int, body: bytes) -> bytes:
    """With its checksum."""
    event = _event(kind, body, length=19 + len(body) + 4)
    return event + crc32(event).to_bytes(4, "little")


def _description(version: str, *, checksum: int) -> bytes:
    fixed = struct.pack("<H", 4) + version.encode().ljust(50, b"\0") + bytes(5) + bytes(40)
    return _checked(FORMAT_DESCRIPTION, fixed + bytes([checksum]))


def _written(path: Path, *events: bytes, version: str = "8.0.36", checksum: int = 1) -> Path:
    path.write_bytes(MAGIC + _description(version, checksum=checksum) + b"".join(events))
    return path


def test_events_come_without_header_and_checksum(tmp_path: Path) -> None:
    file = open_binlog(_written(tmp_path / "binlog.000001", _checked(XID, b"12345678")))
    description, xid = file
    assert (description.type, description.at) == (FORMAT_DESCRIPTION, 4)
    assert xid == FileEvent(at=4 + 19 + 102, time=1_700_000_000, type=XID, server_id=9, flags=0, body=b"12345678")
    assert (file.server_version, file.is_mariadb, file.has_checksums) == ("8.0.36", False, True)


def test_a_file_without_checksums_has_whole_events(tmp_path: Path) -> None:
    path = _written(tmp_path / "b", _event(XID, b"12345678"), version="10.11.6-MariaDB-log", checksum=0)
    file = open_binlog(path)
    assert [event.body for event in file][1:] == [b"12345678"]
    assert file.is_mariadb


@pytest.mark.parametrize("kept", [1, 18, 19, 25])
def test_an_event_that_is_not_all_there_comes_behind_the_others(tmp_path: Path, kept: int) -> None:
    path = _written(tmp_path / "b", _checked(STOP, b""), _checked(XID, b"12345678")[:kept])
    assert _until_damage(path, at=4 + 19 + 102 + 23) == [FORMAT_DESCRIPTION, STOP]


@pytest.mark.parametrize("length", [7, 18, 1 << 20, 0xFFFFFFFF])
def test_an_event_of_an_impossible_length_is_not_read(tmp_path: Path, length: int) -> None:
    path = _written(tmp_path / "b", _event(XID, b"12345678crc!", length=length))
    assert _until_damage(path, at=4 + 19 + 102) == [FORMAT_DESCRIPTION]


def _until_damage(path: Path, *, at: int) -> list[int]:
    """The types of the events before it."""
    events = iter(open_binlog(path))
    found = []
    with pytest.raises(DecodeError, match=f"up to byte {at},"):  # noqa: PT012 - what came before counts
        while True:
            found.append(next(events).type)
    return found


@pytest.mark.parametrize("content", [b"", b"\xfdbin" + bytes(50), MAGIC, MAGIC + _event(XID, b"12345678")])
def test_what_is_no_binlog_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "b"
    path.write_bytes(content)
    with pytest.raises(SourceConfigError, match=f"{path} .*; "):
        open_binlog(path)


def test_an_empty_file_has_no_events(tmp_path: Path) -> None:
    assert [event.type for event in open_binlog(_written(tmp_path / "b"))] == [FORMAT_DESCRIPTION]

"""``log inspect`` on binlog files of all ages, on files that are cut off or damaged, and on what is no log at all."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from agent.log import segment
from agent.log.storage import LogDirectory
from agent.rows.batches import TableBatch
from agent.rows.schema import LOG_BATCH, Column, TableSchema
from agent.sources.mysql.decode import wire
from agent.sources.mysql.dialect import DIALECT
from agent.sources.mysql.plugin import BINLOG
from capture.cli.main import main
from capture.inspection.contents import EventView, inspect_events
from reactor.ids import Ts
from tests import binlog_files
from tests.binlog_files import BinlogFile, number, query, rows, table_map

OLD_VALUES = {
    "@1": "7", "@2": "abc", "@3": "2", "@4": "257", "@5": "123.45", "@6": "2024-01-31 12:34:56", "@7": "12:34:56",
    "@8": "2023-11-14 22:13:20+00:00", "@9": "2024", "@10": "2024-01-31", "@11": "21",
}  # fmt: skip


def written(path: Path, file: BinlogFile) -> str:
    path.write_bytes(file.data)
    return str(path)


def inspected(directory: Path, file: BinlogFile) -> list[EventView]:
    return list(inspect_events(BINLOG, written(directory / "b", file), limit=9))


def words(events: list[EventView]) -> dict[str, str]:
    return {one.event: one.what for one in events}


@pytest.mark.parametrize("age", binlog_files.samples())
def test_every_event_of_every_age_is_read(tmp_path: Path, age: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path / "b", binlog_files.samples()[age])
    assert [one.problem for one in inspect_events(BINLOG, path, limit=9) if one.problem] == []
    assert main(["log", "inspect", path, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["events"]) == len(list(inspect_events(BINLOG, path, limit=0)))


def test_nothing_that_is_to_be_copied_is_cut_off(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path / "b", binlog_files.of_57())
    assert main(["log", "inspect", path]) == 0
    assert f"{binlog_files.SOURCE}:1-5" in capsys.readouterr().out


def test_values_of_before_5_6_and_numbers_of_nameless_members(tmp_path: Path) -> None:
    events = inspected(tmp_path, binlog_files.old())
    changes = [row for one in events for row in one.rows]
    assert [row.operation for row in changes] == ["insert", "update", "delete"]
    assert [changes[0].after, changes[1].before, changes[1].after, changes[2].before] == [OLD_VALUES] * 4
    said = words(events)
    assert (said["intvar"], said["rand"], said["user var"]) == ("insert_id = 41", "seeds 11, 12", "@n = NULL")
    assert [one.what for one in events if one.event == "user var"][:4] == [
        "@x = -3", "@y = 'text'", "@z = 123.45", "@r = 1.5",
    ]  # fmt: skip
    assert (said["append block"], said["execute load"]) == ("file 9, 4 bytes", "LOAD DATA INFILE 'f'")
    assert (said["incident"], said["rotate"], said["xid"]) == ("gone", "binlog.000002:4", "77")


def test_what_later_servers_say(tmp_path: Path) -> None:
    assert words(inspected(tmp_path, binlog_files.of_56()))["rows query"] == "INSERT ..."
    of_57 = words(inspected(tmp_path, binlog_files.of_57()))
    assert of_57["previous gtids"] == f"{binlog_files.SOURCE}:1-5"
    assert (of_57["xa prepare"], of_57["view change"]) == ("X'61',X'',1", "view 15:2")
    of_8 = inspected(tmp_path, binlog_files.of_8())
    assert [row.after for one in of_8 for row in one.rows][:2] == [{"i": "1"}, {"i": "2"}]
    assert [row.after for one in of_8 for row in one.rows][2] == {
        "@1": '[{"op": "replace", "path": "$.age", "value": 26}]'
    }
    assert words(of_8)["tagged gtid"] == f"{binlog_files.SOURCE}:mine:7"
    maria = words(inspected(tmp_path, binlog_files.of_mariadb()))
    assert (maria["gtid list"], maria["checkpoint"]) == ("0-1-8", "binlog.000001")
    assert maria["mariadb gtid"] == "0-1-10 XA PREPARE X'71',X'',1"
    assert maria["query compressed"] == "USE a; CREATE TABLE u (i int)"


def test_text_of_no_known_character_set_and_inserts_with_gaps_are_shown(tmp_path: Path) -> None:
    two = table_map(b"\x0f\x03", b"\x05\0")
    gap = (5).to_bytes(6, "little") + b"\1\0\2\0" + b"\x02\x02" + number(9)
    file = BinlogFile("5.6.51").add(wire.TABLE_MAP, two)
    file.add(wire.WRITE_V2, rows(b"\0\x02\xe4\xf6" + number(8)[1:], columns=2)).add(wire.WRITE_V2, gap)
    found = [row.after for one in inspected(tmp_path, file) for row in one.rows]
    assert found == [{"@1": "0xe4f6", "@2": "8"}, {"@2": "9"}]


def test_a_relay_log_changes_its_form_in_the_midst(tmp_path: Path) -> None:
    file = BinlogFile("5.7.44-log", checksum=False, flags=0x40).add(wire.QUERY, query("BEGIN"))
    other = (
        BinlogFile("10.11.6-MariaDB").add(wire.TABLE_MAP, table_map()).add(wire.WRITE_V1, rows(number(3), version=1))
    )
    file.data += other.data[len(binlog_files.MAGIC) :]
    events = inspected(tmp_path, file)
    assert [one.what for one in events if one.event == "format description"] == [
        "5.7.44-log (relay log)",
        "10.11.6-MariaDB",
    ]
    assert [row.after for one in events for row in one.rows] == [{"@1": "3"}]


@pytest.mark.matrix
@pytest.mark.parametrize("step", [43, pytest.param(11, marks=pytest.mark.matrix)])
@pytest.mark.parametrize("age", ["5.5", "5.7", "mariadb"])
def test_a_file_that_is_cut_off_shows_what_comes_before(
    tmp_path: Path, age: str, step: int, capsys: pytest.CaptureFixture[str]
) -> None:
    data = binlog_files.samples()[age].data
    whole = [one.position for one in inspected(tmp_path, binlog_files.samples()[age])]
    for cut in sorted({*range(whole[1], len(data), step), *whole[2:]}):
        (tmp_path / "b").write_bytes(data[:cut])
        expected = [at for at in whole if at < cut and (end_of(whole, at, len(data)) <= cut)]
        code = main(["log", "inspect", str(tmp_path / "b"), "--json"])
        out, err = capsys.readouterr()
        document = json.loads(out)
        assert [one["position"] for one in document["events"]] == expected
        is_whole = cut in whole
        assert (code == 0) == is_whole
        if not is_whole:
            assert f"up to byte {end_of(whole, expected[-1], len(data))}," in err
            assert err.count("\n") == 1
            assert document["error"] in err


def end_of(positions: list[int], at: int, size: int) -> int:
    later = [other for other in positions if other > at]
    return min(later) if later else size


def test_a_damaged_file_shows_what_comes_before(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = bytearray(binlog_files.of_57().data)
    events = inspected(tmp_path, binlog_files.of_57())
    at = events[6].position
    data[at + 25] ^= 1
    (tmp_path / "b").write_bytes(data)
    assert main(["log", "inspect", str(tmp_path / "b")]) == 1
    out, err = capsys.readouterr()
    assert f"up to byte {at}, the bytes there are not those of the event's checksum" in err
    assert str(events[5].position) in out
    assert str(events[7].position) not in out


def test_all_of_a_long_file_is_shown_page_by_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = BinlogFile()
    for count in range(1200):
        file.add(wire.QUERY, query(f"SELECT {count}"))
    size = file.size
    file.add(wire.QUERY, query("SELECT 'cut off'"))
    file.data = file.data[:-1]
    assert main(["log", "inspect", written(tmp_path / "b", file)]) == 1
    out, err = capsys.readouterr()
    assert all(f"SELECT {count} " in out for count in range(1200))
    assert "cut off" not in out
    assert f"up to byte {size}," in err
    assert main(["log", "inspect", str(tmp_path / "b"), "--skip", "1000", "--count", "200", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["events"]) == 200


def test_an_event_that_cannot_be_read_does_not_hide_the_next(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = BinlogFile().add(wire.TABLE_MAP, table_map()).add(wire.WRITE_V2, rows(number(1), columns=2))
    file.add(wire.XID, b"short").add(wire.WRITE_V2, rows(number(2))).add(wire.TRANSACTION_PAYLOAD, b"\0nonsense")
    events = inspected(tmp_path, file)
    assert [one.event for one in events if one.problem] == ["write v2", "xid", "damage"]
    assert [row.after for one in events for row in one.rows] == [{"@1": "2"}]
    assert main(["log", "inspect", str(tmp_path / "b"), "--json"]) == 1
    out, err = capsys.readouterr()
    assert len(json.loads(out)["events"]) == len(events)
    assert err.startswith("error: not all of ")


def test_an_encrypted_binlog_reports_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = BinlogFile("10.11.6-MariaDB-log").add(wire.START_ENCRYPTION, bytes(17))
    at = file.size
    file.data += b"\x12\x34" * 40
    assert main(["log", "inspect", written(tmp_path / "b", file)]) == 1
    assert f"is encrypted from byte {at} on" in capsys.readouterr().err


def test_each_other_file_gets_its_own_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = pa.table({"a": [1]})
    pq.write_table(table, tmp_path / "parquet")
    with pa.ipc.new_file(tmp_path / "arrow", table.schema) as writer:
        writer.write_table(table)
    (tmp_path / "text").write_text("BEGIN;\nINSERT …\n")
    (tmp_path / "index").write_text("./binlog.000001\n./binlog.000002\n")
    (tmp_path / "empty").touch()
    (tmp_path / "encrypted").write_bytes(b"\xfdbin" + bytes(512))
    (tmp_path / "gzip").write_bytes(b"\x1f\x8b\x08")
    (tmp_path / "bytes").write_bytes(bytes(range(256)))
    (tmp_path / "magic").write_bytes(b"\xfebin")
    (tmp_path / "first").write_bytes(binlog_files.MAGIC + bytes(4) + b"\x01" + bytes(80))
    lines = {}
    for name in (
        "parquet", "arrow", "text", "index", "empty", "encrypted", "gzip", "bytes", "magic", "first", "missing", ".",
    ):  # fmt: skip
        assert main(["log", "inspect", str(tmp_path / name)]) == 1, name
        out, lines[name] = capsys.readouterr()
        assert out == ""
        assert lines[name].count("\n") == 1
        assert str(tmp_path) in lines[name]
        assert "fault in Weir" not in lines[name]
    assert "is a Parquet file" in lines["parquet"]
    assert "is an Arrow file, but no segment" in lines["arrow"]
    assert "is a text file" in lines["text"]
    assert "is an index of log files; name one that it lists, as ./binlog.000001" in lines["index"]
    assert "is empty" in lines["empty"]
    assert "is an encrypted binlog file" in lines["encrypted"]
    assert "compressed with gzip" in lines["gzip"]
    assert "by its first bytes" in lines["bytes"]
    assert "within its first event" in lines["magic"]
    assert "its server must be 5.0 or later" in lines["first"]
    assert "there is no file" in lines["missing"]
    assert "is a directory" in lines["."]


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A segment of two batches."""
    columns = (Column("i", 3, 0, "int", is_key=True),)
    batches = []
    for name in ("t", "u"):
        schema = TableSchema(1, "a", name, columns, dialect=DIALECT)
        events = [bytes([wire.WRITE_V2]) + rows(number(value)) for value in range(50)]
        data = [pa.array(range(50), pa.int64()), pa.array([0] * 50, pa.int64()), pa.array(events, pa.large_binary())]
        batches.append(TableBatch(schema, pa.record_batch(data, schema=LOG_BATCH), 1.0))
    directory = LogDirectory(str(tmp_path), changefeed="test/feed", source="s")
    place = segment.SegmentName(1, 1, Ts(0), Ts(49), Ts(49))
    return Path(segment.write(directory, place, batches).path)


def test_a_cut_segment_shows_its_whole_batches(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = own.read_bytes()
    shown = set()
    for cut in range(8, len(data), 131):
        own.write_bytes(data[:cut])
        assert main(["log", "inspect", str(own), "--json"]) == 1
        out, err = capsys.readouterr()
        assert err.count("\n") == 1
        assert "is cut off or damaged" in err
        shown.add(len(json.loads(out)["batches"]))
    assert shown == {0, 1, 2}
    own.write_bytes(data)
    assert main(["log", "inspect", str(own)]) == 0

"""``weir log inspect`` of a real server's binlog file."""

import contextlib
import json
from pathlib import Path

import pytest

from agent.sources.mysql.plugin import BINLOG
from capture.cli.main import main
from capture.embedded import EmbeddedMariaDB
from capture.inspection.contents import inspect_events
from tests.mysql_server import EmbeddedMysql, is_mariadb


@pytest.fixture(scope="module")
def path(server: EmbeddedMariaDB) -> str:
    server.execute("FLUSH LOGS")
    [[file, *_]] = server.execute("SHOW MASTER STATUS")
    server.create_database("inspected")
    server.execute("CREATE TABLE person (id int PRIMARY KEY, name varchar(20))", database="inspected")
    server.execute("INSERT INTO person VALUES (1, 'Ada'), (2, NULL)", database="inspected")
    server.execute("UPDATE person SET name = 'Grace' WHERE id = 2", database="inspected")
    return str(server.data_directory / str(file))


def test_events_are_reported_and_rows_decoded(server: EmbeddedMariaDB, path: str) -> None:
    found = list(inspect_events(BINLOG, path, limit=5))
    assert (found[0].event, found[0].position) == ("format description", 4)
    assert ("MariaDB" in found[0].what) is is_mariadb(server)
    assert any(one.event == "query" and "CREATE TABLE person" in one.what for one in found)
    inserted, updated = (one for one in found if one.rows)
    assert (inserted.table, [row.after for row in inserted.rows]) == (
        "inspected.person",
        [{"id": "1", "name": "Ada"}, {"id": "2", "name": None}],
    )
    assert updated.rows[0].operation == "update"
    assert updated.rows[0].before == {"id": "2", "name": None}


def test_a_part_of_it(path: str) -> None:
    whole = list(inspect_events(BINLOG, path, limit=1))
    assert list(inspect_events(BINLOG, path, limit=1, skip=3, count=2)) == whole[3:5]
    assert all(len(one.rows) <= 1 for one in whole)


def test_the_command_prints_it(server: EmbeddedMariaDB, path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["log", "inspect", path, "--json"]) == 0
    assert [one["event"] for one in json.loads(capsys.readouterr().out)["events"]][:2] == [
        "format description",
        "gtid list" if is_mariadb(server) else "previous gtids",
    ]
    assert main(["log", "inspect", path]) == 0
    assert "inspected.person" in capsys.readouterr().out


def test_a_damaged_event_is_named(path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    events = list(inspect_events(BINLOG, path, limit=0))
    number, at = next((index, one.position) for index, one in enumerate(events) if one.table)
    data = bytearray(Path(path).read_bytes())
    data[events[number + 1].position - 5] ^= 1  # the last byte before the checksum
    damaged = tmp_path / "binlog.000001"
    damaged.write_bytes(data)
    assert main(["log", "inspect", str(damaged)]) == 1
    assert f"up to byte {at}, the bytes there are not those of the event's checksum" in capsys.readouterr().err
    assert main(["log", "inspect", str(damaged), "--count", str(number)]) == 0


def test_a_compressed_transaction_of_mysql_is_reported(mysql: EmbeddedMysql) -> None:
    mysql.create_database("packed")
    mysql.execute("CREATE TABLE person (id int PRIMARY KEY, name varchar(200))", database="packed")
    mysql.execute("FLUSH BINARY LOGS")
    [[file, *_]] = mysql.execute("SHOW MASTER STATUS")
    with contextlib.closing(mysql.connect("packed")) as session, session.cursor() as cursor:
        cursor.execute("SET binlog_transaction_compression = ON")
        cursor.execute("INSERT INTO person SELECT seq, repeat('x', 190) FROM seq_1_to_100")
    events = list(inspect_events(BINLOG, str(mysql.data_directory / str(file)), limit=1000))
    kinds = [one.event for one in events]
    packed = kinds.index("transaction payload")
    assert kinds[packed + 1 : packed + 4] == ["query", "table map", "write v2"]
    assert kinds[-1] == "xid"
    assert sum(len(one.rows) for one in events) == 100
    assert {one.position for one in events[packed:]} == {events[packed].position}

"""Binlog events that only MySQL writes, written by a real one: each is read, and is what the statement did."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.errors import DecodeError, SourceConfigError
from agent.rows.arena import LogChunk
from agent.rows.changes import DELETE, INSERT, UPDATE, Changes
from agent.sources.mysql.decode.decode import decode
from agent.sources.mysql.position import consistency, event_list
from agent.sources.mysql.position.resume import position_at
from agent.sources.mysql.server.connection import connect
from tests.integration.agent.sources.mysql.binlog_rig import read_until, run, streaming, where
from tests.mysql_package import why_not
from tests.mysql_server import EmbeddedMysql

_DATABASE = "own"
_PACKED = "SET binlog_transaction_compression = ON"


@pytest.fixture
def table(mysql: EmbeddedMysql, request: pytest.FixtureRequest) -> str:
    mysql.execute(f"CREATE DATABASE IF NOT EXISTS {_DATABASE}")
    name = f"t_{abs(hash(request.node.nodeid)) % 10**9}"
    run(mysql, _DATABASE, f"CREATE TABLE {name} (i int PRIMARY KEY, s varchar(200), d json)")
    return name


def read(server: EmbeddedMysql, *statements: str, **options: Any) -> list[LogChunk]:
    begin = where(server)
    run(server, _DATABASE, *statements)
    with streaming(server, begin, _DATABASE, **options) as stream:
        cuts = read_until(stream, where(server), arena_bytes=options.get("arena_bytes", 1 << 20))
        assert stream.position().gtid == where(server).gtid
    return cuts


def changes_of(cuts: list[LogChunk]) -> list[Changes]:
    return [decode(batch.schema, batch.batch) for cut in cuts for batch in cut.batches()]


@pytest.mark.parametrize("session", ["SET @nothing = 1", _PACKED])
def test_a_transaction_is_read_packed_or_not(mysql: EmbeddedMysql, table: str, session: str) -> None:
    [changes] = changes_of(
        read(
            mysql, session, "BEGIN", f"INSERT INTO {table} SELECT seq, repeat('x', 100), NULL FROM seq_1_to_50",
            f"UPDATE {table} SET s = 'y' WHERE i < 3", f"DELETE FROM {table} WHERE i = 2", "COMMIT",
        )
    )  # fmt: skip
    assert changes.op.tolist() == [INSERT] * 50 + [UPDATE] * 2 + [DELETE]
    assert changes.after.column("s").to_pylist()[50:52] == ["y", "y"]
    assert len(set(changes.commit_ts.tolist())) == 1


def test_a_packed_transaction_passes_through_a_small_arena(mysql: EmbeddedMysql, table: str) -> None:
    insert = f"INSERT INTO {table} SELECT seq, repeat(char(65 + seq % 26), 150), NULL FROM seq_1_to_20000"
    cuts = read(mysql, _PACKED, insert, arena_bytes=1 << 18)
    assert len(cuts) > 3
    assert [cut.is_complete for cut in cuts] == [False] * (len(cuts) - 1) + [True]
    keys = [key for changes in changes_of(cuts) for key in changes.after.column("i").to_pylist()]
    assert keys == list(range(1, 20_001))


def test_documents_that_change_in_parts(mysql: EmbeddedMysql, table: str) -> None:
    long = "repeat('x', 200)"
    steps = [
        f"UPDATE {table} SET d = json_set(d, '$.a', 2)",
        f"UPDATE {table} SET d = json_remove(d, '$.a'), s = 'new'",
        f"UPDATE {table} SET d = json_replace(d, '$.b', 'short', '$.c[1]', json_object('k', 1.5))",
        f"UPDATE {table} SET s = 'other'",
        f"UPDATE {table} SET d = NULL",
    ]
    begin = where(mysql)
    run(
        mysql, _DATABASE, f"INSERT INTO {table} VALUES (1, '', json_object('a', 1, 'b', {long}, 'c', json_array(1, 2)))"
    )
    expected: list[Any] = []
    for step in steps:
        run(mysql, _DATABASE, "SET binlog_row_value_options = PARTIAL_JSON", step)
        expected += mysql.execute(f"SELECT s, d FROM {table}", database=_DATABASE)
    with streaming(mysql, begin, _DATABASE) as stream:
        cuts = read_until(stream, where(mysql))
    kinds = [bytes(event)[0] for cut in cuts for batch in cut.batches() for event in batch.batch["event"].to_pylist()]
    assert kinds[1] == 39  # the server did write a part only
    [changes] = changes_of(cuts)
    found = list(zip(changes.after["s"].to_pylist()[1:], changes.after["d"].to_pylist()[1:], strict=True))
    assert [(s, d and json.loads(d)) for s, d in found] == [(s, d and json.loads(d)) for s, d in expected]


def test_a_part_of_a_document_that_the_log_has_not_is_refused(mysql: EmbeddedMysql, table: str) -> None:
    run(mysql, _DATABASE, f"INSERT INTO {table} VALUES (1, '', json_object('a', 1, 'b', repeat('x', 200)))")
    session = "SET binlog_row_value_options = PARTIAL_JSON, binlog_row_image = MINIMAL"
    cuts = read(mysql, session, f"UPDATE {table} SET d = json_set(d, '$.a', 2)")
    with pytest.raises(DecodeError, match="partial JSON update whose document before is not in the log"):
        changes_of(cuts)


@pytest.mark.parametrize("session", ["SET @nothing = 1", _PACKED])
def test_images_that_are_not_full(mysql: EmbeddedMysql, table: str, session: str) -> None:
    [changes] = changes_of(
        read(
            mysql, session, "SET binlog_row_image = MINIMAL", f"INSERT INTO {table} VALUES (1, 'a', '[]')",
            f"UPDATE {table} SET s = 'b'", f"UPDATE {table} SET i = 2", f"DELETE FROM {table}",
        )
    )  # fmt: skip
    assert changes.op.tolist() == [INSERT, UPDATE, UPDATE, DELETE]
    assert changes.after.column("s").to_pylist() == ["a", "b", None, None]
    assert changes.unchanged["s"].tolist() == [False, False, True, False]
    assert changes.unchanged["d"].tolist() == [False, True, True, False]


@pytest.mark.parametrize("by_gtid", [False, True])
def test_tagged_gtids(mysql: EmbeddedMysql, table: str, by_gtid: bool) -> None:
    [changes] = changes_of(
        read(
            mysql, f"INSERT INTO {table} VALUES (1, 'none', NULL)", "SET gtid_next = 'AUTOMATIC:mine'",
            f"INSERT INTO {table} VALUES (2, 'mine', NULL)", "SET gtid_next = 'AUTOMATIC'",
            f"INSERT INTO {table} VALUES (3, 'none', NULL)", by_gtid=by_gtid,
        )
    )  # fmt: skip
    assert changes.after.column("i").to_pylist() == [1, 2, 3]
    assert ":mine:" in where(mysql).gtid


def test_the_gtids_before_a_place_are_known_from_its_file(
    mysql: EmbeddedMysql, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_list, "_AT_ONCE", 7)
    run(
        mysql,
        _DATABASE,
        "FLUSH BINARY LOGS",
        "SET gtid_next = 'AUTOMATIC:placed'",
        f"INSERT INTO {table} (i) VALUES (0)",
    )
    places = []
    for number in range(1, 9):
        run(
            mysql,
            _DATABASE,
            _PACKED if number % 2 else "SET @nothing = 1",
            f"INSERT INTO {table} (i) VALUES ({number})",
        )
        places.append(where(mysql))
    assert ":placed:" in places[0].gtid
    with connect(mysql.uri()) as connection:
        assert [position_at(connection, place.ts) for place in places] == places
        lost = consistency.gtid_at(connection, replace(places[0].binlog, file="binlog.900000"))
        assert lost is None


def test_a_table_is_created_with_its_rows_in_one_transaction(mysql: EmbeddedMysql, table: str) -> None:
    run(mysql, _DATABASE, f"INSERT INTO {table} VALUES (1, 'a', NULL), (2, 'b', NULL)")
    [cut] = read(mysql, f"CREATE TABLE {table}_copy (PRIMARY KEY (i)) AS SELECT i, s FROM {table}")
    [ddl], [changes] = cut.ddl, changes_of([cut])
    assert ddl.statement.endswith("START TRANSACTION")
    assert changes.commit_ts.tolist() == [ddl.ts] * 2
    assert changes.after.to_pylist() == [{"i": 1, "s": "a"}, {"i": 2, "s": "b"}]


def test_columns_that_mysql_only_has(mysql: EmbeddedMysql, table: str) -> None:
    columns = (
        "i int PRIMARY KEY, a int AS (i + 1) VIRTUAL, b int AS (i + 2) STORED, c int INVISIBLE DEFAULT 4, v vector(2), "
        "e varchar(10) COLLATE utf8mb4_0900_ai_ci DEFAULT (concat('ä', 'b')), p point SRID 4326"
    )
    cuts = read(
        mysql, f"CREATE TABLE {table}_own ({columns})",
        f"INSERT INTO {table}_own (i, v, p) VALUES (1, to_vector('[1, 2]'), st_srid(point(3, 4), 4326))",
    )  # fmt: skip
    [changes] = changes_of(cuts)
    [row] = changes.after.to_pylist()
    [[shape]] = mysql.execute(f"SELECT hex(st_aswkb(p, 'axis-order=long-lat')) FROM {table}_own", database=_DATABASE)
    assert row.pop("p").hex().upper() == shape
    assert row == {"i": 1, "a": 2, "b": 3, "c": 4, "v": b"\0\0\x80?\0\0\0@", "e": "äb"}


def test_what_foreign_keys_do_is_in_the_log(mysql: EmbeddedMysql, table: str) -> None:
    """Since 9.6: elsewhere nobody tells."""
    key = f"FOREIGN KEY (parent) REFERENCES {table} (i) ON DELETE CASCADE ON UPDATE CASCADE"
    run(mysql, _DATABASE, f"CREATE TABLE {table}_child (i int PRIMARY KEY, parent int, {key})")
    run(
        mysql,
        _DATABASE,
        f"INSERT INTO {table} (i) VALUES (1), (2)",
        f"INSERT INTO {table}_child VALUES (10, 1), (20, 2)",
    )
    cuts = read(mysql, f"DELETE FROM {table} WHERE i = 1", f"UPDATE {table} SET i = 3 WHERE i = 2")
    child = next(changes for changes in changes_of(cuts) if changes.schema.name == f"{table}_child")
    assert child.op.tolist() == [DELETE, UPDATE]
    assert child.before is not None
    assert child.before.column("i").to_pylist() == [10, 20]
    assert child.after.column("parent")[1].as_py() == 3


@contextmanager
def _server(directory: Path) -> Iterator[EmbeddedMysql]:
    if reason := why_not():
        pytest.skip(reason)
    settings = {"gtid_mode": "OFF", "enforce_gtid_consistency": "OFF", "binlog_checksum": "NONE"}
    with EmbeddedMysql(directory, unsafe_no_fsync=True, settings=settings) as server:
        server.create_database(_DATABASE)
        run(server, _DATABASE, "CREATE TABLE t (i int PRIMARY KEY, s varchar(200), d json)")
        yield server


@pytest.mark.matrix
def test_a_server_without_gtids_and_checksums_that_gets_them(tmp_path: Path) -> None:
    with _server(tmp_path) as server:
        begin = where(server)
        for number, session in enumerate(("SET @nothing = 1", _PACKED)):
            run(server, _DATABASE, session, f"INSERT INTO t VALUES ({number}, repeat('x', 150), NULL)")
        run(server, _DATABASE, "SET GLOBAL binlog_checksum = CRC32", "SET GLOBAL enforce_gtid_consistency = ON")
        for mode in ("OFF_PERMISSIVE", "ON_PERMISSIVE", "ON"):
            run(server, _DATABASE, f"SET GLOBAL gtid_mode = {mode}")
        run(server, _DATABASE, "INSERT INTO t VALUES (2, '', NULL)")
        end = where(server)
        with (
            streaming(server, begin, _DATABASE) as stream,
            pytest.raises(SourceConfigError, match="has no GTID; run: SET GLOBAL gtid_mode = ON_PERMISSIVE"),
        ):
            read_until(stream, end)
        run(server, _DATABASE, "SET GLOBAL gtid_mode = ON_PERMISSIVE")
        with streaming(server, begin, _DATABASE) as stream:
            [changes] = changes_of(read_until(stream, end))
            assert changes.after.column("i").to_pylist() == [0, 1, 2]
            assert stream.position().gtid == end.gtid

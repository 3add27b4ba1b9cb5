"""Older MySQLs: each is looked at, dumped and read as the newest is; what differs is how their binlogs look."""

import contextlib
from collections.abc import Iterator

import pytest

from agent.ports.source import Position, Scope, Source, StreamOrder
from agent.rows.arena import Arena
from agent.rows.changes import DELETE, INSERT, UPDATE
from agent.sources import open_source
from agent.sources.mysql.decode.decode import decode
from agent.sources.mysql.plugin import BINLOG
from agent.sources.mysql.position.positions import SourcePosition
from capture.inspection.contents import inspect_events
from reactor.records.changefeed import ChangefeedConfig, FilterConfig, SinkMode
from reactor.records.tables.table import TableRecord
from tests.integration.agent.sources.mysql.binlog_rig import read_until, run, where
from tests.mysql_package import OLDER, why_not
from tests.mysql_server import EmbeddedMysql, of_version

pytestmark = [pytest.mark.matrix, pytest.mark.timeout(300)]

DATABASE = "shop"
COLUMNS = (
    "i int PRIMARY KEY, u bigint unsigned, d decimal(20, 6), f double, s varchar(50), "
    "l varchar(20) CHARACTER SET latin1, b varbinary(20), t text, e enum('a', 'ö'), g set('x', 'y', 'z'), "
    "dt datetime(6), ts timestamp(3) NULL, da date, ti time(2), y year, bi bit(11), j json, c char(7), n binary(4)"
)
VALUES = (
    "({number}, 18446744073709551615, -12345678901234.654321, -1.5, 'ä✓', 'é', X'00FF', 'text', 'ö', 'x,z', "
    "'2024-02-29 12:34:56.654321', '2024-02-29 12:34:56.5', '1999-12-31', '-12:34:56.78', 2024, b'10101010101', "
    "'{{\"a\": [1, 2.5, \"x\", null]}}', 'char', X'0102')"
)


@pytest.fixture(scope="module", params=OLDER)
def old(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedMysql]:
    if reason := why_not(request.param):
        pytest.skip(reason)
    with of_version(request.param)(tmp_path_factory.mktemp("my"), unsafe_no_fsync=True) as server:
        server.create_database(DATABASE)
        run(server, DATABASE, f"CREATE TABLE t ({COLUMNS})")
        yield server


@pytest.fixture
def source(old: EmbeddedMysql) -> Source:
    run(old, DATABASE, "DELETE FROM t")
    config = ChangefeedConfig(filter=FilterConfig(rules=(f"{DATABASE}.t",)))
    return open_source(old.uri(), Scope("c", "feed", SinkMode.UPSERT, config))


def insert(number: int) -> str:
    return "INSERT INTO t VALUES " + VALUES.format(number=number)


def read(old: EmbeddedMysql, source: Source, begin: Position) -> list[tuple[int, dict[str, object]]]:
    """Operation and row of each change since ``begin``, and no more."""
    tables = source.discover().tables
    schemas = source.read_schemas(tables)
    streams = source.streams(StreamOrder(tables, schemas=schemas, reader=4720))
    end, found = where(old), []
    with contextlib.closing(streams.open(begin, Arena(1 << 20))) as opened:
        for cut in read_until(opened.stream, end):  # type: ignore[arg-type] # it is a binlog's
            for batch in cut.batches():
                changes = decode(batch.schema, batch.batch)
                found += list(zip(changes.op.tolist(), changes.after.to_pylist(), strict=True))
    return found


def snapshot(source: Source, at: Position) -> list[dict[str, object]]:
    [table] = source.discover().tables
    record = TableRecord(table_id=table.table_id, schema_name=DATABASE, name="t", key=("i",))
    with contextlib.closing(source.snapshot([record], at)) as view:
        return sorted(
            (row for batch in view.read(view.schema(record)) for row in batch.to_pylist()), key=lambda row: row["i"]
        )


def test_all_types_come_alike_from_the_table_and_from_the_log(old: EmbeddedMysql, source: Source) -> None:
    begin = source.begin(source.check().tables)
    run(old, DATABASE, insert(1), "INSERT INTO t (i) VALUES (2)", "UPDATE t SET s = 'new' WHERE i = 1")
    changes = read(old, source, begin)
    assert [op for op, _ in changes] == [INSERT, INSERT, UPDATE]
    assert snapshot(source, begin) == [changes[2][1], changes[1][1]]


def test_xa_transactions(old: EmbeddedMysql, source: Source) -> None:
    begin = source.begin(source.check().tables)
    run(old, DATABASE, "XA START 'a'", insert(1), "XA END 'a'", "XA PREPARE 'a'")
    held = source.begin(source.check().tables)
    run(old, DATABASE, "XA START 'b'", insert(2), "XA END 'b'", "XA PREPARE 'b'")
    run(old, DATABASE, insert(3), "XA COMMIT 'a'")
    run(old, DATABASE, "XA ROLLBACK 'b'", "XA START 'c'", insert(4), "XA END 'c'", "XA COMMIT 'c' ONE PHASE")
    assert [row["i"] for _, row in read(old, source, begin)] == [3, 1, 4]
    assert [row["i"] for _, row in read(old, source, held)] == [3, 1, 4]
    assert SourcePosition.from_json(held.text).needed.position < SourcePosition.from_json(held.text).position


@pytest.mark.parametrize("image", ["MINIMAL", "NOBLOB"])
def test_images_that_are_not_full(old: EmbeddedMysql, source: Source, image: str) -> None:
    run(old, DATABASE, insert(1))
    begin = source.begin(source.check().tables)
    run(old, DATABASE, f"SET binlog_row_image = {image}", "UPDATE t SET s = 'new' WHERE i = 1", "DELETE FROM t")
    [(_, after), (op, _)] = read(old, source, begin)
    assert (after["i"], after["s"], op) == (1, "new", DELETE)


def test_a_start_behind_each_transaction(old: EmbeddedMysql, source: Source) -> None:
    begin = source.begin(source.check().tables)
    run(old, DATABASE, insert(1), insert(2))
    middle = where(old)
    run(old, DATABASE, insert(3))
    source.check_start(begin.ts)
    for start, expected in ((begin.ts, [1, 2, 3]), (middle.resolved, [3])):
        assert [row["i"] for _, row in read(old, source, source.begin([], start))] == expected


def test_its_files_are_read_whole(old: EmbeddedMysql) -> None:
    run(old, DATABASE, "DELETE FROM t", "FLUSH BINARY LOGS")
    file = where(old).binlog.file
    statements = [insert(71), "INSERT INTO t (i) VALUES (72)", "UPDATE t SET e = 'a', j = '[1]' WHERE i = 71"]
    if old.version != "5.7":
        statements.insert(0, "SET binlog_transaction_compression = ON")
        statements.append("SET binlog_row_value_options = PARTIAL_JSON")
        statements.append("UPDATE t SET j = JSON_SET('{}', '$.a', 7) WHERE i = 72")
    run(old, DATABASE, *statements, "DELETE FROM t")
    events = list(inspect_events(BINLOG, str(old.data_directory / file), limit=100, count=None))
    assert [one.problem for one in events if one.problem] == []
    assert len([row for one in events for row in one.rows]) == len([text for text in statements if " t" in text]) + 2

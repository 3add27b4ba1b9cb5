"""A changefeed that starts at a Ts begins with the first transaction behind it, or is refused: never later."""

from pathlib import Path
from uuid import uuid4

import pytest

from agent.errors import SourceConfigError
from agent.ports.source import Scope, Source
from agent.sources import open_source
from agent.sources.mysql.position.positions import SourcePosition, pack
from agent.sources.mysql.server.connection import connect
from agent.sources.mysql.starts import start_position
from capture.embedded import EmbeddedMariaDB
from reactor.ids import Ts
from reactor.records.changefeed import ChangefeedConfig, FilterConfig, SinkMode
from tests.integration.agent.sources.mysql.binlog.test_xa import insert, made_in, prepare, rows
from tests.integration.agent.sources.mysql.binlog_rig import read_until, run, streaming, where


@pytest.fixture
def database(server: EmbeddedMariaDB) -> str:
    return made_in(server)


def source_of(server: EmbeddedMariaDB, database: str) -> Source:
    config = ChangefeedConfig(filter=FilterConfig(rules=(f"{database}.*",)))
    return open_source(server.uri(), Scope("c", "feed", SinkMode.UPSERT, config))


def read_from(server: EmbeddedMariaDB, database: str, start_ts: int) -> list[tuple[int, int]]:
    with connect(server.uri()) as connection:
        begin = start_position(connection, Ts(start_ts))
    assert begin.resolved >= start_ts
    end = where(server)
    if begin.ts >= end.ts:
        return []
    with streaming(server, begin, database) as stream:
        return rows(read_until(stream, end))


def test_every_ts_starts_with_the_transaction_behind_it(server: EmbeddedMariaDB, database: str) -> None:
    begin = where(server)
    run(server, database, insert(1), "BEGIN", insert(2), insert(3), "COMMIT", "FLUSH BINARY LOGS", insert(4))
    prepare(server, database, f"s{uuid4().hex[:6]}", insert(5))
    run(server, database, "CREATE TABLE other (i int PRIMARY KEY)", insert(6))
    end = where(server)
    known = read_from(server, database, begin.resolved)
    assert [number for _, number in known] == [1, 2, 3, 4, 6]
    starts: set[int] = {begin.resolved, end.resolved}
    for ts, _ in known:
        starts |= {ts - 1, ts, ts + 1, ts + 70}
    for start in sorted(starts):
        if start <= end.resolved:
            assert read_from(server, database, start) == [(ts, number) for ts, number in known if ts > start], start


def test_the_begin_of_a_changefeed_is_there(server: EmbeddedMariaDB, database: str) -> None:
    run(server, database, insert(1))
    begin = where(server)
    run(server, database, insert(2))
    source = source_of(server, database)
    source.check_start(begin.resolved)
    at = source.begin([], begin.resolved)
    assert SourcePosition.from_json(at.text).binlog == begin.binlog
    assert source.begin([]).ts > at.ts


@pytest.mark.matrix
def test_what_cannot_be_served_is_refused(flavour: type[EmbeddedMariaDB], tmp_path: Path) -> None:
    with flavour(tmp_path / "my", unsafe_no_fsync=True) as server:
        database = made_in(server)
        begin = where(server)
        run(server, database, insert(1), "FLUSH BINARY LOGS", insert(2))
        source, later = source_of(server, database), where(server)
        source.check_start(begin.resolved)
        while [begin.binlog.file] in [row[:1] for row in server.execute("SHOW BINARY LOGS")]:
            run(server, database, f"PURGE BINARY LOGS TO '{later.binlog.file}'")
        with pytest.raises(SourceConfigError, match=f"has no binlog file of number {begin.file_number}.*its oldest is"):
            source.check_start(begin.resolved)
        with pytest.raises(SourceConfigError, match="is past the end of"):
            source.check_start(Ts(later.resolved + 10_000))
        with pytest.raises(SourceConfigError, match="is past the end of"):
            source.check_start(pack(1, later.file_number, later.position))
        with pytest.raises(SourceConfigError, match="has no binlog file of number 0"):
            source.begin([], Ts(17))
        run(server, database, "ALTER TABLE t ADD COLUMN more int", "INSERT INTO t VALUES (3, '', 4)")
        with pytest.raises(SourceConfigError, match=rf"{database}.t was changed after the start \(ALTER TABLE t ADD"):
            source.check_start(later.resolved)
        source.check_start(where(server).resolved)


@pytest.mark.parametrize(
    ("statements", "is_refused"),
    [
        (("TRUNCATE t",), False),
        (("CREATE TABLE u (i int PRIMARY KEY)",), False),
        (("ALTER TABLE t COMMENT 'x'",), False),
        (("RENAME TABLE t TO u",), True),
        (("RENAME TABLE t TO u, u TO t",), True),
        (("DROP TABLE t", "CREATE TABLE t (i int PRIMARY KEY)"), True),
        (("ALTER TABLE t MODIFY s varchar(300)",), True),
        (("CREATE TABLE v (i int PRIMARY KEY)", "ALTER TABLE v ADD j int"), True),
    ],
)
def test_changes_of_tables_behind_the_start(
    server: EmbeddedMariaDB, database: str, statements: tuple[str, ...], is_refused: bool
) -> None:
    begin = where(server)
    run(server, database, *statements)
    source = source_of(server, database)
    if is_refused:
        with pytest.raises(SourceConfigError, match="was changed after the start"):
            source.check_start(begin.resolved)
    else:
        source.check_start(begin.resolved)

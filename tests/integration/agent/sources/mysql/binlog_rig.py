"""A stream on a real server's binlog, for tests: from where it stood, until it has read what was written."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from agent.rows.arena import Arena, LogChunk
from agent.rows.schema import TableSchema
from agent.sources.mysql.binlog.stream import BinlogStream
from agent.sources.mysql.ddl.event import DdlEvent
from agent.sources.mysql.decode.table_map import parse_table_map
from agent.sources.mysql.position.positions import SourcePosition
from agent.sources.mysql.position.resume import current_position
from agent.sources.mysql.server.connection import connect
from capture.embedded import EmbeddedMariaDB
from capture.embedded.mariadb import USER
from reactor.records.tables.schema_change import DdlRecord
from tests.mysql_server import is_mariadb
from tests.patience import HANG_S

ARENA_BYTES = 1 << 20


def where(server: EmbeddedMariaDB) -> SourcePosition:
    """The end of its binlog."""
    with connect(server.uri()) as connection:
        return current_position(connection)


def run(server: EmbeddedMariaDB, database: str, *statements: str) -> None:
    """In one session, one after the other.

    A prepared transaction is its session's until the server has ended that; this returns when others can end it.
    """
    with contextlib.closing(server.connect(database)) as session, session.cursor() as cursor:
        number = session.thread_id()
        for statement in statements:
            cursor.execute(statement)
    if statements and statements[-1].startswith("XA PREPARE"):
        while server.execute(f"SELECT 1 FROM information_schema.processlist WHERE id = {number}"):
            pass


def follow(replica: EmbeddedMariaDB, source: EmbeddedMariaDB, gtid: str) -> None:
    """Make one server a replica of the other until it has seen all of ``gtid``."""
    if is_mariadb(replica):
        host = f"master_host='127.0.0.1', master_port={source.port}, master_user='{USER}'"
        secret = f"master_password='{source.password}', master_use_gtid=slave_pos"
        run(replica, "mysql", f"CHANGE MASTER TO {host}, {secret}", "START SLAVE")
        assert replica.execute(f"SELECT MASTER_GTID_WAIT('{gtid}', 30)") == [[0]]
        run(replica, "mysql", "STOP SLAVE")
    else:
        is_renamed = tuple(map(int, replica.execute("SELECT VERSION()")[0][0].split("-")[0].split("."))) >= (8, 0, 23)
        source_word, replica_word = ("SOURCE", "REPLICA") if is_renamed else ("MASTER", "SLAVE")
        change = "CHANGE REPLICATION SOURCE TO" if is_renamed else "CHANGE MASTER TO"
        fields = {"HOST": "'127.0.0.1'", "PORT": source.port, "USER": f"'{USER}'", "PASSWORD": f"'{source.password}'"}
        named = [f"{source_word}_{field}={value}" for field, value in fields.items()]
        key = ", GET_SOURCE_PUBLIC_KEY=1" if is_renamed else ""
        run(
            replica,
            "mysql",
            f"{change} {', '.join(named)}, {source_word}_AUTO_POSITION=1{key}",
            f"START {replica_word}",
        )
        assert replica.execute(f"SELECT WAIT_FOR_EXECUTED_GTID_SET('{gtid}', 30)") == [[0]]
        run(replica, "mysql", f"STOP {replica_word}")


def describe(server: EmbeddedMariaDB) -> Callable[[bytes], TableSchema]:
    """What its table maps say."""
    return lambda body: parse_table_map(body, is_mariadb=is_mariadb(server)).schema


def changed(event: DdlEvent) -> DdlRecord:
    return DdlRecord(ts=event.ts, statement=event.statement)


@contextlib.contextmanager
def streaming(
    server: EmbeddedMariaDB,
    begin: SourcePosition,
    database: str,
    *,
    by_gtid: bool = False,
    arena_bytes: int = ARENA_BYTES,
    query: str = "",
    server_id: int = 4711,
    **options: Any,
) -> Iterator[BinlogStream]:
    with connect(server.uri() + query) as connection:
        mine: dict[str, Any] = {"is_wanted": lambda schema_name, name: schema_name == database}
        options = {**mine, "describe": describe(server), "interpret": changed, **options}
        stream = BinlogStream(
            connection,
            Arena(arena_bytes),
            position=begin,
            **options,
        )
        stream.start(server_id=server_id, by_gtid=by_gtid)
        yield stream


def read_until(stream: BinlogStream, end: SourcePosition, *, arena_bytes: int = ARENA_BYTES) -> list[LogChunk]:
    """Everything before ``end``, cut where it must be and once more there."""
    cuts = []
    while stream.resolved_ts < end.resolved or stream.is_full:
        if stream.is_full:
            cuts.append(stream.take_chunk(Arena(arena_bytes)))
        else:
            assert stream.read(timeout_s=HANG_S), "the server sends nothing"
    return [*cuts, stream.take_chunk(Arena(arena_bytes))] if stream.complete_rows else cuts


def lines(cuts: list[LogChunk]) -> list[tuple[str, int, int, bytes]]:
    """Table, commit Ts, ordinal and event, by table and in order."""
    return [
        (batch.schema.name, row["commit_ts"], row["seq"], row["event"])
        for cut in cuts
        for batch in cut.batches()
        for row in batch.batch.to_pylist()
    ]

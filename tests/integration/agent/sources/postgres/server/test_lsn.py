"""The end of the server's log, and where a stream of an idle server is."""

from collections.abc import Iterator

import pytest

from agent.sources.postgres.server.connection import Connection, connect
from agent.sources.postgres.server.lsn import END_SQL, last_ts
from capture.embedded import EmbeddedPostgres

_PAGE_BYTES = 8192


@pytest.fixture
def connection(postgres: EmbeddedPostgres) -> Iterator[Connection]:
    with connect(postgres.uri()) as connection:
        yield connection


def write(connection: Connection, size: int) -> int:
    """Write a record of that many bytes, and more; return where it ends."""
    connection.query(f"SELECT pg_logical_emit_message(true, 'test', repeat('x', {size}))")
    [[flushed]] = connection.query("SELECT (pg_current_wal_flush_lsn() - '0/0')::int8")
    return int(flushed or 0)


def test_a_log_that_ends_with_a_page_has_no_position_behind_it(connection: Connection) -> None:
    ends = set[int]()
    before, end = write(connection, 64), write(connection, 64)
    for _ in range(100):
        rest = -end % _PAGE_BYTES - (end - before - 64)
        before, end = end, write(connection, rest if rest > 0 else 64)
        ends.add(end % _PAGE_BYTES)
        [numbers] = connection.query(f"SELECT {END_SQL}")
        assert last_ts(*(int(number or 0) for number in numbers)) == end - 1
    assert 0 in ends

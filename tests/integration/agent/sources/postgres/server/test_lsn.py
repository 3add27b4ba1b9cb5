"""The end of the server's log, and where a stream of an idle server is."""

from collections.abc import Iterator

import pytest

from agent.sources.postgres.server.connection import Connection, connect
from agent.sources.postgres.server.lsn import END_SQL, last_ts
from capture.embedded import EmbeddedPostgres

_PAGE_BYTES = 8192
_LONG = 304  # bytes: a record of more than 255 has a longer header; records begin at multiples of 8


@pytest.fixture(scope="module")
def connection(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connection]:
    """Of a server to which nobody else writes, and which does not vacuum what other tests have left."""
    with (
        EmbeddedPostgres(tmp_path_factory.mktemp("postgres"), unsafe_no_fsync=True) as server,
        connect(server.uri()) as connection,
    ):
        yield connection


def write(connection: Connection, size: int) -> int:
    """Write a record of that many bytes, and more; return where it ends."""
    connection.query(f"SELECT pg_logical_emit_message(true, 'test', repeat('x', {size}))")
    return flushed(connection)


def flushed(connection: Connection) -> int:
    [[flushed]] = connection.query("SELECT (pg_current_wal_flush_lsn() - '0/0')::int8")
    return int(flushed or 0)


def last_record(connection: Connection, end: int) -> bool:
    """Hold the last position against a record that ends at ``end``; False if another process has written behind it."""
    [numbers] = connection.query(f"SELECT {END_SQL}")
    insert, page, segment = (int(number or 0) for number in numbers)
    if insert - end > 40:  # more than the longest header
        return False
    assert last_ts(insert, page, segment) == end - 1
    return True


def test_the_last_position_is_the_last_byte_of_the_last_record(connection: Connection) -> None:
    assert any(last_record(connection, write(connection, size)) for size in (64, 64, 64))


def test_a_log_that_ends_with_a_page_has_no_position_behind_it(connection: Connection) -> None:
    for _ in range(100):
        begin = flushed(connection)
        end = write(connection, _LONG)
        rest, overhead = -end % _PAGE_BYTES, end - begin - _LONG
        if rest >= overhead + _LONG:
            end = write(connection, rest - overhead)
            if end % _PAGE_BYTES == 0 and last_record(connection, end):
                return
    pytest.fail("no record ended with a page")


def test_a_log_that_ends_with_a_segment_has_no_position_behind_it(connection: Connection) -> None:
    for _ in range(10):
        write(connection, _LONG)
        [[switched]] = connection.query("SELECT (pg_switch_wal() - '0/0')::int8")  # where the switch's record ends
        [[segment]] = connection.query("SELECT pg_size_bytes(current_setting('wal_segment_size'))")
        if last_record(connection, int(switched or 0) + -int(switched or 0) % int(segment or 0)):
            return
    pytest.fail("no record ended with a segment")

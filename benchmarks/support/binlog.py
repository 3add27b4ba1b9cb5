"""Binlog peer: python-mysql-replication."""

from pymysqlreplication import BinLogStreamReader
from pymysqlreplication.row_event import WriteRowsEvent

from benchmarks.support.servers import MariaServer
from capture.embedded.mariadb import USER


def binlog_reader(found: MariaServer, place: tuple[str, int], *, blocking: bool = False) -> BinLogStreamReader:
    """Read the inserted rows from a binlog position on."""
    part = found.part
    return BinLogStreamReader(
        connection_settings={"host": "127.0.0.1", "port": part.port, "user": USER, "password": part.password},
        server_id=4_000,
        log_file=place[0],
        log_pos=place[1],
        resume_stream=True,
        blocking=blocking,
        only_events=[WriteRowsEvent],
        is_mariadb=False,
        freeze_schema=True,
    )

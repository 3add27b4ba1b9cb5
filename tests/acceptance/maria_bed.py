"""The test bed on MariaDB: sysbench writes to eight tables, and what must hold is looked at with others' readers."""

import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from pymysqlreplication import BinLogStreamReader
from pymysqlreplication.row_event import DeleteRowsEvent, UpdateRowsEvent, WriteRowsEvent

from agent.sources.mysql.position.positions import pack, split_file_name
from capture.embedded import EmbeddedMariaDB, children
from capture.embedded.mariadb import USER
from reactor.records.changefeed import FeedState
from tests.acceptance.bed import Bed

DATABASE = "sbtest"
TABLES = tuple(f"sbtest{number}" for number in range(1, 9))
ROWS = 2_000
_THREADS = 2
#: of an XID event with its checksum
_COMMIT_BYTES = 31

#: change type → how many
Counts = dict[str, int]


class MariaBed(Bed):
    """As ``Bed``; tables are sysbench's."""

    def __init__(self, directory: Path, *, captures: int) -> None:
        super().__init__(directory, captures=captures)
        self.mariadb = EmbeddedMariaDB(directory / "mariadb")

    @property
    def source_uri(self) -> str:
        return self.mariadb.uri(DATABASE)

    def start_source(self) -> None:
        self.mariadb.start()
        self.mariadb.create_database(DATABASE)
        self.sysbench("prepare").wait()

    def stop_source(self) -> None:
        self.mariadb.stop()

    def execute(self, sql: str) -> list[list[object]]:
        return self.mariadb.execute(sql, database=DATABASE)

    def sysbench(self, command: str, **options: int) -> children.Child:
        """``oltp_read_write``; continues until it is stopped."""
        settings = {"tables": len(TABLES), "table_size": ROWS, "time": 600, "threads": _THREADS, **options}
        argv = ["sysbench", f"--config-file={self._secret()}", "oltp_read_write", "--db-driver=mysql"]
        argv += [f"--mysql-socket={self.mariadb.socket}", f"--mysql-user={USER}", f"--mysql-db={DATABASE}"]
        # what a killed session leaves is met by the next statement; rows that are gone are no failure of ours
        argv += ["--mysql-ignore-errors=all", *(f"--{name}={value}" for name, value in settings.items()), command]
        with (self.directory / "sysbench.log").open("ab") as output:
            return children.spawn(argv, output=output)

    def _writer(self, rate: int) -> children.Child:
        return self.sysbench("run", rate=rate)

    def _secret(self) -> Path:
        path = self.directory / "sysbench.cnf"
        path.touch(mode=0o600)
        path.write_text(f"mysql-password={self.mariadb.password}\n")
        return path

    def place(self) -> tuple[str, int]:
        [[file, position, *_]] = self.execute("SHOW MASTER STATUS")
        return str(file), int(str(position))

    def binlogs(self) -> list[str]:
        return [str(row[0]) for row in self.execute("SHOW BINARY LOGS")]

    def purge(self, first: str) -> bool:
        """Files before ``first`` are gone. One that somebody reads just now is kept without a word."""
        self.execute(f"PURGE BINARY LOGS TO '{first}'")
        return self.binlogs()[0] == first

    def readers(self) -> int:
        return len(self.execute("SELECT id FROM information_schema.processlist WHERE command = 'Binlog Dump'"))

    # What must hold

    def flows(self, feed: str, tables: Collection[str]) -> bool:
        """Return whether these are its tables, and none waits; the state follows a held table in the next round."""
        view = self.query(feed)
        waits = view.joining or view.held or view.resyncs
        return {one.table for one in view.tables} == {*tables} and view.state is FeedState.NORMAL and not waits

    def source_rows(self, table: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self.execute(f"SELECT id, k, c, pad FROM {table} ORDER BY id")]

    def sink_rows(self, feed: str, table: str) -> list[tuple[Any, ...]]:
        found = self.delta(feed, table).select(["id", "k", "c", "pad"]).sort_by("id")
        return list(zip(*(column.to_pylist() for column in found.columns), strict=True))

    def last_rows(self, feed: str, table: str) -> list[tuple[Any, ...]]:
        """What the changes of a changelog come to."""
        log = self.delta(feed, table).sort_by([("_commit_version", "ascending"), ("_commit_seq", "ascending")])
        rows: dict[int, tuple[Any, ...]] = {}
        for change in log.to_pylist():
            if change["_change_type"] in ("insert", "update_postimage"):
                rows[change["id"]] = (change["id"], change["k"], change["c"], change["pad"])
            elif change["_change_type"] == "delete":
                del rows[change["id"]]
        return [rows[key] for key in sorted(rows)]

    def logged(self, feed: str, table: str, *, after_ts: int) -> Counts:
        """How many changes of each type a changelog has behind a Ts."""
        log = self.delta(feed, table)
        kinds = log.filter(pc.greater(log["_commit_version"], after_ts))["_change_type"]
        return {item["values"]: item["counts"] for item in pc.value_counts(kinds).to_pylist()}

    def written(self, place: tuple[str, int]) -> dict[str, Counts]:
        """The same, as another reader of the binlog counts it from a place on, table by table. Nobody writes any more,
        so it ends where the binlog does: left alone the reader would connect again and again."""
        last_file, last_position = self.place()
        reader = BinLogStreamReader(
            connection_settings={
                "host": "127.0.0.1",
                "port": self.mariadb.port,
                "user": USER,
                "password": self.mariadb.password,
            },
            server_id=4_000,
            log_file=place[0],
            log_pos=place[1],
            resume_stream=True,
            only_events=[WriteRowsEvent, UpdateRowsEvent, DeleteRowsEvent],
            only_schemas=[DATABASE],
            is_mariadb=False,
            freeze_schema=True,
        )
        kinds = {
            WriteRowsEvent: ("insert",),
            UpdateRowsEvent: ("update_preimage", "update_postimage"),
            DeleteRowsEvent: ("delete",),
        }
        counts: dict[str, Counts] = {}
        try:
            for event in reader:
                for kind in kinds[type(event)]:
                    table = counts.setdefault(event.table, {})
                    table[kind] = table.get(kind, 0) + len(event.rows)
                # the commit of the last transaction is no event for us
                if reader.log_file == last_file and reader.log_pos >= last_position - _COMMIT_BYTES:
                    break
        finally:
            reader.close()
        return counts

    def delta(self, feed: str, table: str) -> pa.Table:
        return DeltaTable(self.lake(feed) / DATABASE / table).to_pyarrow_table()


def ts_of(place: tuple[str, int]) -> int:
    """The last Ts before a place in the one server's binlog."""
    return pack(0, split_file_name(place[0])[1], place[1]) - 1


def is_installed() -> bool:
    return shutil.which("sysbench") is not None

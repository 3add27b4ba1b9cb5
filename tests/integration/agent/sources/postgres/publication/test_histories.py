"""Random histories of publications, of tables and schemas in them, on a real server: every row that a table ever got is
in the log, or the table is held, or the position is lost. What nobody touched is neither."""

from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Final

import anyio
import pytest

from agent.errors import PositionLostError
from agent.settings import SyncSettings
from agent.sources.postgres.server.catalog import read_schemas
from agent.sources.postgres.server.connection import connect
from agent.sources.postgres.server.lsn import parse_lsn
from capture.embedded import EmbeddedPostgres
from reactor.errors import WeirError
from tests.integration.agent.sources.postgres.sync_rig import SyncRig, drop_slots, make_rig

_SCHEMA: Final = """
CREATE SCHEMA s; CREATE SCHEMA other;
CREATE TABLE quiet (id int PRIMARY KEY, v text);
CREATE TABLE a (id int PRIMARY KEY, v text);
CREATE TABLE b (id int PRIMARY KEY, v text);
CREATE TABLE s.c (id int PRIMARY KEY, v text);
CREATE TABLE s.f (id int NOT NULL UNIQUE, v text);
ALTER TABLE s.f REPLICA IDENTITY FULL;
CREATE TABLE s.quiet (id int PRIMARY KEY, v text);
"""
_TABLES: Final = ("a", "b", "s.c", "s.f")
_QUIET: Final = ("quiet", "s.quiet")
_PUBLICATIONS: Final = {
    "tables": "FOR TABLE quiet, a, b, s.quiet, s.c, s.f",
    "schema": "FOR TABLE quiet, a, b, TABLES IN SCHEMA s",
    "twice": "FOR TABLE quiet, a, b, s.quiet, s.c, TABLES IN SCHEMA s",
    "schemas": "FOR TABLES IN SCHEMA s, public",
    "all": "FOR ALL TABLES",
}
#: of a table, by its number
_OF_TABLE: Final = (
    "ALTER PUBLICATION mine DROP TABLE {t}",
    "ALTER PUBLICATION mine ADD TABLE {t}",
    "ALTER PUBLICATION mine ADD TABLE {t} WHERE (id > 0)",
    "ALTER PUBLICATION mine ADD TABLE {t} (id)",
    "ALTER PUBLICATION mine ADD TABLE {t} (id, v)",
    "ALTER TABLE {t} SET SCHEMA other",
    "ALTER TABLE {t} SET SCHEMA s",
    "ALTER TABLE {t} SET SCHEMA public",
    "ALTER TABLE {t} SET UNLOGGED",
    "ALTER TABLE {t} SET LOGGED",
    "ALTER TABLE {t} REPLICA IDENTITY FULL",
    "ALTER TABLE {t} REPLICA IDENTITY DEFAULT",
)
#: of all tables that are published by their schema
_OF_SCHEMA: Final = (
    "ALTER PUBLICATION mine DROP TABLES IN SCHEMA s",
    "ALTER PUBLICATION mine ADD TABLES IN SCHEMA s",
    "ALTER SCHEMA s RENAME TO r",
    "ALTER SCHEMA r RENAME TO s",
)
#: of everything
_OF_PUBLICATION: Final = (
    "ALTER PUBLICATION mine SET (publish = 'update, delete')",
    "ALTER PUBLICATION mine SET (publish = 'insert, update, delete, truncate')",
    "ALTER PUBLICATION mine RENAME TO yours",
    "ALTER PUBLICATION yours RENAME TO mine",
    "DROP PUBLICATION mine",
    "CREATE PUBLICATION mine {publication}",
)


class _History:
    """``rows``: of each table, by its number, where the log ended behind each of its rows. ``touched``: those that
    something was done to."""

    def __init__(self, rig: SyncRig, random: Random, publication: str) -> None:
        self.rig = rig
        self.random = random
        self.publication = publication
        self.ids = {f"{one.schema_name}.{one.name}".removeprefix("public."): one.table_id for one in rig.tables}
        self.rows: dict[int, list[int]] = {table: [] for table in self.ids.values()}
        self.touched: set[int] = set()
        self.is_replaced = False

    def step(self) -> None:
        if self.random.random() < 0.55:
            self.insert(self.random.choice([*_TABLES, *_QUIET]))
        elif (kind := self.random.random()) < 0.8:
            name = self.random.choice(_TABLES)
            statement = self.random.choice(_OF_TABLE)
            self.touched.add(self.ids[name])
            self.execute(statement.format(t=self.now(name)))
        elif kind < 0.95:
            self.touched |= {self.ids[name] for name in self.ids if "." in name}
            self.execute(self.random.choice(_OF_SCHEMA))
        else:
            self.is_replaced = True
            self.execute(self.random.choice(_OF_PUBLICATION).format(publication=self.publication))

    def insert(self, name: str) -> None:
        rows = self.rows[self.ids[name]]
        if self.execute(f"INSERT INTO {self.now(name)} VALUES ({len(rows)}, 'x')"):
            with connect(self.rig.uri) as connection:
                [[lsn]] = connection.query("SELECT pg_current_wal_insert_lsn()")
            rows.append(parse_lsn(str(lsn)))

    def now(self, name: str) -> str:
        """Return the table's name of now."""
        with connect(self.rig.uri) as connection:
            [[found]] = connection.query(
                f"SELECT n.nspname || '.' || c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
                f"WHERE c.oid = {self.ids[name]}"
            )
        return str(found)

    def execute(self, sql: str) -> bool:
        with suppress(WeirError):
            self.rig.execute(sql)
            return True
        return False


@pytest.mark.matrix
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", _PUBLICATIONS)
async def test_every_row_is_in_the_log_or_its_table_is_held(
    kind: str, seed: int, postgres: EmbeddedPostgres, tmp_path: Path
) -> None:
    rig = make_rig(postgres, tmp_path, _SCHEMA, [*_QUIET, *_TABLES], publication=_PUBLICATIONS[kind])
    rig.settings = SyncSettings(progress_s=0.05)
    rig.rules = ("*.*",)
    with connect(rig.uri) as connection:
        rig.first_schemas = read_schemas(connection, [table.table_id for table in rig.tables])
    history = _History(rig, Random(f"{kind} {seed}"), _PUBLICATIONS[kind])
    failures: list[WeirError] = []
    for round_, steps in enumerate((8, 8, 8, 0)):
        await _run(rig, history, f"unit{round_}", failures, steps)
    drop_slots(rig)
    if failures:
        assert isinstance(failures[0], PositionLostError), failures
        assert history.is_replaced, failures
        return
    held: dict[int, int] = {}
    for record in rig.ddl():
        for change in record.holds:
            held.setdefault(change.table_id, record.ts)
    logged = [event[0] for event in rig.logged() if event[3][:1] == b"I"]
    for name, table in history.ids.items():
        wanted = [end for end in history.rows[table] if end <= held.get(table, end)]
        assert logged.count(table) >= len(wanted), f"{name} is held from {held.get(table)} on"
        assert table in held or logged.count(table) == len(wanted), name
    assert held.keys() <= history.touched


async def _run(rig: SyncRig, history: _History, capture: str, failures: list[WeirError], steps: int) -> None:
    if failures:
        return
    unit, is_over = rig.unit(capture), anyio.Event()

    async def run() -> None:
        try:
            await unit.run()
        except WeirError as error:
            failures.append(error)
            is_over.set()

    async with anyio.create_task_group() as group:
        group.start_soon(run)
        for _ in range(steps):
            await anyio.to_thread.run_sync(history.step)
            if history.random.random() < 0.2:
                await _caught_up(rig, is_over)
        await _caught_up(rig, is_over)
        group.cancel_scope.cancel()
    for _ in range(history.random.randrange(6) if steps else 0):
        history.step()


async def _caught_up(rig: SyncRig, is_over: anyio.Event) -> None:
    with connect(rig.uri) as connection:
        [[lsn]] = connection.query("SELECT pg_logical_emit_message(false, 'test', 'x')")
    end = parse_lsn(str(lsn)) - 1
    async with anyio.create_task_group() as group:

        async def reach() -> None:
            await rig.wait_head(lambda head: head.resolved_ts >= end)
            group.cancel_scope.cancel()

        group.start_soon(reach)
        await is_over.wait()
        group.cancel_scope.cancel()

"""Random statements on a real server, read by the stream as they come and much later: the sink's table equals the
source's in the end, or the table is held."""

from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from agent.errors import TableHeldError, TableIneligibleError
from agent.sources.postgres.server.catalog import read_schemas
from agent.sources.postgres.server.connection import Connection, connect
from capture.embedded import EmbeddedPostgres
from reactor.errors import WeirError
from tests.integration.agent.sources.postgres.meanwhile import meanwhile
from tests.integration.agent.sources.postgres.random_partitions import PARTITIONED, PartitionStatements
from tests.integration.agent.sources.postgres.random_sessions import Sessions
from tests.integration.agent.sources.postgres.random_statements import SETUP, Statements
from tests.integration.agent.sources.postgres.sink_copy import SinkCopy
from tests.integration.agent.sources.postgres.sync_rig import SyncRig, drop_slots, make_rig

pytestmark = [pytest.mark.sample(0.0), pytest.mark.timeout(120)]

_SEEDS = 60
_PARTITIONED_SEEDS = 20
_SESSION_SEEDS = 20
_MEANWHILE_SEEDS = 30
_STEPS = (8, 24)
_VIA_ROOT = "FOR ALL TABLES WITH (publish_via_partition_root)"


def _execute(connection: Connection, statements: Statements | PartitionStatements, random: Random) -> list[str]:
    """Execute one statement, or a few in a transaction; return what was executed. Those that fail are undone."""
    count = 1 if random.random() < 0.7 else random.randint(2, 4)
    done: list[str] = []
    if count > 1:
        connection.query("BEGIN")
    for _ in range(count):
        undo, statement = statements.undo(), statements.next()
        if count > 1:
            connection.query("SAVEPOINT before")
        try:
            connection.query(statement)
        except WeirError:
            is_undone = True
        else:
            is_undone = count > 1 and random.random() < 0.1
            done.append(statement if not is_undone else f"{statement} -- rolled back")
        if is_undone:
            undo()
            if count > 1:
                connection.query("ROLLBACK TO before")
    if count > 1:
        connection.query("COMMIT")
        return [f"BEGIN; {'; '.join(done)}; COMMIT"]
    return done


@pytest.mark.parametrize("seed", range(_SEEDS))
async def test_the_table_equals_its_source_or_is_held(postgres: EmbeddedPostgres, tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    await _compare(make_rig(postgres, tmp_path, SETUP, ["a"]), tmp_path, random, Statements(random))


@pytest.mark.parametrize("publication", ["", _VIA_ROOT])
@pytest.mark.parametrize("seed", range(_PARTITIONED_SEEDS))
async def test_the_partitioned_table_equals_its_source_or_is_held(
    postgres: EmbeddedPostgres, tmp_path: Path, seed: int, publication: str
) -> None:
    random = Random(f"{publication} {seed}")
    rig = make_rig(postgres, tmp_path, PARTITIONED, ["a"], publication=publication)
    await _compare(rig, tmp_path, random, PartitionStatements(random))


@pytest.mark.parametrize("kind", ["plain", "partitioned"])
@pytest.mark.parametrize("seed", range(_SESSION_SEEDS))
async def test_the_table_of_several_sessions_equals_its_source_or_is_held(
    postgres: EmbeddedPostgres, tmp_path: Path, seed: int, kind: str
) -> None:
    """The stream reads while transactions are open, too: what they have locked holds up nothing."""
    random = Random(f"{kind} {seed}")
    statements = Statements(random) if kind == "plain" else PartitionStatements(random)
    schema = SETUP if kind == "plain" else PARTITIONED
    rig = make_rig(postgres, tmp_path, f"{schema}; CREATE TABLE elsewhere (id int)", ["a"])
    rig.rules = ("*.*",)
    sessions = Sessions(rig.uri, statements, random, idle="INSERT INTO elsewhere VALUES (1)")
    try:
        with connect(rig.uri) as connection:
            rig.first_schemas = read_schemas(connection, [rig.tables[0].table_id])
        for _ in range(random.choice((1, 2, 3))):
            for _ in range(random.randint(*_STEPS)):
                sessions.step()
            await _read(rig)
            sessions.done.append("-- the stream reads up to here")
        sessions.finish()
        await _read(rig)
        _check(rig, tmp_path, sessions.done)
    finally:
        sessions.finish()
        sessions.close()
        drop_slots(rig)


@pytest.mark.parametrize("kind", ["plain", "partitioned"])
@pytest.mark.parametrize("seed", range(_MEANWHILE_SEEDS))
async def test_the_table_that_is_altered_while_the_stream_asks_equals_its_source_or_is_held(
    postgres: EmbeddedPostgres, tmp_path: Path, seed: int, kind: str
) -> None:
    random = Random(f"{kind} {seed}")
    statements = Statements(random) if kind == "plain" else PartitionStatements(random)
    rig = make_rig(postgres, tmp_path, SETUP if kind == "plain" else PARTITIONED, ["a"])
    rig.rules = ("*.*",)
    with connect(rig.uri) as connection:
        rig.first_schemas = read_schemas(connection, [rig.tables[0].table_id])
        done = _execute(connection, statements, random)
    try:
        with meanwhile(rig.uri, lambda own: _execute(own, statements, random), random) as others:
            await _read(rig)
        await _read(rig)
        assert others
        _check(rig, tmp_path, done + others)
    finally:
        drop_slots(rig)


async def _read(rig: SyncRig) -> None:
    async with rig.running():
        await rig.wait_resolved()
        await rig.wait_resolved()  # what changed without a later row is found behind the first one


def _check(rig: SyncRig, path: Path, done: list[str]) -> None:
    copied = SinkCopy(rig, path / "lake")
    with suppress(TableHeldError, TableIneligibleError):
        copied.bring_up()
        assert copied.differences() == ([], []), "\n".join(done)


async def _compare(rig: SyncRig, path: Path, random: Random, statements: Statements | PartitionStatements) -> None:
    """Execute statements, which the stream reads as they come or much later, and compare the source with the sink."""
    rig.rules = ("*.*",)
    done: list[str] = []
    try:
        with connect(rig.uri) as connection:
            rig.first_schemas = read_schemas(connection, [rig.tables[0].table_id])
        for _ in range(random.choice((1, 1, 2, 3))):
            with connect(rig.uri) as connection:
                for _ in range(random.randint(3, 12)):
                    done += _execute(connection, statements, random)
            await _read(rig)
            done.append("-- the stream reads up to here")
        _check(rig, path, done)
    finally:
        drop_slots(rig)

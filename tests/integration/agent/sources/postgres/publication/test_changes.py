"""Random changes of a publication and its tables on a real server, read by the stream as they come and much later: each
table has at the sink what its publication sent of it from the beginning, or is held, or the position is lost."""

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from agent.errors import PositionLostError, TableHeldError, TableIneligibleError
from agent.sources.postgres.server.catalog import read_schemas
from agent.sources.postgres.server.connection import Connection, connect
from agent.sources.postgres.server.terms import ALL_ROWS, read_terms
from capture.embedded import EmbeddedPostgres
from reactor.errors import WeirError
from tests.integration.agent.sources.postgres.meanwhile import meanwhile
from tests.integration.agent.sources.postgres.random_publications import (
    PUBLICATIONS,
    SETUP,
    TABLES,
    PublicationStatements,
)
from tests.integration.agent.sources.postgres.sink_copy import SinkCopy
from tests.integration.agent.sources.postgres.sync_rig import SyncRig, drop_slots, make_rig

pytestmark = [pytest.mark.timeout(120), pytest.mark.sample(0.01)]


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("kind", PUBLICATIONS)
async def test_each_table_equals_what_is_published_of_it_or_is_held(
    kind: str, seed: int, postgres: EmbeddedPostgres, tmp_path: Path
) -> None:
    random = Random(f"{kind} {seed}")
    statements, (begin, filters) = PublicationStatements(random, kind), PUBLICATIONS[kind]
    rig = make_rig(postgres, tmp_path, SETUP, TABLES, publication=begin)
    rig.rules = ("*.*",)
    done: list[str] = []
    try:
        with connect(rig.uri) as connection:
            terms = read_terms(connection, ["mine"])
            rig.first_schemas = read_schemas(connection, [table.table_id for table in rig.tables], terms)
        for _ in range(random.choice((1, 1, 2, 3))):
            done += _changed(rig, statements, random)
            if lost := await _read(rig):
                assert statements.is_replaced, f"{lost}: {'; '.join(done)}"
                return
            done.append("-- the stream reads up to here")
        held = set(_compare(rig, tmp_path / "lake", filters, done))
        needless = [name for name in held if name not in statements.touched]
        assert not needless or statements.is_replaced, "\n".join([*needless, *done])
    finally:
        drop_slots(rig)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("kind", PUBLICATIONS)
async def test_each_table_equals_what_is_published_though_that_changes_while_the_stream_asks(
    kind: str, seed: int, postgres: EmbeddedPostgres, tmp_path: Path
) -> None:
    random = Random(f"{kind} {seed}")
    statements, (begin, filters) = PublicationStatements(random, kind), PUBLICATIONS[kind]
    rig = make_rig(postgres, tmp_path, SETUP, TABLES, publication=begin)
    rig.rules = ("*.*",)
    try:
        with connect(rig.uri) as connection:
            terms = read_terms(connection, ["mine"])
            rig.first_schemas = read_schemas(connection, [table.table_id for table in rig.tables], terms)
            done = _change(rig, statements, connection)
        with meanwhile(rig.uri, lambda own: _change(rig, statements, own), random) as others:
            lost = await _read(rig)
        lost = lost or await _read(rig)
        assert not lost or statements.is_replaced, f"{lost}: {'; '.join(done + others)}"
        if not lost:
            list(_compare(rig, tmp_path / "lake", filters, done + others))
    finally:
        drop_slots(rig)


def _changed(rig: SyncRig, statements: PublicationStatements, random: Random) -> Iterator[str]:
    with connect(rig.uri) as connection:
        for _ in range(random.randint(4, 16)):
            yield from _change(rig, statements, connection)


def _change(rig: SyncRig, statements: PublicationStatements, connection: Connection) -> list[str]:
    """Execute the next statement; return it unless it is refused."""
    found = connection.query("SELECT oid::int8, oid::regclass FROM pg_class WHERE relkind = 'r' AND oid > 16383")
    names = {int(oid or 0): str(name) for oid, name in found}
    there = {
        first: names[table.table_id] for first, table in zip(TABLES, rig.tables, strict=True) if table.table_id in names
    }
    if there:
        statement = statements.next(there)
        with suppress(WeirError):
            connection.query(statement)
            return [statement]
    return []


async def _read(rig: SyncRig) -> str:
    """Return why the position is lost; empty if it is not."""
    try:
        async with rig.running():
            await rig.wait_resolved()
            await rig.wait_resolved()  # what changed without a later row is found behind the first one
    except BaseExceptionGroup as group:
        lost, others = group.split(PositionLostError)
        if lost is None or others is not None:
            raise
        return repr(lost)
    return ""


def _compare(rig: SyncRig, lake: Path, filters: dict[str, str], done: list[str]) -> Iterator[str]:
    """Yield the tables that are held."""
    with connect(rig.uri) as connection:
        there = {int(oid or 0) for (oid,) in connection.query("SELECT oid::int8 FROM pg_class")}
    for number, (name, table) in enumerate(zip(TABLES, rig.tables, strict=True)):
        if table.table_id not in there:
            continue  # it goes at the sink, too
        copied = SinkCopy(rig, lake / str(number), number, rows=filters.get(name, ALL_ROWS))
        try:
            copied.bring_up()
        except (TableHeldError, TableIneligibleError):
            yield name
            continue
        missing, extra = copied.differences()
        assert (Counter(map(str, missing)), Counter(map(str, extra))) == (Counter(), Counter()), (
            f"{name}\n" + "\n".join(done)
        )

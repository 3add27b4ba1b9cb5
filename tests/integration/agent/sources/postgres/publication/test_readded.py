"""Columns that are dropped and added again, renamed and written before the stream comes: held, or right."""

from pathlib import Path

import pytest

from agent.errors import TableHeldError
from agent.sources.postgres.server.catalog import read_schemas
from agent.sources.postgres.server.connection import Connection, connect
from capture.embedded import EmbeddedPostgres
from tests.integration.agent.sources.postgres.sink_copy import SinkCopy
from tests.integration.agent.sources.postgres.sync_rig import drop_slots, make_rig

pytestmark = [pytest.mark.matrix, pytest.mark.timeout(120)]

_AGAIN = "ALTER TABLE a DROP n, ADD n int"
_OTHER = "ALTER TABLE a DROP n, ADD m int"
_SWAP = "ALTER TABLE a RENAME v TO between; ALTER TABLE a RENAME n TO v; ALTER TABLE a RENAME between TO n"
_ROW, _ROWS, _MORE = (f"INSERT INTO a VALUES ({id}, 1, 2)" for id in (2, 3, 4))
#: by a transaction of another session, which began before the others
_OLDER = ("2 BEGIN", "2 CREATE TABLE other (id int)")


@pytest.mark.parametrize(
    ("history", "column"),
    [
        ((_AGAIN, _SWAP), ""),
        ((_AGAIN, _ROW, _SWAP), "n"),
        ((_AGAIN, _ROW, _SWAP, "INSERT INTO a VALUES (3, 1, 2)"), "n"),
        ((_AGAIN, _ROW, "ALTER TABLE a RENAME n TO m"), "n"),
        ((*_OLDER, _AGAIN, f"2 {_ROW}", "2 COMMIT", _SWAP), "n"),
        (("ALTER TABLE a RENAME n TO m", _ROW, "ALTER TABLE a DROP m, ADD m int"), "m"),
        (("ALTER TABLE a RENAME v TO w", _ROW, _AGAIN), "n"),
        ((*_OLDER, "ALTER TABLE a RENAME v TO w", _ROW, f"2 {_OTHER}", "2 COMMIT"), "n"),
        ((*_OLDER, "ALTER TABLE a RENAME v TO w", _ROW, f"2 {_AGAIN}", "2 COMMIT"), "n"),
        ((f"BEGIN; {_ROW}; ALTER TABLE a RENAME v TO w; {_ROWS}; {_AGAIN}; {_MORE}; COMMIT",), "n"),
        # what an older declaration is of is known
        ((f"BEGIN; {_OTHER}; {_ROW}; COMMIT",), ""),
        ((_OTHER, _ROW, "ALTER TABLE a RENAME m TO k", "INSERT INTO a VALUES (3, 1, 2)"), ""),
        (("ALTER TABLE a DROP n", "INSERT INTO a VALUES (2, 1)", "ALTER TABLE a ADD n int", _SWAP), ""),
    ],
)
async def test_rows_of_a_new_column_are_not_taken_for_those_of_the_old_one(
    postgres: EmbeddedPostgres, tmp_path: Path, history: tuple[str, ...], column: str
) -> None:
    rig = make_rig(postgres, tmp_path, "CREATE TABLE a (id int PRIMARY KEY, v int, n int)", ["a"])
    try:
        with connect(rig.uri) as connection, connect(rig.uri) as other:
            rig.first_schemas = read_schemas(connection, [rig.tables[0].table_id])
            for statement in ("INSERT INTO a VALUES (1, 10, 100)", *history):
                _execute(connection, other, statement)
        async with rig.running():
            await rig.wait_resolved()
            await rig.wait_resolved()  # what changed without a later row is found behind the first one
        copied = SinkCopy(rig, tmp_path / "lake")
        if column:
            with pytest.raises(TableHeldError, match=f"column {column} was dropped and added again"):
                copied.bring_up()
        else:
            copied.bring_up()
            assert copied.differences() == ([], [])
    finally:
        drop_slots(rig)


def _execute(connection: Connection, other: Connection, statement: str) -> None:
    if statement.startswith("2 "):
        other.query(statement[2:])
    else:
        connection.query(statement)

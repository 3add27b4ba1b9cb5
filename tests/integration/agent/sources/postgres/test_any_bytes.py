"""Databases in SQL_ASCII, which take any bytes, and in encodings with characters that UTF-8 lacks: such names and
values hold their tables alone."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from agent.errors import DecodeError
from agent.sources.postgres.server.catalog import read_schemas
from agent.sources.postgres.server.connection import connect
from agent.sources.postgres.snapshot.chunks import WHOLE_TABLE
from agent.sources.postgres.snapshot.rows import read_chunk
from capture.embedded import EmbeddedPostgres
from tests.integration.agent.sources.postgres.sink_copy import SinkCopy
from tests.integration.agent.sources.postgres.sync_rig import SyncRig, drop_slots, make_rig

pytestmark = pytest.mark.sample(0.12)  # cases of a few causes each, on a real server

_TABLES: Final = "CREATE TABLE a (id int PRIMARY KEY, v text); CREATE TABLE b (id int PRIMARY KEY, v text)"
_NAME: Final = r'"caf\xe9"'
_UNNAMEABLE: Final = "has a name that is not UTF-8, its own or a column's"


@pytest.fixture(params=["", "FOR ALL TABLES"])
def rig(request: pytest.FixtureRequest, postgres: EmbeddedPostgres, tmp_path: Path) -> Iterator[SyncRig]:
    rig = make_rig(postgres, tmp_path, _TABLES, ["a", "b"], encoding="SQL_ASCII", publication=request.param)
    rig.rules = ("*.*",)
    with connect(rig.uri) as connection:
        rig.first_schemas = read_schemas(connection, [table.table_id for table in rig.tables])
    yield rig
    drop_slots(rig)


def _execute(rig: SyncRig, *statements: str) -> None:
    """``\\xe9`` is a byte."""
    executed = "; ".join("EXECUTE E'{}'".format(statement.replace("'", "''")) for statement in statements)
    rig.execute(f"DO $do$ BEGIN {executed}; END $do$")


async def _read(rig: SyncRig) -> dict[int, int]:
    """Return how many rows of each table the log has."""
    rig.execute("INSERT INTO b VALUES (7, 'x')")
    async with rig.running():
        await rig.wait_resolved()
        await rig.wait_resolved()
    events = [event[0] for event in rig.logged()]
    return {table.table_id: events.count(table.table_id) for table in rig.tables}


@pytest.mark.parametrize("is_binary", [True, False])
async def test_a_value_holds_its_table_alone(rig: SyncRig, tmp_path: Path, is_binary: bool) -> None:
    """The server refused to send it, and the stream ended there again and again."""
    if not is_binary:
        rig.execute("CREATE TYPE pair AS (one int, other int); ALTER TABLE b ADD w pair")
    _execute(rig, r"INSERT INTO a VALUES (1, 'caf\xe9')")
    a, b = rig.tables
    assert await _read(rig) == {a.table_id: 1, b.table_id: 1}
    with pytest.raises(AssertionError, match="text that is not UTF-8; set the database's encoding"):
        SinkCopy(rig, tmp_path / "lake").bring_up()


def test_a_snapshot_refuses_the_value(rig: SyncRig) -> None:
    _execute(rig, r"INSERT INTO a VALUES (1, 'caf\xe9')")
    with pytest.raises(DecodeError, match="column v cannot be read: text that is not UTF-8; set the database's"):
        list(read_chunk(rig.uri, None, rig.first_schemas[rig.tables[0].table_id], WHOLE_TABLE))


@pytest.mark.parametrize(("encoding", "text"), [("WIN1252", r"\x81"), ("EUC_JP", r"\xa9\xa1")])
def test_a_snapshot_refuses_what_the_server_cannot_convert(
    encoding: str, text: str, postgres: EmbeddedPostgres, tmp_path: Path
) -> None:
    """Which holds its table alone."""
    rig = make_rig(postgres, tmp_path, _TABLES, ["a", "b"], encoding=encoding)
    try:
        _execute(rig, rf"INSERT INTO a VALUES (1, '{text}')")
        with connect(rig.uri) as connection:
            [schema, _] = read_schemas(connection, [table.table_id for table in rig.tables]).values()
        with pytest.raises(DecodeError, match=f'public.a: character .* in encoding "{encoding}" has no equivalent'):
            list(read_chunk(rig.uri, None, schema, WHOLE_TABLE))
    finally:
        drop_slots(rig)


@pytest.mark.parametrize(
    ("encoding", "text", "known", "read"),
    [
        ("WIN1252", r"\x81", r"\xe9\x80", "é€"),
        ("EUC_JP", r"\xa9\xa1", r"\xa4\xa2\x8e\xb1\x8f\xb0\xa1", "あｱ丂"),
        # one character, which is two of Unicode's
        ("EUC_JIS_2004", r"\x8f\xa9\xb1", r"\xa4\xf7", "か\u309a"),
    ],
)
async def test_what_the_server_cannot_convert_holds_its_table_alone(
    encoding: str, text: str, known: str, read: str, postgres: EmbeddedPostgres, tmp_path: Path
) -> None:
    """The stream ended there again and again. All other texts of all tables are as the server converts them."""
    rig = make_rig(postgres, tmp_path, _TABLES, ["a", "b"], encoding=encoding)
    rig.rules = ("*.*",)
    try:
        with connect(rig.uri) as connection:
            rig.first_schemas = read_schemas(connection, [table.table_id for table in rig.tables])
        _execute(rig, rf"INSERT INTO b VALUES (1, '{known}')")
        _execute(rig, rf"INSERT INTO a VALUES (1, '{text}')", rf"INSERT INTO b VALUES (2, '{known}x{known}')")
        _execute(rig, rf"UPDATE b SET id = 3, v = v || '{known}' WHERE id = 1", rf"ALTER TABLE b ADD \"{known}\" text")
        _execute(rig, rf"UPDATE b SET \"{known}\" = '{known}'", rf"CREATE TABLE \"c{known}\" (id int PRIMARY KEY)")
        a, b = rig.tables
        assert await _read(rig) == {a.table_id: 1, b.table_id: 6}
        copy = SinkCopy(rig, tmp_path / "b", 1)
        copy.bring_up()
        assert copy.differences() == ([], [])
        [schema] = [one for one in rig.schemas() if len(one.columns) == 3 and one.table_id == b.table_id][:1]
        assert schema.columns[-1].name == read
        assert read.encode() in b"".join(event[-1] for event in rig.logged())
        with pytest.raises(AssertionError, match=r"column v cannot be read: text that is not UTF-8; .*correct"):
            SinkCopy(rig, tmp_path / "a").bring_up()
    finally:
        drop_slots(rig)


@pytest.mark.parametrize(
    ("statements", "reason"),
    [
        ((f"ALTER TABLE a ADD {_NAME} int",), _UNNAMEABLE),
        ((f"ALTER TABLE a RENAME v TO {_NAME}", "INSERT INTO a VALUES (1)"), _UNNAMEABLE),
        ((f"ALTER TABLE a RENAME id TO {_NAME}", "INSERT INTO a VALUES (1)"), _UNNAMEABLE),
        ((f"ALTER TABLE a RENAME TO {_NAME}",), _UNNAMEABLE),
        ((f"ALTER TABLE a RENAME TO {_NAME}", rf"INSERT INTO {_NAME} VALUES (1)"), _UNNAMEABLE),
        ((r"ALTER TABLE a ADD w text DEFAULT 'caf\xe9'", "INSERT INTO a VALUES (1)"), "existing rows is not UTF-8"),
    ],
)
async def test_a_change_holds_its_table_alone(rig: SyncRig, statements: tuple[str, ...], reason: str) -> None:
    a, b = rig.tables
    _execute(rig, *statements)
    found = await _read(rig)
    assert found[b.table_id] == 1
    holds = [change for record in rig.ddl() for change in record.holds]
    assert [change.table_id for change in holds] == [a.table_id]
    assert reason in holds[0].reason
    assert holds[0].reason.isascii()


async def test_types_and_labels_are_no_names(rig: SyncRig) -> None:
    """Labels are values."""
    _execute(rig, rf"CREATE TYPE {_NAME} AS ENUM ('caf\xe9', 'x')", f"ALTER TABLE a ADD w {_NAME}")
    _execute(rig, "INSERT INTO a VALUES (1, 'x', 'x')")
    a, b = rig.tables
    assert await _read(rig) == {a.table_id: 1, b.table_id: 1}
    [change] = [change for record in rig.ddl() for change in record.changes if change.table_id == a.table_id]
    assert not change.is_hold


@pytest.mark.parametrize(
    ("statement", "row"),
    [
        (f"CREATE TABLE {_NAME} (id int PRIMARY KEY)", f"INSERT INTO {_NAME} VALUES (1)"),
        (f"CREATE TABLE c ({_NAME} int PRIMARY KEY)", "INSERT INTO c VALUES (1)"),
        (f"CREATE TABLE c (id int PRIMARY KEY, {_NAME} int)", "INSERT INTO c VALUES (1)"),
    ],
)
async def test_a_new_table_is_held_or_passed_over_alone(rig: SyncRig, statement: str, row: str) -> None:
    _execute(rig, statement, row)
    a, b = rig.tables
    assert await _read(rig) == {a.table_id: 0, b.table_id: 1}
    changed = {change.table_id for record in rig.ddl() for change in record.alterations}
    assert not changed, "nothing is asked of the sink"

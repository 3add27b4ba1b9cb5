"""Views and triggers of a real server: whether a change of a table may change others."""

import pytest

from agent.sources.mysql.server.connection import connect
from agent.sources.mysql.server.reach import reaches_others
from capture.embedded import EmbeddedMariaDB
from tests.integration.agent.sources.mysql.binlog_rig import run

_DATABASE = "reach"


@pytest.fixture(scope="module")
def database(server: EmbeddedMariaDB) -> str:
    server.create_database(_DATABASE)
    run(
        server,
        _DATABASE,
        "CREATE TABLE plain (id int PRIMARY KEY)",
        "CREATE TABLE watched (id int PRIMARY KEY)",
        "CREATE VIEW shown AS SELECT * FROM plain",
        "CREATE TRIGGER watch AFTER INSERT ON watched FOR EACH ROW INSERT INTO plain VALUES (new.id)",
    )
    return _DATABASE


@pytest.mark.sample(0.2)
@pytest.mark.parametrize(
    ("names", "reaches"),
    [
        (["INSERT", "plain", "id"], False),
        (["plain", "watched"], True),
        (["shown"], True),
        (["dropped"], True),
    ],
)
def test_what_reaches_other_tables(server: EmbeddedMariaDB, database: str, names: list[str], reaches: bool) -> None:
    with connect(server.uri()) as connection:
        assert reaches_others(connection, [(database, name) for name in names]) is reaches


def test_who_does_not_see_triggers_cannot_say(server: EmbeddedMariaDB, database: str) -> None:
    server.execute("CREATE OR REPLACE USER reach@'%' IDENTIFIED BY 'secret'")
    server.execute(f"GRANT SELECT ON {database}.* TO reach@'%'")
    uri = f"mysql://reach:secret@127.0.0.1:{server.port}/"
    names = [(database, "plain")]
    with connect(uri) as connection:
        assert reaches_others(connection, names)
    server.execute(f"GRANT TRIGGER ON {database}.* TO reach@'%'")
    with connect(uri) as connection:
        assert not reaches_others(connection, names)

"""Texts of statements in sessions of other character sets: what Weir makes of them is what the server stores."""

import contextlib
from itertools import product

import pymysql
import pytest

from capture.embedded import EmbeddedMariaDB
from tests.integration.agent.sources.mysql.binlog_rig import run, where
from tests.integration.agent.sources.mysql.ddl.test_statements import Followed

pytestmark = pytest.mark.one_flavour

#: statements of these reach the server as UTF-8
_SESSIONS = (
    "SET NAMES utf8mb4",
    "SET NAMES binary",
    "SET NAMES utf8mb4, collation_connection = latin1_swedish_ci",
    "SET NAMES utf8mb4, collation_connection = ucs2_general_ci",
    "SET NAMES utf8mb4, collation_connection = cp1251_general_ci",
)
_CHARSETS = ("latin1", "cp1251", "ucs2", "utf16le", "utf8mb3", "utf8mb4", "binary")
_TEXTS = ("ab", "abc", "é", "Ж", "üЖ")


@pytest.mark.sample(0.2)
@pytest.mark.parametrize("session", _SESSIONS)
def test_defaults_and_members_have_passed_the_sessions_character_set(server: EmbeddedMariaDB, session: str) -> None:
    database = f"texts_{_SESSIONS.index(session)}"
    server.create_database(database)
    run(server, database, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    known = 0
    for charset, text, type_ in product(_CHARSETS, _TEXTS, ("varchar(9) DEFAULT '{}'", "enum('{}', 'z') NOT NULL")):
        if "enum" in type_ and charset == "binary":
            continue
        definition, end = type_.format(text).split(" ", 1)
        column = f"{definition} CHARACTER SET {charset} {end}"
        followed, begin = Followed(server, database), where(server)
        with contextlib.suppress(pymysql.Error):
            run(server, database, session, f"ALTER TABLE t ADD c {column}")
            [record] = followed.read(begin)
            [[there]] = server.execute("SELECT convert(c USING utf8mb4) FROM t", database=database)
            for change in record.changes:
                if not change.is_hold:
                    known += 1
                    assert change.fills["c"] == there or change.fills["c"] == there.encode().hex(), (session, column)
            run(server, database, "ALTER TABLE t DROP c")
    assert known > 10

"""Texts of statements in sessions of other character sets: what Weir makes of them is what the server stores."""

import contextlib
from itertools import product

import pymysql
import pytest

from agent.sources.mysql.names import lowered
from capture.embedded import EmbeddedMariaDB
from tests.integration.agent.sources.mysql.binlog_rig import run, where
from tests.integration.agent.sources.mysql.ddl.test_statements import Followed, schema_of

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


@pytest.mark.sample(0.1)
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


#: character set → members that are given as bytes
_BYTES = {
    "latin1": "0xE9, b'01100001', x''",
    "cp1251": "0xC6, 'a'",
    "gbk": "0xC4E3, x'41'",
    "cp932": "0x8140, 0x41, 0x8260",
    "sjis": "0x83A1, X'41'",
    "utf16": "0x0416, x'0041'",
    "ucs2": "x'00e9', 'Ж'",
    "utf32": "0x00000416, 0x0000004100000020",
    "utf8mb4": "0xC3A9, 0xD09620",
}


def test_members_that_are_given_as_bytes(server: EmbeddedMariaDB) -> None:
    database = "texts_of_bytes"
    server.create_database(database)
    run(server, database, "CREATE TABLE t (id int PRIMARY KEY)")
    for charset, members in _BYTES.items():
        followed, begin = Followed(server, database), where(server)
        try:
            run(server, database, f"ALTER TABLE t ADD e enum({members}) CHARACTER SET {charset}")
        except pymysql.Error:
            continue
        followed.read(begin)
        there = schema_of(server, database).columns[-1]
        assert [column.members for column in followed.schema().columns[1:]] == [there.members], charset
        run(server, database, "ALTER TABLE t DROP e")


def test_letters_have_the_lower_case_that_names_have_at_the_server(server: EmbeddedMariaDB) -> None:
    names = "".join(letter for letter in map(chr, range(0x80, 0x10000)) if letter.isalpha())
    [[found]] = server.execute(f"SELECT LOWER(CONVERT(_utf8mb4 x'{names.encode().hex()}' USING utf8mb3))")
    assert lowered(names) == found
    assert lowered("ΣΟΦΟΣ") == "σοφοσ"

"""The rare events of a binlog and the first words of statements."""

import struct
import zlib
from dataclasses import replace
from datetime import timedelta, timezone

import pytest

from agent.errors import DecodeError
from agent.sources.mysql.binlog import events
from agent.sources.mysql.ddl import statements
from agent.sources.mysql.ddl.parser import sql_text
from agent.sources.mysql.ddl.statements import StatementKind
from agent.sources.mysql.decode import wire
from agent.sources.mysql.position.positions import BinlogPosition
from agent.sources.mysql.values.session import Session
from tests import binlog

#: as MySQL 9.2 wrote one for uuid:foobaz:1
TAGGED = bytes.fromhex(
    "027600000202 2502dcf0090230f90322bd03ad0221024444 5a68510322 0404 060c666f6f62617a 0800 0a04 "
    "0c7f1583222d5c2e06 104903 12c3020b"
)
#: what MySQL 9.7 begins a binlog with: it has no rows events of the first version any more
FORMAT_97 = bytes.fromhex(
    "0400 392e372e342d32" + "00" * 43 + "ce6e006b"
    "13 000d0008000000000400040000006300041a08000000000000020000000a0a0a2a2a00123400 0a280000 01 36c41206"
)


def test_a_format_of_rows_events_of_either_version_is_readable() -> None:
    assert events.parse_format(FORMAT_97) == events.Format("9.7.4-2", 4, True)
    heads = FORMAT_97.index(bytes.fromhex("000d0008"))
    first, second = heads + wire.WRITE_V1 - 1, heads + wire.WRITE_V2 - 1
    for place, size, readable in ((first, 8, True), (first, 6, False), (second, 0, False)):
        changed = bytearray(FORMAT_97)
        changed[place] = size
        assert events.parse_format(bytes(changed)).is_readable is readable


def test_a_tagged_gtid_is_read() -> None:
    gtid = events.parse_tagged_gtid(TAGGED)
    assert gtid.source == "896e7882-18fe-11ef-ab88-22222d34d411:foobaz"
    assert gtid.number == 1
    assert gtid.time_us == 1_739_823_289_369_365


@pytest.mark.parametrize("has_checksum", [True, False])
def test_a_rotation_is_read_with_and_without_checksum(has_checksum: bool) -> None:
    event = bytes(19) + struct.pack("<Q", 4) + b"binlog.000002"
    if has_checksum:
        event += struct.pack("<I", zlib.crc32(event))
    assert events.parse_rotate(event) == BinlogPosition("binlog.000002", 4)


_ANSI, _OTHER = "010400000000000000", "010000000000000000"


@pytest.mark.parametrize("status", [f"0000000000{_ANSI}", _ANSI, f"0000000000{_OTHER}", ""])
def test_what_is_in_double_quotes_at_the_place_of_a_name_is_one(status: str) -> None:
    """The log may have another SQL mode than the one that the server has read the statement in."""
    statement = 'ALTER TABLE "a `b" ADD "c""d" text COMMENT \'x "y"\' /* "n" */'
    assert parsed(status, statement) == 'ALTER TABLE `a ``b` ADD `c"d` text COMMENT \'x "y"\' /* "n" */'


@pytest.mark.parametrize(
    "statement",
    [
        'ALTER TABLE t ADD c text DEFAULT "x" COMMENT "y", ADD CHECK (c LIKE "z")',
        'CREATE TABLE t (e enum("a", "b") DEFAULT "b") COMMENT = "TABLE \'t\'"',
        'INSERT INTO t SELECT * FROM u WHERE a = "ADD" OR b IN ("TO", "ON")',
    ],
)
def test_texts_in_double_quotes_are_texts_without_ansi_quotes(statement: str) -> None:
    assert parsed(_OTHER, statement) == parsed("", statement) == statement


def parsed(status: str, statement: str) -> str:
    head = struct.pack("<IIBHH", 7, 0, 1, 0, len(status) // 2) + bytes.fromhex(status)
    return events.parse_query(head + b"d\0" + statement.encode()).statement


def test_what_a_statement_says_of_its_session() -> None:
    fields = {0: bytes(4), 1: struct.pack("<Q", 1 << 20), 6: b"\3std", 3: bytes(4), 4: b"\x08\0" + bytes(4)}
    fields |= {5: b"\6+02:00", 11: b"\1u\1h", 12: b"\2a\0b\0", 128: b"\x40\xe2\1", 77: b"unknown"}
    status = b"".join(bytes([kind]) + value for kind, value in fields.items())
    body = (
        struct.pack("<IIBHH", 7, 0, 1, 0, len(status)) + status + b"d\0" + "ALTER TABLE t ADD é '\\'".encode("latin-1")
    )
    query = events.parse_query(body)
    assert query.statement == "ALTER TABLE t ADD é '\\\\'"
    session = replace(query.session, second=1_700_000_000)
    assert session == Session(1 << 20, 8, "+02:00", 123_456, 1_700_000_000)
    assert str(session.now(3)) == "2023-11-14 22:13:20.123000+00:00"
    assert session.zone == timezone(timedelta(hours=2))
    assert replace(session, micros=None).now(3) is None
    assert replace(session, time_zone="CEST").zone is None


def test_statements_of_both_forms_are_read() -> None:
    body = binlog.query("ALTER TABLE t ADD ä INT", "dü")
    assert events.parse_query(body) == events.Query("dü", "ALTER TABLE t ADD ä INT")
    head, text = body[: -len("ALTER TABLE t ADD ä INT".encode())], b"DROP TABLE t"
    compressed = head + b"\x82" + len(text).to_bytes(2, "big") + zlib.compress(text)
    assert events.parse_query(compressed, is_compressed=True).statement == "DROP TABLE t"
    load = body[:13] + bytes(13) + body[13:]
    assert events.parse_load(load) == events.parse_query(body)
    with pytest.raises(DecodeError, match="cannot be read"):
        events.parse_query(b"\0" * 7)
    with pytest.raises(DecodeError, match="cannot be read"):
        events.parse_query(head + b"\x81\x05nonsense", is_compressed=True)


@pytest.mark.parametrize(
    ("statement", "charset", "text"),
    [
        ("ALTER TABLE t ADD a text DEFAULT 'Ã¼'", "latin-1", "Ã¼"),
        ("SET STATEMENT sql_mode='' FOR /* é */ alter TABLE t ADD a text DEFAULT 'Ã¼'", "latin-1", "Ã¼"),
        ("DROP TABLE `Ã¼` /* generated by server */", "latin-1", "Ã¼"),
        ("DROP TABLE `ü`", "latin-1", "ü"),
        ("CREATE TABLE `Ã¼` (id int)", "latin-1", "Ã¼"),
        ("CREATE TABLE `ü` (\n  `id` int(11) NOT NULL)", "utf-8", "ü"),
        ("RENAME TABLE t TO `Ã¼`", "latin-1", "Ã¼"),
        ("TRUNCATE `Ã¼`", "latin-1", "Ã¼"),
        ("INSERT INTO `Ã¼` VALUES (1)", "latin-1", "Ã¼"),
    ],
)
def test_which_character_set_a_statement_has(statement: str, charset: str, text: str) -> None:
    status = b"\x04\x08\0" + bytes(4)
    body = struct.pack("<IIBHH", 7, 0, 1, 0, len(status)) + status + b"d\0" + statement.encode(charset)
    assert text in events.parse_query(body).statement


def test_the_names_of_distributed_transactions_agree() -> None:
    event = b"\0" + struct.pack("<III", 1, 2, 1) + b"x1b"
    commits, name = events.parse_xa_prepare(event)
    assert not commits
    assert name == statements.xa_name("XA ROLLBACK X'7831',X'62',1") == "X'7831',X'62',1"
    assert events.parse_xa_prepare(b"\1" + event[1:])[0]


def test_errors_and_incidents_have_a_text() -> None:
    assert events.parse_error(struct.pack("<H", 1236) + b"#HY000gone") == (1236, "gone")
    assert events.parse_error(struct.pack("<H", 1040) + b"full") == (1040, "full")
    assert events.parse_incident(b"\1\0\4lost") == "lost"
    assert events.parse_incident(b"\1\0") == ""


def test_a_heartbeat_may_tell_a_position_beyond_32_bits() -> None:
    body = b"\1\7binlog1" + b"\2\x09\xfe" + struct.pack("<Q", 5 << 32) + b"\0"
    assert events.parse_heartbeat_v2(body) == 5 << 32
    assert events.parse_heartbeat_v2(b"\0") == 0


@pytest.mark.parametrize(
    ("statement", "kind"),
    [
        ("CREATE TABLE t (i int)", StatementKind.DDL),
        ("create or replace table t like u", StatementKind.DDL),
        ("CREATE UNIQUE INDEX i ON t (a)", StatementKind.DDL),
        ("ALTER ONLINE IGNORE TABLE t ADD c INT", StatementKind.DDL),
        ("/* app */ -- why\n alter table t drop c", StatementKind.DDL),
        ("/*!40000 ALTER TABLE t DISABLE KEYS */", StatementKind.DDL),
        ("/*M!100100 RENAME TABLE a TO b */", StatementKind.DDL),
        ("DROP TABLE IF EXISTS `t` /* generated by server */", StatementKind.DDL),
        ("DROP DATABASE d", StatementKind.DDL),
        ("CREATE SCHEMA d", StatementKind.DDL),
        ("CREATE TEMPORARY TABLE t (i int)", StatementKind.OTHER),
        ("DROP TEMPORARY TABLE IF EXISTS t", StatementKind.OTHER),
        (
            "CREATE OR REPLACE ALGORITHM=UNDEFINED DEFINER=`a`@`%` SQL SECURITY DEFINER VIEW `v` AS select 1",
            StatementKind.OTHER,
        ),
        (
            "CREATE DEFINER=`r`@`%` TRIGGER table_trigger BEFORE INSERT ON t FOR EACH ROW SET @a = 1",
            StatementKind.OTHER,
        ),
        ("DROP PROCEDURE p", StatementKind.OTHER),
        ("RENAME USER a TO b", StatementKind.OTHER),
        ("GRANT SELECT ON TABLE t TO u", StatementKind.OTHER),
        ("ANALYZE TABLE t", StatementKind.OTHER),
        ("FLUSH TABLES", StatementKind.OTHER),
        ("# Dummy event replacing event type 160", StatementKind.OTHER),
        ("", StatementKind.OTHER),
        ("TRUNCATE `d`.`t`", StatementKind.TRUNCATE),
        ("insert into t values (1)", StatementKind.WRITE),
        ("SELECT `d`.`f`(1)", StatementKind.WRITE),
        ("WITH c AS (SELECT 1) UPDATE t SET a = 1", StatementKind.WRITE),
        ("SAVEPOINT `a b`", StatementKind.SAVEPOINT),
        ("ROLLBACK TO `a b`", StatementKind.ROLLBACK_TO),
        ("ROLLBACK", StatementKind.ROLLBACK),
        ("COMMIT /* x */", StatementKind.COMMIT),
        ("XA START X'1',X'',1", StatementKind.XA_BEGIN),
        ("XA END X'1',X'',1", StatementKind.XA_END),
        ("XA COMMIT X'1',X'',1", StatementKind.XA_COMMIT),
        ("XA ROLLBACK X'1',X'',1", StatementKind.XA_ROLLBACK),
    ],
)
def test_statements_are_distinguished_by_their_first_words(statement: str, kind: StatementKind) -> None:
    assert statements.kind(sql_text.plain(statement)) is kind


def test_the_table_that_is_emptied() -> None:
    assert statements.truncated_table("TRUNCATE TABLE `t` NOWAIT", "d") == ("d", "t")
    assert statements.truncated_table("truncate e.t", "d") == ("e", "t")
    assert statements.savepoint("ROLLBACK TO SAVEPOINT `A b`") == statements.savepoint("SAVEPOINT `a B`") == "a b"

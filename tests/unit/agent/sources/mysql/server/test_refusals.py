"""Refusals of servers, translated into errors of ours."""

import pytest

from agent.errors import (
    PositionLostError,
    SlotInUseError,
    SnapshotLostByGCError,
    SourceAuthError,
    SourceConfigError,
    SourceError,
    SourcePrivilegeError,
    SourceUnreachableError,
    StatementRefusedError,
    TableLockedError,
)
from agent.sources.mysql.server.refusals import BINLOG_FAILED, refusal
from tests.binlog import TARGET


@pytest.mark.parametrize(
    ("code", "message", "error", "words"),
    [
        (1045, "Access denied for user 'weir'@'h' (using password: YES)", SourceAuthError, "or its password"),
        (1130, "Host 'h' is not allowed", SourceAuthError, "have the host allowed"),
        (1227, "Access denied; you need REPLICATION SLAVE", SourcePrivilegeError, "have it granted"),
        (1862, "Your password has expired", SourceAuthError, "has expired"),
        (2059, "plugin 'auth_gssapi' not configured", SourceAuthError, "caching_sha2_password"),
        (1049, "Unknown database", SourceConfigError, "no such database"),
        (1040, "Too many connections", SourceUnreachableError, "tried again"),
        (1053, "Server shutdown in progress", SourceUnreachableError, "tried again"),
        (1205, "Lock wait timeout exceeded", TableLockedError, "retried automatically"),
        (1021, "Disk full", SourceUnreachableError, "tried again"),
        (3024, "Query execution was interrupted", SourceUnreachableError, "tried again"),
        (
            4052,
            "A slave with the same server_uuid/server_id is already connected",
            SlotInUseError,
            "a new one is taken",
        ),
        (1064, "You have an\n error", StatementRefusedError, "answered 1064: You have an error"),
    ],
)
def test_refusals_say_cause_and_cure(code: int, message: str, error: type[SourceError], words: str) -> None:
    found = refusal(code, message, TARGET)
    assert type(found) is error
    assert words in str(found)
    assert "\n" not in str(found)


@pytest.mark.parametrize(
    ("message", "error"),
    [
        ("Could not find first log file name in binary log index file", SnapshotLostByGCError),
        ("Cannot replicate because the source purged required binary logs. Replicate the", SnapshotLostByGCError),
        ("Could not find GTID state requested by slave in any binlog files", SnapshotLostByGCError),
        ("The binlog on the master is missing the GTID 0-1-5 requested by the slave", SnapshotLostByGCError),
        ("Client requested master to start replication from impossible position", PositionLostError),
        ("Client requested source to start replication from position > file size", PositionLostError),
        ("connecting slave requested to start from GTID 0-1-9, which is not in the master's binlog", PositionLostError),
        ("Replica has more GTIDs than the source has, using the source's SERVER_UUID", PositionLostError),
        ("binlog truncated in the middle of event; consider out of disk space", PositionLostError),
        ("log event entry exceeded max_allowed_packet; Increase max_allowed_packet on source", SourceConfigError),
        ("Binary log is not open", SourceConfigError),
        ("Replica can not handle replication events with the checksum that source is set to", SourceConfigError),
        ("Cannot replicate anonymous transaction when @@GLOBAL.GTID_MODE = ON, at file ./b.1", SourceConfigError),
        ("A replica with the same server_uuid/server_id as this replica has connected", SlotInUseError),
        ("something new", SourceError),
    ],
)
def test_what_stops_a_binlog_is_distinguished(message: str, error: type[SourceError]) -> None:
    found = refusal(BINLOG_FAILED, message, TARGET)
    assert type(found) is error
    assert ("resume --resync" in str(found)) == isinstance(found, PositionLostError)

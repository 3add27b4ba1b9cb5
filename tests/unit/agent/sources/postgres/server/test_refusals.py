"""Refusals of PostgreSQL: the class of error that an SQLSTATE becomes."""

import pytest

from agent.errors import (
    PositionLostError,
    SnapshotLostByGCError,
    SourceAuthError,
    SourceError,
    SourceUnreachableError,
    StatementRefusedError,
    TableLockedError,
)
from agent.sources.postgres.server.refusals import refusal
from agent.sources.postgres.server.uri import Target

_TARGET = Target("h", 5432, "db", "weir")


@pytest.mark.parametrize(
    ("state", "message", "error"),
    [
        ("40P01", "deadlock detected", SourceUnreachableError),
        ("40001", "could not serialize access", SourceUnreachableError),
        ("53100", "could not extend file: No space left on device", SourceUnreachableError),
        ("53200", "out of memory", SourceUnreachableError),
        ("55P03", "canceling statement due to lock timeout", TableLockedError),
        ("57014", "canceling statement due to statement timeout", SourceUnreachableError),
        ("57P03", "the database system is starting up", SourceUnreachableError),
        ("22003", "numeric field overflow", StatementRefusedError),
        ("42601", "syntax error", StatementRefusedError),
    ],
)
def test_what_passes_by_itself_is_tried_again(state: str, message: str, error: type[SourceError]) -> None:
    found = refusal({"C": state, "M": message}, _TARGET)
    assert type(found) is error
    assert message in str(found)


def test_a_server_without_room_for_locks_tells_what_to_raise() -> None:
    found = refusal({"C": "53200", "M": "out of shared memory"}, _TARGET)
    assert isinstance(found, SourceUnreachableError)
    assert "raise max_locks_per_transaction" in str(found)


def test_a_stream_without_its_publication_has_lost_its_position() -> None:
    """Servers before version 18 end the stream there, later ones leave out what is missing."""
    found = refusal({"C": "42704", "M": 'publication "mine" does not exist'}, _TARGET)
    assert isinstance(found, PositionLostError)
    assert "resume --resync" in str(found)


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        (
            {"C": "42704", "M": "Replikations-Slot „weir“ existiert nicht", "R": "ReplicationSlotAcquire"},
            PositionLostError,
        ),
        ({"C": "42704", "M": "Publikation „mine“ existiert nicht", "R": "get_publication_oid"}, PositionLostError),
        ({"C": "55000", "M": "kann nicht von „weir“ lesen", "R": "CreateDecodingContext"}, PositionLostError),
        ({"C": "55000", "M": "Wiederherstellung läuft", "R": "pg_current_wal_insert_lsn"}, SourceUnreachableError),
        ({"C": "25006", "M": "nur lesend", "R": "PreventCommandIfReadOnly"}, SourceUnreachableError),
        ({"C": "55000", "M": 'can no longer access slot "weir_recovery"'}, SnapshotLostByGCError),
        (
            {"C": "58P01", "M": "das angeforderte WAL-Segment 00000001000000000000002A wurde schon entfernt"},
            SnapshotLostByGCError,
        ),
        ({"C": "42501", "M": "keine Berechtigung", "R": "CheckSlotPermissions"}, SourceAuthError),
        ({"C": "42704", "M": "Typ „x“ existiert nicht", "R": "typenameType"}, StatementRefusedError),
    ],
)
def test_a_server_may_answer_in_any_language(fields: dict[str, str], error: type[SourceError]) -> None:
    found = refusal(fields, _TARGET)
    assert type(found) is error
    assert fields["M"] in str(found) or "ALTER ROLE weir REPLICATION" in str(found)

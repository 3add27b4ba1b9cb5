"""A position that the server no longer has: which error says so, and that each says how to get a new one."""

from typing import cast

import pytest

from agent.errors import NEW_POSITION, PositionLostError, SnapshotLostByGCError
from agent.sources.postgres.publication import slots
from agent.sources.postgres.server.connection import Connection
from agent.sources.postgres.server.refusals import refusal
from agent.sources.postgres.server.slot_creation import command
from agent.sources.postgres.server.uri import parse_uri
from reactor.ids import Ts

TARGET = parse_uri("postgresql://u@h/d")
Row = tuple[str | None, ...]


class Played:
    """A connection whose server shows one slot, or none."""

    target = TARGET
    server_version = 180_000

    def __init__(self, row: Row | None) -> None:
        self._rows = [row] if row else []

    def query(self, sql: str) -> list[Row]:
        return self._rows


@pytest.mark.parametrize(
    ("row", "kind"),
    [
        (None, PositionLostError),
        (("pgoutput", "d", "0", "0/10", "lost", "wal_removed", "t"), SnapshotLostByGCError),
        (("pgoutput", "d", "0", "0/10", "lost", None, "t"), SnapshotLostByGCError),
        (("pgoutput", "d", "0", "0/10", "unreserved", "idle_timeout", "t"), SnapshotLostByGCError),
        (("pgoutput", "other", "0", "0/10", "reserved", None, "t"), PositionLostError),
        (("test_decoding", "d", "0", "0/10", "reserved", None, "t"), PositionLostError),
        (("pgoutput", "d", "0", "0/FFFF", "reserved", None, "t"), PositionLostError),
    ],
)
def test_a_slot_that_cannot_continue(row: Row | None, kind: type[PositionLostError]) -> None:
    with pytest.raises(PositionLostError) as caught:
        slots.check_position(cast("Connection", Played(row)), "s", Ts(0x20))
    assert type(caught.value) is kind
    assert str(caught.value).endswith(NEW_POSITION)
    assert not caught.value.retryable


def test_a_slot_that_can() -> None:
    row = ("pgoutput", "d", "0", "0/20", "reserved", None, "t")
    slots.check_position(cast("Connection", Played(row)), "s", Ts(0x20))


@pytest.mark.parametrize(
    ("state", "message", "kind"),
    [
        ("55000", 'can no longer access replication slot "s"', SnapshotLostByGCError),
        ("58P01", "requested WAL segment 000000010000000000000001 has already been removed", SnapshotLostByGCError),
        ("55000", 'replication slot "s" was not created in this database', PositionLostError),
        ("42704", 'replication slot "s" does not exist', PositionLostError),
    ],
)
def test_what_the_server_refuses(state: str, message: str, kind: type[PositionLostError]) -> None:
    found = refusal({"C": state, "M": message}, TARGET)
    assert type(found) is kind
    assert str(found).endswith(NEW_POSITION)


@pytest.mark.parametrize(
    ("version", "options", "exporting"),
    [(14, "NOEXPORT_SNAPSHOT", "EXPORT_SNAPSHOT"), (15, "(SNAPSHOT 'nothing')", "(SNAPSHOT 'export')")]
    + [(16, "(SNAPSHOT 'nothing')", "(SNAPSHOT 'export')")]
    + [(version, "(SNAPSHOT 'nothing', FAILOVER)", "(SNAPSHOT 'export', FAILOVER)") for version in (17, 18)],
)
def test_a_slot_is_created_by_what_the_server_understands(version: int, options: str, exporting: str) -> None:
    """PostgreSQL 14 has no parentheses, and standbys copy slots from 17 on."""
    begin = 'CREATE_REPLICATION_SLOT "s"'
    assert command("s", version, exports=False) == f"{begin} LOGICAL pgoutput {options}"
    assert command("s", version, exports=True) == f"{begin} LOGICAL pgoutput {exporting}"
    temporary = command("s", version, exports=True, is_temporary=True)
    assert temporary == f"{begin} TEMPORARY LOGICAL pgoutput {exporting}".replace(", FAILOVER", "")

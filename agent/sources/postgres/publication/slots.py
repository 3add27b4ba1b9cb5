"""Slots and publications: creates, checks and drops Weir's objects at the server.

Names come from the cluster and the changefeed unless the user gave some. Tables without a replica identity go into a
publication of their own that publishes inserts and truncates only: with updates published, PostgreSQL would refuse
every UPDATE and DELETE on them, and a changefeed must never break the application beside it.
"""

import hashlib
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import structlog

from agent.errors import (
    NEW_POSITION,
    PositionLostError,
    SlotInUseError,
    SnapshotLostByGCError,
    SourceConfigError,
    SourceError,
    StatementRefusedError,
    TableIneligibleError,
    TableLockedError,
)
from agent.ports.snapshot import Wait
from agent.ports.source import Position
from agent.sources.postgres.publication.prover import first_proof
from agent.sources.postgres.server import slot_creation, table_locks
from agent.sources.postgres.server.catalog import names_of
from agent.sources.postgres.server.connection import Connection, catalog_session, connect
from agent.sources.postgres.server.identity import primary_timeline
from agent.sources.postgres.server.lsn import format_lsn, parse_lsn
from agent.sources.postgres.server.slot_creation import FAILOVER_VERSION
from agent.sources.postgres.server.sql import identifier, literal, qualified
from agent.sources.postgres.server.terms import GENERATED_VERSION
from reactor.ids import Ts
from reactor.records.tables.table import TableRecord

_NAME_LENGTH_MAX = 63
#: reserved also for a changefeed that has none yet, so that checks before its creation hold
_INCARNATION_LENGTH = 8
_APPEND_SUFFIX = "_append"
_EVICTION_MS = 500
_EVICTIONS_MAX = 10
_PUBLISHED_AT_ONCE = 1_000

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Names:
    """Names at the server. Objects that Weir owns are created and dropped; those that a user named are only used."""

    slot: str
    publication: str
    owns_slot: bool = True
    owns_publication: bool = True


@dataclass(frozen=True, slots=True)
class SlotStatus:
    """A slot as the server shows it; ``lost``: why it can no longer be read, empty if it can. ``has_failover``:
    standbys copy it, or the server is too old for that."""

    plugin: str
    database: str
    active_pid: int
    confirmed_ts: Ts
    lost: str
    has_failover: bool = True


def names_for(cluster: str, changefeed: str, *, slot: str = "", publication: str = "", incarnation: str = "") -> Names:
    """``incarnation`` tells a changefeed from others that have had its id.

    :raises SourceConfigError: a slot name that PostgreSQL does not take.
    """
    default = _slot_name(f"{cluster}_{changefeed}")
    if slot and not re.fullmatch(r"[a-z0-9_]{1,63}", slot):
        raise SourceConfigError(f"slot name {slot!r} is not valid; use lower-case letters, digits and _, at most 63")
    limit = _NAME_LENGTH_MAX - len(_APPEND_SUFFIX) - len("_") - _INCARNATION_LENGTH
    if not slot and len(default) > limit:
        raise SourceConfigError(
            f"slot name {default!r} is too long; choose a shorter changefeed id, or set slot in its config"
        )
    if incarnation:
        default = f"{default}_{incarnation}"
    return Names(slot or default, publication or default, owns_slot=not slot, owns_publication=not publication)


def _slot_name(text: str) -> str:
    """Return a slot name; these are lower case, so ids with capitals get a digest."""
    digest = f"_{hashlib.sha256(text.encode()).hexdigest()[:6]}" if text != text.lower() else ""
    return f"weir_{text.lower().replace('-', '_')}{digest}"


def ensure_publications(
    connection: Connection, names: Names, tables: Sequence[TableRecord], *, has_slot: bool = True
) -> tuple[str, ...]:
    """Make the publications hold exactly these tables; returns the names to stream from.

    Before the slot: a change that was decoded before its publication existed would end the stream. ``has_slot``: there
    may be one, if there is a publication. Changefeeds of v0.1.0 have one of the two if all their tables were of one
    kind, and get the other one when they get a new slot.

    One that the user named is as it is: what it has to have was checked when the tables were found.

    :raises SourceError: the server refuses.
    """
    if not names.owns_publication:
        return (names.publication,)
    without_identity = _without_identity(connection, tables)
    full = [table for table in tables if table.table_id not in without_identity]
    append = [table for table in tables if table.table_id in without_identity]
    existing = _existing(connection, names)
    wanted = [
        (names.publication + _APPEND_SUFFIX, append, "insert, truncate"),
        (names.publication, full, "insert, update, delete, truncate"),
    ]
    made = set()
    # one without a table comes first: after a crash in between, the other one is missed
    for name, members, publish in sorted(wanted, key=lambda one: len(one[1]) > 0):
        is_only = not tables and name == names.publication
        # also without a table: those of both kinds may join later
        if members or is_only or name in existing or not (existing and has_slot):
            _ensure_publication(connection, name, members, publish)
            made.add(name)
    return tuple(name for name in all_publications(names) if name in made)


def publish(connection: Connection, names: Names, tables: Sequence[TableRecord]) -> None:
    """Add tables to our publications; one that the user named is as it is.

    One that does not exist is not made: what the stream still has from before then would end it.

    :raises TableIneligibleError: the publication of tables like one of them was not made.
    :raises SourceError: the server refuses.
    """
    if not names.owns_publication:
        return
    without_identity = _without_identity(connection, tables)
    there, existing = (
        {name: _members(connection, name) for name in all_publications(names)},
        {*publications(connection, names)},
    )
    for table in tables:
        publication = names.publication + (_APPEND_SUFFIX if table.table_id in without_identity else "")
        if publication not in existing:
            kind = "without a" if table.table_id in without_identity else "with a"
            raise TableIneligibleError(
                f"table {table.schema_name}.{table.name} cannot join: publication {publication}, of tables {kind} "
                f"replica identity, was not made with the changefeed; pause it, and {NEW_POSITION}; or alter the "
                "table's identity"
            )
        if (table.schema_name, table.name) not in there[publication]:
            _change_members(connection, publication, "ADD", [(table.schema_name, table.name)])


def publications(connection: Connection, names: Names) -> tuple[str, ...]:
    """Return our publications that exist.

    :raises PositionLostError: none does.
    """
    if not (found := _existing(connection, names)):
        raise PositionLostError(
            f"publication {names.publication} is gone from {connection.target}, and with it what it would have sent; "
            f"{NEW_POSITION}"
        )
    return found


def _existing(connection: Connection, names: Names) -> tuple[str, ...]:
    wanted = ", ".join(literal(name) for name in all_publications(names))
    rows = connection.query(f"SELECT pubname FROM pg_catalog.pg_publication WHERE pubname IN ({wanted}) ORDER BY 1")
    return tuple(str(row[0]) for row in rows)


def create_slot(connection: Connection, slot: str, wait: Wait | None = None) -> Ts:
    """Create a logical slot over a replication connection; its stream has every commit above the returned Ts.

    A dump makes its slot together with a snapshot: see ``export``.

    :raises SourceError: the server refuses: name taken, none free, no privilege, wal_level.
    :raises ReadingStopped: the wait was ended.
    """
    command = slot_creation.command(slot, connection.server_version, exports=False)
    rows = slot_creation.create(connection, command, wait or Wait())
    # a commit that starts exactly at the consistent point is the stream's
    return Ts(parse_lsn(rows[0][1] or "") - 1)


def slot_status(connection: Connection, slot: str) -> SlotStatus | None:
    """Return the slot's status; None if there is no such slot."""
    newer = "invalidation_reason, failover" if connection.server_version >= FAILOVER_VERSION else "NULL, true"
    rows = connection.query(
        "SELECT plugin, database, coalesce(active_pid, 0), confirmed_flush_lsn, wal_status, "
        f"{newer} FROM pg_catalog.pg_replication_slots WHERE slot_name = {literal(slot)}"
    )
    if not rows:
        return None
    plugin, database, pid, confirmed, wal_status, invalidation, failover = rows[0]
    lost = invalidation or ("wal_removed" if wal_status == "lost" else "")
    at = Ts(parse_lsn(confirmed or "0/0") - 1)
    return SlotStatus(plugin or "", database or "", int(pid or 0), at, lost, has_failover=failover == "t")


def check_position(connection: Connection, slot: str, resolved_ts: Ts) -> SlotStatus:
    """Check that the slot can resume exactly at the log's position; return its status.

    :raises SnapshotLostByGCError: the server has invalidated it.
    :raises PositionLostError: it is gone, or past that position.
    """
    status = slot_status(connection, slot)
    cure = NEW_POSITION
    if status is None:
        raise PositionLostError(f"replication slot {slot} is gone from {connection.target}; {cure}")
    if status.lost:
        raise SnapshotLostByGCError(
            f"replication slot {slot} was invalidated by {connection.target} ({status.lost}); {cure}"
        )
    if status.plugin != "pgoutput" or status.database != connection.target.database:
        raise PositionLostError(f"replication slot {slot} is not a pgoutput slot of {connection.target}; {cure}")
    if status.confirmed_ts > resolved_ts:
        raise PositionLostError(
            f"replication slot {slot} was moved to {format_lsn(status.confirmed_ts)} by somebody else, past the log's "
            f"{format_lsn(resolved_ts)}; {cure}"
        )
    return status


def enable_failover(connection: Connection, slot: str) -> None:
    """Let standbys copy a slot of an earlier version, over a replication connection. Nobody may read the slot."""
    try:
        connection.query(f"ALTER_REPLICATION_SLOT {identifier(slot)} (FAILOVER true)")
    except SourceError as error:
        _log.warning("the slot does not follow a fail-over", slot=slot, error=str(error))


def open_upstream(source: str, names: Names, tables: Sequence[TableRecord], wait: Wait | None = None) -> Position:
    """Create publications and slot for a changefeed that starts without a dump; return where its stream starts.

    May be called again: the slot is then a new one.

    :raises SourceError: the server refuses.
    :raises ReadingStopped: the wait was ended.
    """
    with catalog_session(source) as session:
        ensure_publications(session, names, tables, has_slot=False)
        drop_slot(session, names.slot)  # of an attempt without a record: what was published since is unknown
        ids = [table.table_id for table in tables]
        proof = first_proof(session, all_publications(names), ids, timeline=primary_timeline(session))
    with connect(source, replication=True) as connection:
        return Position(create_slot(connection, names.slot, wait), proof)


def drop_upstream(source: str, names: Names) -> None:
    """Remove slot and publications, terminating the slot's reader; idempotent.

    :raises SourceError: the server refuses or cannot be reached; call again.
    """
    with catalog_session(source) as connection:
        connection.refuse_standby()  # it may have a copy of the slot, or none
        if names.owns_slot:
            drop_slot(connection, names.slot)
        for name in all_publications(names) if names.owns_publication else ():
            _define(connection, f"DROP PUBLICATION IF EXISTS {identifier(name)}")


def evict_reader(connection: Connection, slot: str) -> None:
    """Terminate the slot's reader, and wait until it has ended.

    Called after taking the log over: a reader that is suspended or cut off holds the slot until the server notices,
    which takes ``wal_sender_timeout`` (60 s), and could not append to the log any more. The server process is signalled
    repeatedly: if its client no longer reads, it hangs when reporting why it ends, until the second signal. A session
    of somebody who drops the slot, or moves it, is no reader and is left alone.
    """
    for _ in range(_EVICTIONS_MAX):
        status = slot_status(connection, slot)
        if status is None or not status.active_pid:
            return
        ended = connection.query(
            f"SELECT pg_terminate_backend(pid, {_EVICTION_MS}) FROM pg_stat_activity "
            f"WHERE pid = {status.active_pid} AND backend_type IS DISTINCT FROM 'client backend'"
        )
        if not ended:
            return
        _log.info("the slot's reader was ended", slot=slot, pid=status.active_pid)


def drop_slot(connection: Connection, slot: str) -> None:
    """:raises SlotInUseError: its reader does not go away; call again."""
    if slot_status(connection, slot) is None:
        return
    evict_reader(connection, slot)
    try:
        connection.query(f"SELECT pg_drop_replication_slot({literal(slot)})")
    except PositionLostError:
        _log.info("replication slot does not exist", slot=slot)
    except SlotInUseError:
        raise
    except SourceError as error:
        raise SourceError(f"replication slot {slot} could not be dropped: {error}") from error


def all_publications(names: Names) -> tuple[str, ...]:
    """Return all names that may exist."""
    if not names.owns_publication:
        return (names.publication,)
    return names.publication, names.publication + _APPEND_SUFFIX


def _ensure_publication(connection: Connection, name: str, tables: Sequence[TableRecord], publish: str) -> None:
    """Another session, as one of a run that was given up, may do the same at the same time; and tables may be dropped,
    or renamed."""
    before: list[tuple[set[tuple[str, str]], set[tuple[str, str]]]] = []
    while True:
        there = _members(connection, name)
        wanted = {*names_of(connection, [table.table_id for table in tables]).values()}
        try:
            _create_publication(connection, name, publish)
            _change_members(connection, name, "ADD", wanted - there)
            _change_members(connection, name, "DROP", there - wanted)
        except StatementRefusedError:
            if (there, wanted) in before:
                raise
            before.append((there, wanted))
        else:
            return


def _create_publication(connection: Connection, name: str, publish: str) -> None:
    """Idempotent."""
    exists = connection.query(f"SELECT 1 FROM pg_catalog.pg_publication WHERE pubname = {literal(name)}")
    if not exists:
        generated = ", publish_generated_columns = stored" if connection.server_version >= GENERATED_VERSION else ""
        # partitions appear as their root, which is the table that the changefeed knows
        _define(
            connection,
            f"CREATE PUBLICATION {identifier(name)} "
            f"WITH (publish = {literal(publish)}, publish_via_partition_root = true{generated})",
        )


def _change_members(connection: Connection, name: str, change: str, tables: Collection[tuple[str, str]]) -> None:
    """A statement locks each of its tables until it ends, and the server has room for some thousand locks. A table that
    inherits from one of them is none of them: without a key, its updates would be refused to applications.

    :raises TableLockedError: a statement changes one of them, or waits to.
    """
    names = [f"ONLY {qualified(*table)}" for table in sorted(tables)]
    for first in range(0, len(names), _PUBLISHED_AT_ONCE):
        some = ", ".join(names[first : first + _PUBLISHED_AT_ONCE])
        try:
            _define(connection, f"ALTER PUBLICATION {identifier(name)} {change} TABLE {some}")
        except TableLockedError as error:
            raise table_locks.named(error, connection.target, tables, table_locks.PUBLISHING) from error


def _define(connection: Connection, sql: str) -> None:
    """Change the catalog. Event triggers of the database find what they name, as in any session of our role. A server
    does not notice that its client has left, so it must not wait longer than that."""
    limit = f"SET LOCAL lock_timeout = {table_locks.LOCK_WAIT_MS}"
    connection.query(f"SET LOCAL search_path = DEFAULT; {limit}; {sql}")


def _members(connection: Connection, name: str) -> set[tuple[str, str]]:
    rows = connection.query(
        f"SELECT schemaname, tablename FROM pg_catalog.pg_publication_tables WHERE pubname = {literal(name)}"
    )
    return {(str(schema), str(table)) for schema, table in rows}


def _without_identity(connection: Connection, tables: Sequence[TableRecord]) -> set[int]:
    ids = ", ".join(str(table.table_id) for table in tables) or "0"
    rows = connection.query(
        "SELECT DISTINCT t.id::int8 FROM pg_catalog.pg_class t0 CROSS JOIN LATERAL (SELECT t0.oid AS id) t "
        "CROSS JOIN LATERAL (SELECT t0.oid UNION SELECT p.relid FROM pg_catalog.pg_partition_tree(t0.oid) p "
        "WHERE p.isleaf) parts(id) JOIN pg_catalog.pg_class c ON c.oid = parts.id "
        f"WHERE t0.oid IN ({ids}) AND (c.relreplident = 'n' OR "
        "c.relreplident = 'd' AND NOT EXISTS (SELECT FROM pg_catalog.pg_index i WHERE i.indrelid = c.oid AND "
        "i.indisprimary))"
    )
    return {int(row[0] or 0) for row in rows}

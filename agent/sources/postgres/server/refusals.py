"""Refusals of PostgreSQL: convert an ErrorResponse to one of ``agent.errors``, cause and cure in one line.

Pure. The SQLSTATE decides. Where one state means several causes, so do words that are the same in all languages of the
server (``lc_messages``): the routine that raised it, names of settings and files. English words are for other servers
that speak the protocol, and for routines of other names.
"""

import re
from typing import Final

from agent.errors import (
    NEW_POSITION,
    PositionLostError,
    SlotInUseError,
    SnapshotLostByGCError,
    SourceAuthError,
    SourceConfigError,
    SourceError,
    SourcePrivilegeError,
    SourceUnreachableError,
    StatementRefusedError,
    TableGoneError,
    TableLockedError,
)
from agent.sources.postgres.server.uri import Target

#: Fields of an ErrorResponse by their letter; C is the SQLSTATE, M the message, H the hint, R the server's routine.
ErrorFields = dict[str, str]

#: classes of SQLSTATE: connection, rollback (a deadlock), too few resources, intervention (shutdown, time-out)
_PASSING_CLASSES: Final = frozenset({"08", "40", "53", "57"})
#: a transaction timed out, a file could not be read or written
_PASSING: Final = frozenset({"25P03", "25P04", "58030"})
#: names of ours come from the catalog: a table, schema or column was there a moment ago
_GONE: Final = frozenset({"42P01", "3F000", "42703"})
#: routines of PostgreSQL 14 to 18 that refuse a slot, a publication, a role's wish to replicate
_OF_SLOTS: Final = re.compile(
    "ReplicationSlot|CreateDecodingContext|StartLogicalReplication|RaiseSlotInvalidationError|pg_logical_slot"
)
_OF_PUBLICATIONS: Final = frozenset({"get_publication_oid", "GetPublicationByName"})
_OF_REPLICATION: Final = frozenset({"InitPostgres", "CheckSlotPermissions"})
#: routines that refuse what a standby cannot do; a primary's sessions of ours are never read-only
_OF_STANDBYS: Final = frozenset(
    {"pg_current_wal_insert_lsn", "pg_current_wal_lsn", "pg_walfile_name", "CheckLogicalDecodingRequirements"}
    | {"PreventCommandIfReadOnly", "PreventCommandDuringRecovery"}
)
_SEGMENT: Final = re.compile(r"\b[0-9A-F]{24}\b")


class UnconvertibleError(StatementRefusedError):
    """The answer has a text without an equivalent in UTF-8."""


def parse_error(body: bytes) -> ErrorFields:
    return {
        part[:1].decode(errors="replace"): part[1:].decode(errors="replace") for part in body.split(b"\x00") if part
    }


def refusal(fields: ErrorFields, target: Target) -> SourceError:
    """The error to raise for what the server answered."""
    state, message = fields.get("C", ""), " ".join(fields.get("M", "no message").split())
    routine = fields.get("R", "")
    match state:
        case "28P01":
            return SourceAuthError(f"{target} refuses the password of user {target.user}; check the source URI")
        case "28000" if "certificate" in message:
            return SourceAuthError(
                f"{target} refuses user {target.user} ({message}); give its certificate with sslcert and sslkey"
            )
        case "28000":
            return SourceAuthError(f"{target} refuses user {target.user} ({message}); check the role and pg_hba.conf")
        case "42501":
            return _privilege(message, routine, target)
        case "3D000":
            return SourceConfigError(f"{target}: there is no such database; check the name after the port")
        case "53300" if "max_wal_senders" in message or "standby" in message:
            return SourceConfigError(f"{target} has no free WAL sender; raise max_wal_senders or stop an old reader")
        case "53300":
            return SourceUnreachableError(f"{target} has no free connection ({message}); raise max_connections")
        case "53200" if "shared memory" in message or "max_locks_per_transaction" in fields.get("H", ""):
            return SourceUnreachableError(
                f"{target} has no room for another lock ({message}): a snapshot locks each of its tables once; raise "
                "max_locks_per_transaction (tables / max_connections, and some more) and restart PostgreSQL"
            )
        case "53400":
            return SourceConfigError(f"{target} has no free replication slot; raise max_replication_slots or drop one")
        case "55P03":
            return TableLockedError(
                f"a table of {target} is locked, as a statement changes it or waits to ({message}); it is retried "
                "automatically"
            )
        case "55006":
            return SlotInUseError(f"{message}; it is free once the other reader (or its dead connection) is gone")
        case "55000" if "wal_level" in message:
            return SourceConfigError(f"{target} has not wal_level = logical; set it and restart PostgreSQL")
        case "55000" | "25006" | "0A000" if routine in _OF_STANDBYS:
            return SourceUnreachableError(f"{target} is a standby ({message}); it is tried again until it is promoted")
        case "55000" if "can no longer" in message or "invalidated" in message:
            return SnapshotLostByGCError(f"{message}; {NEW_POSITION}")
        case "55000" if "slot" in message or _OF_SLOTS.match(routine):
            return PositionLostError(f"{message}; {NEW_POSITION}")
        case "42704" if "replication slot" in message or _OF_SLOTS.match(routine):
            return PositionLostError(f"{message}; what it held back is gone: {NEW_POSITION}")
        case "42704" if message.startswith("publication") or routine in _OF_PUBLICATIONS:
            # before version 18, a stream ends where there is none
            return PositionLostError(f"{message} where the stream is, so changes may be in no stream; {NEW_POSITION}")
        case _ if state in _GONE and "pg_catalog." not in message:
            return TableGoneError(
                f"{target} answered {state}: {message}: a table was dropped, renamed or altered meanwhile; try again"
            )
        case "22P05" | "22021":
            return UnconvertibleError(
                f"{target} has a text in its catalog that UTF-8 does not have ({message}), in a name or a default; "
                "correct it there"
            )
        case "58P01" if "WAL segment" in message or _SEGMENT.search(message):
            return SnapshotLostByGCError(f"{message}; {NEW_POSITION}")
    if state[:2] in _PASSING_CLASSES or state in _PASSING:
        return SourceUnreachableError(f"{target} is not taking part just now ({message}); it is retried automatically")
    return StatementRefusedError(f"{target} answered {state}: {message}")


def _privilege(message: str, routine: str, target: Target) -> SourceAuthError:
    lowered = message.lower()
    if "wal sender" in lowered or "replication" in lowered or routine in _OF_REPLICATION:
        return SourceAuthError(
            f"user {target.user} may not replicate from {target}; run: ALTER ROLE {target.user} REPLICATION"
        )
    return SourcePrivilegeError(f"user {target.user} lacks a privilege on {target} ({message}); have it granted")

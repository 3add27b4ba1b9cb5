"""Refusals of MySQL and MariaDB: turn an error number into one of ``agent.errors``, cause and cure in one line.

Pure. The number decides; the server's own message is looked at only where one number means several causes: 1236
is whatever can go wrong while a binlog is sent.
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
    TableAlteredError,
    TableGoneError,
    TableLockedError,
)
from agent.sources.mysql.server.uri import Target

BINLOG_FAILED: Final = 1236
#: names in Weir's statements come from the catalog: a table or column was there a moment ago
_GONE: Final = frozenset({1054, 1146})
_OF_SERVER: Final = re.compile(r"'(mysql|performance_schema|information_schema|sys)\.", re.IGNORECASE)
#: MariaDB ends a dump for another one with its server id by a number of its own
_SAME_ID: Final = 4052
#: the server or the connection fails, or memory, disk or time is short at the moment: retried
_PASSING = frozenset(
    {1020, 1021, 1037, 1038, 1040, 1041, 1053, 1077, 1135, 1152, 1158, 1159, 1160, 1161, 1203, 1206, 1213, 1317}
    | {1927, 1969, 2003, 2006, 2013, 3024, 4031}
)
_PRIVILEGE = frozenset({1044, 1142, 1143, 1227, 1370, 3118, 4151})

#: common parts of the texts of 1236, in lower case: purged, never existed, or another server's
_PURGED = ("purged", "could not find first log file", "missing the gtid", "could not find gtid state")
_FOREIGN = (
    "impossible position",
    "position > file size",
    "which is not in the master's binlog",
    "has more gtids",
    "not the end of",
    "diverged",
)
_DAMAGED = ("truncated in the middle", "event read from binlog did not pass", "bogus data", "corrupt")


def refusal(code: int, message: str, target: Target) -> SourceError:
    """The error to raise for what the server answered."""
    message = " ".join(message.split()) or "no message"
    match code:
        case 1045 | 1698:
            proof = "" if target.tls.certificate else ", and give ssl-cert and ssl-key if the user needs a certificate"
            return SourceAuthError(f"{target} refuses user {target.user} or its password; check the source URI{proof}")
        case 1129 | 1130:
            return SourceAuthError(
                f"{target} accepts no connection from this machine ({message}); have the host allowed"
            )
        case 1820 | 1862 | 4150:
            return SourceAuthError(f"the password or account of user {target.user} at {target} has expired; renew it")
        case 1251 | 1275 | 2059 | 2061:
            return SourceAuthError(
                f"{target} asks for an authentication Weir lacks ({message}); use caching_sha2_password, "
                "mysql_native_password or ed25519"
            )
        case 1049:
            return SourceConfigError(f"{target}: there is no such database; check the name after the port")
        case _ if code in _GONE and not _OF_SERVER.search(message):
            return TableGoneError(
                f"{target} answered {code}: {message}: a table was dropped, renamed or altered meanwhile; try again"
            )
        case 1412:
            return TableAlteredError(
                f"{target} answered {code}: {message}: a table was altered under the snapshot; try again"
            )
        case 1205:
            return TableLockedError(
                f"a table of {target} is locked, as a statement changes it or waits to ({message}); it is retried "
                "automatically"
            )
        case 1373 | 1789:
            return SnapshotLostByGCError(f"{target} has purged what comes next ({message}); {NEW_POSITION}")
        case _ if code in (BINLOG_FAILED, _SAME_ID):
            return binlog_refusal(message, target)
        case _ if code in _PRIVILEGE:
            return SourcePrivilegeError(
                f"user {target.user} lacks a privilege on {target} ({message}); have it granted"
            )
        case _ if code in _PASSING:
            return SourceUnreachableError(f"{target} is not taking part just now ({message}); it is tried again")
    return StatementRefusedError(f"{target} answered {code}: {message}")


def binlog_refusal(message: str, target: Target) -> SourceError:
    """Return the error for a binlog dump that the server ended."""
    lowered = message.lower()
    if "same server_uuid" in lowered or "same server_id" in lowered or "same server-id" in lowered:
        return SlotInUseError(f"{target}: another replica came with our server id ({message}); a new one is taken")
    if any(text in lowered for text in _PURGED):
        return SnapshotLostByGCError(f"{target} has purged the binlog that comes next ({message}); {NEW_POSITION}")
    if any(text in lowered for text in _FOREIGN):
        return PositionLostError(f"{target} does not have Weir's position ({message}); {NEW_POSITION}")
    if any(text in lowered for text in _DAMAGED):
        return PositionLostError(f"the binlog of {target} is damaged ({message}); {NEW_POSITION}")
    if "max_allowed_packet" in lowered:
        return SourceConfigError(f"{target}: {message}; raise max_allowed_packet there to 1G")
    if "binary log is not open" in lowered or "not enabled" in lowered:
        return SourceConfigError(f"{target} writes no binlog; set log_bin and restart it")
    if "anonymous transaction" in lowered:
        return SourceConfigError(
            f"{target} has gtid_mode = ON, and what comes next in its binlog has no GTID; run: SET GLOBAL gtid_mode = "
            "ON_PERMISSIVE, and turn it ON again when the changefeed has caught up"
        )
    if "checksum" in lowered:
        return SourceConfigError(f"{target}: {message}; set binlog_checksum there to CRC32")
    return SourceError(f"{target} cannot send its binlog: {message}")

"""Binlog request: asks the server for its binlog as a replica would, by file and position or by GTID.

MariaDB takes its GTID position from a session variable and MySQL has a command for it. The session must say that it
knows checksums and (MariaDB) GTID events, or the server would hide or rewrite them.
"""

import struct
from typing import Final
from uuid import UUID, uuid5

from agent.errors import SourceAuthError
from agent.sources.mysql.position.gtid import MysqlGtidSet
from agent.sources.mysql.position.positions import FIRST_POSITION, BinlogPosition, SourcePosition
from agent.sources.mysql.server.connection import Connection
from agent.sources.mysql.server.sql import literal

_COM_BINLOG_DUMP, _COM_REGISTER_SLAVE, _COM_BINLOG_DUMP_GTID = 0x12, 0x15, 0x1E
_NON_BLOCKING, _THROUGH_GTID = 0x01, 0x04
#: MariaDB: understands GTID events
_CAPABILITY_GTID: Final = 4
_WRITE_TIMEOUT_S: Final = 600
_REPLICAS: Final = UUID("a4b5d6b8-3d7a-4a8e-9d39-6d6c1f5d1f0e")


def request_binlog(
    connection: Connection, position: SourcePosition, *, server_id: int, by_gtid: bool, heartbeat_s: float
) -> None:
    """On return the socket is at the first packet of the binlog, or of a refusal.

    :raises SourceError: the server refused what comes before.
    """
    _introduce(connection, server_id=server_id, heartbeat_s=heartbeat_s)
    if not by_gtid:
        binlog = position.binlog
        head = struct.pack("<IHI", binlog.position, 0, server_id)
        connection.send_command(_COM_BINLOG_DUMP, head + binlog.file.encode())
    elif connection.is_mariadb:
        connection.execute(
            f"SET @slave_connect_state = {literal(position.gtid)}, "
            "@slave_gtid_strict_mode = 1, @slave_gtid_ignore_duplicates = 0"
        )
        connection.send_command(_COM_BINLOG_DUMP, struct.pack("<IHI", FIRST_POSITION, 0, server_id))
    else:
        known = MysqlGtidSet.parse(position.gtid).encode()
        head = struct.pack("<HIIQI", _THROUGH_GTID, server_id, 0, FIRST_POSITION, len(known))
        connection.send_command(_COM_BINLOG_DUMP_GTID, head + known)


def request_events(connection: Connection, begin: BinlogPosition) -> None:
    """The same from a place to the end of the binlog, for once: as nobody's replica, beside one that we are."""
    connection.execute("SET " + ", ".join(_abilities(connection)))
    head = struct.pack("<IHI", begin.position, _NON_BLOCKING, 0)
    connection.send_command(_COM_BINLOG_DUMP, head + begin.file.encode())


def _abilities(connection: Connection) -> list[str]:
    """What the session understands, as settings."""
    settings = ["@master_binlog_checksum = @@global.binlog_checksum"]
    if connection.is_mariadb:
        settings.append(f"@mariadb_slave_capability = {_CAPABILITY_GTID}")
    else:  # newer servers know the new names only
        settings.append("@source_binlog_checksum = @@global.binlog_checksum")
    # a reader that waits for a slow log is not dead
    return [*settings, f"SESSION net_write_timeout = {_WRITE_TIMEOUT_S}"]


def _introduce(connection: Connection, *, server_id: int, heartbeat_s: float) -> None:
    period_ns = int(heartbeat_s * 1e9)
    settings = [*_abilities(connection), f"@master_heartbeat_period = {period_ns}"]
    if not connection.is_mariadb:
        # a UUID that is ours alone lets the server end our dead predecessor
        replica = literal(str(uuid5(_REPLICAS, str(server_id))))
        settings += [f"@source_heartbeat_period = {period_ns}"]
        settings += [f"@slave_uuid = {replica}", f"@replica_uuid = {replica}"]
    connection.execute("SET " + ", ".join(settings))
    try:
        # no host name, user, password or port: they are for SHOW REPLICAS only
        connection.command(_COM_REGISTER_SLAVE, struct.pack("<IBBBHII", server_id, 0, 0, 0, 0, 0, 0))
    except SourceAuthError as error:
        user = connection.target.user
        raise SourceAuthError(
            f"user {user} may not read the binlog of {connection.target}; run: GRANT REPLICATION SLAVE ON *.* TO {user}"
        ) from error

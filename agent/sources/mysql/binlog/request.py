"""Binlog request: requests the binlog from the server like a replica, by file and position or by GTID.

MariaDB reads the GTID position from a session variable, MySQL has a command for it. The session must declare that it
supports checksums and (MariaDB) GTID events, otherwise the server hides or rewrites them.
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
#: MariaDB: supports GTID events
_CAPABILITY_GTID: Final = 4
_WRITE_TIMEOUT_S: Final = 600
_REPLICAS: Final = UUID("a4b5d6b8-3d7a-4a8e-9d39-6d6c1f5d1f0e")


def request_binlog(
    connection: Connection, position: SourcePosition, *, server_id: int, by_gtid: bool, heartbeat_s: float
) -> None:
    """Send the request; on return the socket is at the first packet of the binlog, or of an error.

    :raises SourceError: the server refused the preceding commands.
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
    """Request the events from a place to the end of the binlog once, without registering as a replica."""
    connection.execute("SET " + ", ".join(_abilities(connection)))
    head = struct.pack("<IHI", begin.position, _NON_BLOCKING, 0)
    connection.send_command(_COM_BINLOG_DUMP, head + begin.file.encode())


def _abilities(connection: Connection) -> list[str]:
    """Return the session settings that declare supported features."""
    settings = ["@master_binlog_checksum = @@global.binlog_checksum"]
    if connection.is_mariadb:
        settings.append(f"@mariadb_slave_capability = {_CAPABILITY_GTID}")
    else:  # newer servers only know the new names
        settings.append("@source_binlog_checksum = @@global.binlog_checksum")
    # waiting for a slow log must not end the connection
    return [*settings, f"SESSION net_write_timeout = {_WRITE_TIMEOUT_S}"]


def _introduce(connection: Connection, *, server_id: int, heartbeat_s: float) -> None:
    period_ns = int(heartbeat_s * 1e9)
    settings = [*_abilities(connection), f"@master_heartbeat_period = {period_ns}"]
    if not connection.is_mariadb:
        # a UUID of our own makes the server end the dump of our dead predecessor
        replica = literal(str(uuid5(_REPLICAS, str(server_id))))
        settings += [f"@source_heartbeat_period = {period_ns}"]
        settings += [f"@slave_uuid = {replica}", f"@replica_uuid = {replica}"]
    connection.execute("SET " + ", ".join(settings))
    try:
        # no host name, user, password or port: only SHOW REPLICAS uses them
        connection.command(_COM_REGISTER_SLAVE, struct.pack("<IBBBHII", server_id, 0, 0, 0, 0, 0, 0))
    except SourceAuthError as error:
        user = connection.target.user
        raise SourceAuthError(
            f"user {user} may not read the binlog of {connection.target}; run: GRANT REPLICATION SLAVE ON *.* TO {user}"
        ) from error

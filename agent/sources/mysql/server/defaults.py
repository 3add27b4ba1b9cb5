"""Server defaults: what statements leave to a setting of the server that not every log has."""

from typing import Final

from agent.sources.mysql.server.connection import Connection

_SCOPE: Final = (
    "SELECT variable_scope FROM information_schema.system_variables "
    "WHERE variable_name = 'EXPLICIT_DEFAULTS_FOR_TIMESTAMP'"
)


def explicit_timestamps(connection: Connection) -> bool | None:
    """Return ``explicit_defaults_for_timestamp`` of sessions where the log does not record it; None if MariaDB logs it.

    MySQL 8 logs it with statements that it matters to, MySQL 5.7 never. MariaDB logs it since each session has one
    (MDEV-29225); before, the server had one for all.
    """
    if connection.is_mariadb and connection.query(_SCOPE) == [("SESSION",)]:
        return None
    return connection.query("SELECT @@global.explicit_defaults_for_timestamp") == [("1",)]

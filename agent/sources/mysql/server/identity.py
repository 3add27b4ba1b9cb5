"""Server identity: distinguishes servers, since binlog positions of two servers must never be compared.

MySQL has a UUID. MariaDB has no permanent one, so it is identified by what distinguishes the servers of a topology:
replication domain and server id.
"""

from typing import Any, Protocol

from agent.ports.source import Identity


class IdentityQueries(Protocol):
    @property
    def is_mariadb(self) -> bool: ...

    def query(self, sql: str) -> Any: ...


def read_identity(connection: IdentityQueries) -> Identity:
    """Read the server's identity.

    :raises SourceError: the server refuses.
    """
    if connection.is_mariadb:
        [(domain, server)] = connection.query("SELECT @@global.gtid_domain_id, @@global.server_id")
        return Identity(f"mariadb-{domain}-{server}")
    [(uuid,)] = connection.query("SELECT @@global.server_uuid")
    return Identity(f"mysql-{uuid}")

"""Server identity: tells servers apart, since places in the binlogs of two servers are never compared.

MySQL has a UUID. MariaDB has none that lasts, so it is known by what tells the servers of one topology apart there:
replication domain and server id.
"""

from typing import Any, Protocol

from agent.ports.source import Identity


class IdentityQueries(Protocol):
    @property
    def is_mariadb(self) -> bool: ...

    def query(self, sql: str) -> Any: ...


def read_identity(connection: IdentityQueries) -> Identity:
    """:raises SourceError: the server refuses."""
    if connection.is_mariadb:
        [(domain, server)] = connection.query("SELECT @@global.gtid_domain_id, @@global.server_id")
        return Identity(f"mariadb-{domain}-{server}")
    [(uuid,)] = connection.query("SELECT @@global.server_uuid")
    return Identity(f"mysql-{uuid}")

"""MariaDB and MySQL: a store for clusters whose team has one of them and no etcd, over PyMySQL.

``target`` reads the URL, ``session`` opens a connection that never sends a password in clear, ``fitness`` refuses
servers that cannot keep the store's promises, ``database`` runs its transactions. PyMySQL and not one of the asyncio
drivers: each connection of the store has a thread (``reactor.store.sql.lane``), which drops a commit that nobody waits
for any longer, and the sources need PyMySQL's handshakes in any case (``docs/decisions/0014-mysql-as-store.md``).
"""

from reactor.store.sql.mysql.database import MysqlDatabase
from reactor.store.sql.mysql.target import Target, parse

__all__ = ["MysqlDatabase", "Target", "parse"]

"""SQL store: ``reactor.store.port.MetaStore`` on a relational database, with etcd's revisions, leases and watches.

    client ──► lane (thread, connection) ──► logic ──► database (dialect)
       └─────► watching ──────┘

``logic`` has the statements of each call; a *database* (``sqlite``, ``postgres``, ``mysql``) runs them, and knows the
clock. Three tables have the state: ``weir_key``, ``weir_lease``, and ``weir_change``, the journal that watches read.
The one row of ``weir_store``, which every writing transaction locks, has the revision; ``weir_lineage`` the servers
under which it was written.
"""

from reactor.store.sql.client import connect

__all__ = ["connect"]

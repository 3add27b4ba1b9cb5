"""etcd client: ``reactor.store.port.MetaStore`` over aioetcd3's calls and a native ``grpc.aio`` channel.

    client ──► endpoints ──► connection (one server) ──► stubs (aioetcd3)
       └─────► watching ──────┘

``connect`` creates a client. No other package uses aioetcd3 or grpc, and their errors are translated (``faults``).
"""

from reactor.store.etcd import engine as _engine  # noqa: F401  # before grpc
from reactor.store.etcd.client import connect

__all__ = ["connect"]

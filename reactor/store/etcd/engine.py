"""gRPC engine: chooses how gRPC's core polls in this process; imported before grpc, which reads it once.

Since 1.80, a Python process's sockets are polled by threads of the core's "event engine", one more hop between the
network and the loop: 20 % of the CPU of a call, and as much of a tick (``python -m benchmarks reactor``). The previous
poller is still available, behind an experimental switch that gRPC intends to remove. Untested versions are left alone,
since an unknown switch would log an error.

Processes that this one starts execute another program at once. gRPC's fork handlers start threads between the two,
which print errors, and have ended a JVM before it began. They are off.
"""

import os
from importlib.metadata import version

#: the first and the last version with both engines
_FIRST, _LAST = (1, 80), (1, 85)


def choose(grpc_version: str) -> None:
    """Set the switches. The user's own settings take precedence."""
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
    major, minor = (int(part) for part in grpc_version.split(".")[:2])
    if _FIRST <= (major, minor) <= _LAST:
        os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_client")


choose(version("grpcio"))

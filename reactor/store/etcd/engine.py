"""gRPC engine: chooses what gRPC's core polls with in this process; imported before grpc, which reads it once.

Since 1.80 the sockets of a Python process are polled by threads of the core's "event engine", one hop more between
the network and the loop: 20 % of the CPU of a call, and as much of a tick (``python -m benchmarks reactor``). The
poller from before it is still there, behind a switch that gRPC means to remove; versions that nobody has tried are
left alone, for a switch that they do not know would be an error in every log.
"""

import os
from importlib.metadata import version

#: The versions with both engines, first and last.
_FIRST, _LAST = (1, 80), (1, 85)


def choose(grpc_version: str) -> None:
    """What the user has set stays."""
    major, minor = (int(part) for part in grpc_version.split(".")[:2])
    if _FIRST <= (major, minor) <= _LAST:
        os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_client")


choose(version("grpcio"))

"""TCP keepalive: tests connections to a source that wait for it, so that a lost machine ends them within a minute."""

import socket
from typing import Final

#: seconds until a silent connection is tested, between two tests, and how many may be lost
_SETTINGS: Final = {"TCP_KEEPIDLE": 20, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}


def keep_alive(connection: socket.socket) -> None:
    """Send each packet at once, and test the connection while nothing comes."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _SETTINGS.items():
        if hasattr(socket, name):  # not available on every platform
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

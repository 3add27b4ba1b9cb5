"""Spark masters: which kind of cluster a master URL names, and whether a standalone one can be reached."""

import socket
from typing import Final

_CONNECT_TIMEOUT_S: Final = 3.0
_STANDALONE: Final = "spark://"
_PORT: Final = 7077


def is_connect(master: str) -> bool:
    return master.startswith("sc://")


def is_local(master: str) -> bool:
    return master.startswith("local") and not master.startswith("local-cluster")


def is_standalone(master: str) -> bool:
    return master.startswith(_STANDALONE)


def addresses(master: str) -> list[tuple[str, int]]:
    """Return host and port of each of a standalone cluster's masters."""
    found = []
    for item in master.removeprefix(_STANDALONE).split(","):
        host, colon, port = item.strip().rpartition(":")
        found.append((host.strip("[]"), int(port)) if colon and port.isdigit() else (item.strip(), _PORT))
    return found


def unreachable(master: str) -> str:
    """Return why none of a standalone cluster's masters can be reached; empty if one can, or if it cannot be checked
    here."""
    reason = ""
    for host, port in addresses(master) if is_standalone(master) else ():
        try:
            socket.create_connection((host, port), timeout=_CONNECT_TIMEOUT_S).close()
        except OSError as error:
            reason = error.strerror or str(error)
        else:
            return ""
    return f"no master answers at {master} ({reason.lower()}); start it, or correct spark-master" if reason else ""

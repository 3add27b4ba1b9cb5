"""Addresses: splits and joins ``host:port``; an IPv6 host is written in brackets."""

from ipaddress import ip_address

_PORT_MAX = 65_535


def split_address(address: str) -> tuple[str, int]:
    """Return host and port.

    :raises ValueError: it is not an address.
    """
    host, _, port = address.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not bare or (":" in bare and bare == host) or not port.isdecimal() or int(port) > _PORT_MAX:
        raise ValueError(f"{address!r} is not host:port (an IPv6 host needs brackets)")
    return bare, int(port)


def join_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach it. Names other than localhost are considered remote."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


DEFAULT_ADDRESS = "127.0.0.1:8300"

"""Spark masters: which kind of cluster a master URL names, whether a standalone one can be reached, and whether what
goes to it over a network is protected."""

import re
import socket
from collections.abc import Mapping
from ipaddress import ip_address
from typing import Final

_CONNECT_TIMEOUT_S: Final = 3.0
_STANDALONE: Final = "spark://"
_PORT: Final = 7077
_CONNECT: Final = "sc://"
_CONNECT_PORT: Final = 15_002
#: settings that encrypt what drivers, masters and executors send each other
_ENCRYPTION: Final = ("spark.network.crypto.enabled", "spark.ssl.rpc.enabled")
_KNOWN: Final = re.compile(
    r"local(\[(\*|[1-9]\d*)(,\s*\d+)?\]|-cluster\[.+\])?|yarn|(spark|sc|k8s)://[^/]\S*", re.IGNORECASE | re.ASCII
)
_SECRET: Final = re.compile(r"secret|password|token|(access|private|account|api)[._-]?key", re.I)
_TOKEN: Final = re.compile(r"(;token=)[^;]*", re.I)


def is_master(master: str) -> bool:
    return _KNOWN.fullmatch(master) is not None


def is_connect(master: str) -> bool:
    return master.startswith(_CONNECT)


def is_local(master: str) -> bool:
    return master.startswith("local") and not master.startswith("local-cluster")


def is_standalone(master: str) -> bool:
    return master.startswith(_STANDALONE)


def addresses(master: str) -> list[tuple[str, int]]:
    """Return host and port of each of a standalone cluster's masters, or of a server of Spark Connect."""
    is_server = is_connect(master)
    places = [master.removeprefix(_CONNECT).partition("/")[0]] if is_server else master[len(_STANDALONE) :].split(",")
    found = []
    for item in places:
        host, colon, port = item.strip().rpartition(":")
        is_whole = colon and port.isdigit()
        default = (item.strip().strip("[]"), _CONNECT_PORT if is_server else _PORT)
        found.append((host.strip("[]"), int(port)) if is_whole else default)
    return found


def unreachable(master: str) -> str:
    """Return why none of a standalone cluster's masters, or the server of Spark Connect, can be reached; empty if one
    can, or if it cannot be checked here."""
    reason = ""
    for host, port in addresses(master) if is_standalone(master) or is_connect(master) else ():
        try:
            socket.create_connection((host, port), timeout=_CONNECT_TIMEOUT_S).close()
        except OSError as error:
            reason = error.strerror or str(error)
        else:
            return ""
    who = "server of Spark Connect" if is_connect(master) else "master"
    return (
        f"no {who} answers at {shown(master)} ({reason.lower()}); start it, or correct spark-master" if reason else ""
    )


def shown(master: str) -> str:
    """Return ``master`` without its token, for logs and errors."""
    return _TOKEN.sub(r"\1***", master)


def is_secret(setting: str) -> bool:
    """Return whether a Spark setting's value is a secret, by the setting's name."""
    return _SECRET.search(setting) is not None


def unprotected(master: str, settings: Mapping[str, str]) -> str:
    """Return what a master lacks to be authenticated and, if it is reached over a network, encrypted; empty if
    nothing. On this machine, too, a driver without a secret runs what any other user sends it."""
    if is_local(master):
        return ""
    if is_connect(master):
        return _connect_lacks(master)
    lacking = [] if _is_on(settings, "spark.authenticate") else ['"spark.authenticate" = "true"']
    if is_standalone(master) and not settings.get("spark.authenticate.secret"):
        lacking.append('"spark.authenticate.secret"')  # yarn and kubernetes make one for each application
    if not is_here(master) and not any(_is_on(settings, name) for name in _ENCRYPTION):
        lacking.append(f'"{_ENCRYPTION[0]}" = "true"')
    return ", ".join(lacking)


def is_here(master: str) -> bool:
    """Return whether all masters of a standalone cluster are on this machine."""
    return is_standalone(master) and all(_is_here(host) for host, _ in addresses(master))


def _connect_lacks(master: str) -> str:
    place, _, parameters = master.removeprefix(_CONNECT).partition("/")
    given = dict(part.strip().lower().partition("=")[::2] for part in parameters.split(";"))
    # Spark encrypts by itself whenever there is a token
    is_encrypted = given.get("use_ssl") == "true" or bool(given.get("token"))
    return "" if is_encrypted or _is_here(place.rpartition(":")[0] or place) else "use_ssl=true"


def _is_here(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _is_on(settings: Mapping[str, str], name: str) -> bool:
    return settings.get(name, "").strip().lower() == "true"

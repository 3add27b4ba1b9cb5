"""Entry points of the Python interface: ``start``, ``local`` and ``connect``."""

import warnings
from pathlib import Path

from capture.api.connection import Connection
from capture.errors import ConfigError
from capture.python import hosting
from capture.python.cluster import Cluster
from capture.python.local import LocalCluster

_URLS = ("http://", "https://")
_OF_CONNECTIONS = ("token", "ca_file", "node")


async def start(directory: Path | str = "weir-data", **settings: object) -> Cluster:
    """Start a capture in the current event loop; return its cluster when it has an owner.

    Its files, an embedded etcd's among them, are stored below ``directory``; ``settings`` are those of ``weir server``
    (``etcd="http://…"`` joins a cluster that exists). The capture runs in a task of its own: it may be stopped in
    another cell or task than the one that started it, with ``await cluster.stop()`` or by ``async with``.

    :raises WeirError: it cannot start.
    """
    host = hosting.TaskHost(hosting.prepared(directory, settings))
    url = await host.start()
    return Cluster(LocalCluster(Connection(url)), host)


def local(place: Path | str = "weir-data", **settings: object) -> LocalCluster:
    """As ``start``, for code without ``await``: the capture gets an event loop of its own in a thread. A URL as
    ``place`` starts nothing and returns the running cluster there, as ``connect`` does.

    :raises WeirError: it cannot start.
    """
    if isinstance(place, str) and place.startswith(_URLS):
        if wrong := settings.keys() - _OF_CONNECTIONS:
            known = ", ".join(_OF_CONNECTIONS)
            raise ConfigError(
                f"{min(wrong)} is a setting of servers, and {place} runs already; leave it out ({known} fit)"
            )
        return connect(place, **{name: str(value) for name, value in settings.items()}).local
    host = hosting.ThreadHost(hosting.prepared(place, settings))
    return LocalCluster(Connection(host.start()), host)


def connect(server: str, *, token: str | None = None, ca_file: str = "", node: str = "") -> Cluster:
    """Return the running cluster that the capture at the URL ``server`` belongs to, without a request.

    ``token`` None: that of this user's server there, or ``WEIR_TOKEN``. ``ca_file``: trusted certificates besides the
    system's; ``node``: the node whose certificate is expected. Warns if the token would go over a network without TLS.
    """
    connection = Connection(server, token=token, ca_file=ca_file, node=node)
    if problem := connection.unprotected():
        warnings.warn(problem, stacklevel=2)
    return Cluster(LocalCluster(connection))

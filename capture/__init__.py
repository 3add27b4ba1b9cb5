"""Capture: Weir's process: sockets, mailboxes, clocks and configuration. The only package that starts things.

It is also the Python interface: ``start`` runs a capture in a notebook's event loop, ``local`` in a thread, ``connect``
speaks to a running cluster. They are imported on first use, so that importing this package costs next to nothing.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from capture.python.cluster import Changefeed, Cluster
    from capture.python.entry import connect, local, start
    from capture.python.local import LocalChangefeed, LocalCluster
    from capture.python.moment import Moment
    from capture.python.spark_source import SparkSource
    from capture.python.table import Table
    from reactor.errors import WeirError

__all__ = [
    "Changefeed",
    "Cluster",
    "LocalChangefeed",
    "LocalCluster",
    "Moment",
    "SparkSource",
    "Table",
    "WeirError",
    "connect",
    "local",
    "start",
]
_PLACES = {
    "Changefeed": "capture.python.cluster",
    "Cluster": "capture.python.cluster",
    "LocalChangefeed": "capture.python.local",
    "LocalCluster": "capture.python.local",
    "Moment": "capture.python.moment",
    "SparkSource": "capture.python.spark_source",
    "Table": "capture.python.table",
    "WeirError": "reactor.errors",
    "connect": "capture.python.entry",
    "local": "capture.python.entry",
    "start": "capture.python.entry",
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    from capture.gc_settings import paused

    if name not in _PLACES:
        raise AttributeError(f"module 'capture' has no attribute {name!r}; it has {', '.join(__all__)}")
    with paused():
        module = import_module(_PLACES[name])
    value = globals()[name] = getattr(module, name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

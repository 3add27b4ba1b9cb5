"""Spark daemon: the process that Spark forks its Python workers from, with our modules already imported.

Spark drops workers that are idle for a minute, so on a quiet changefeed nearly every flush would import numba, pyarrow
and the sink's library again (0.6 s here). Modules imported before the fork are shared by all workers.

Forking is only safe while no thread holds a lock. The only threads these imports start are those of jemalloc and
OpenBLAS, which stop and restart them around a fork. delta-rs and pyarrow create their thread pools on first use, so
nothing is *called* here.

Spark's daemon also runs a garbage collection after every task, which takes 40 ms with all these modules loaded, a third
of an empty job. ``gc.freeze`` excludes the loaded objects from collection and keeps the forked pages shared.
"""

import gc
import importlib
import sys

import structlog

from agent.ports.plugin import sinks, sources
from agent.spark import learning, memory

#: in this order: the slow modules that every task needs; plugins declare theirs (``agent.ports.plugin``)
PRELOADED = (
    "numba",
    "pandas",
    "pyarrow.compute",
    "pyarrow.parquet",
    "pyarrow.ipc",
    "pyspark.worker",
    "agent.flush.task",
    "agent.units.dump",
)


def preload() -> None:
    """Import the modules. One that fails to import here fails again in the task that needs it, where the error is
    reported. Nothing is collected meanwhile: a fifth of the time would be spent on traversing what stays."""
    memory.give_back()
    gc.disable()
    of_plugins = [name for plugin in (*sinks().usable(), *sources().usable()) for name in plugin.preload]
    for name in (*PRELOADED, *of_plugins):
        try:
            importlib.import_module(name)
        except Exception:  # a plugin may raise anything
            continue
    gc.enable()
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))  # the JVM reads stdout
    preload()
    learning.begin()
    from pyspark.daemon import manager

    manager()

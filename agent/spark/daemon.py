"""Spark daemon: the process that Spark forks its Python workers from, with our imports already made.

Spark drops workers that were idle for a minute, so on a quiet changefeed nearly every flush would pay for importing
numba, pyarrow and the sink's library again (0.6 s here). What is imported before the fork is shared by all workers.

Forking is only safe while no thread holds a lock. The only threads these imports start are jemalloc's and OpenBLAS's,
and both stop and restart them around a fork; delta-rs and pyarrow make their thread pools on first use, hence nothing
is *called* here.

Spark's daemon also collects garbage after every task, which with all these modules loaded takes 40 ms, a third of an
empty job. ``gc.freeze`` takes what is loaded out of those rounds, and keeps the forked pages shared.
"""

import gc
import importlib

from agent.ports.plugin import sinks, sources
from agent.spark import memory

#: In this order: the slow ones that every task needs. Plugins name theirs (``agent.ports.plugin``).
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
    """A module that cannot be imported fails in the task that needs it, where the error has a reader."""
    memory.give_back()
    of_plugins = [name for plugin in (*sinks().usable(), *sources().usable()) for name in plugin.preload]
    for name in (*PRELOADED, *of_plugins):
        try:
            importlib.import_module(name)
        except Exception:  # of a plugin, it may be any
            continue
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    preload()
    from pyspark.daemon import manager

    manager()

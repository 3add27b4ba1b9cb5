"""Class archive: Spark's Java classes in the form that a JVM maps into memory, which halves the start of a driver.

A JVM that runs with ``-XX:ArchiveClassesAtExit`` writes the classes that it has loaded to a file when it exits (JEP
350); later ones map the file instead of reading and verifying 12,000 classes. An archive fits one Java and one
installation of PySpark; a JVM that is given another one starts without it. ``weir kernels compile`` makes the archive
(``agent.spark.archiving``) and keeps it beside the compiled kernels.
"""

import hashlib
from functools import cache
from pathlib import Path

import pyspark

from agent.kernels import store


@cache
def place(java: Path) -> Path | None:
    """Return where the archive for this Java is kept, whether it exists or not; None: nothing can be kept."""
    home = store.home()
    real = java.resolve()
    kind = f"{real} {real.stat().st_mtime_ns} {pyspark.__path__[0]} {pyspark.__version__}"
    return None if home is None else home / f"spark-{hashlib.sha256(kind.encode()).hexdigest()[:16]}.jsa"


def jvm_option(java: Path) -> str:
    """Return the option with which a JVM uses the archive; empty if there is none."""
    archive = place(java)
    return f"-XX:SharedArchiveFile={archive}" if archive is not None and archive.exists() else ""

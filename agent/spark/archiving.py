"""Archiving: makes the archive of Spark's Java classes (``agent.spark.class_archive``) in a session of its own."""

import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import pyarrow as pa

from agent.errors import JobError
from agent.spark import session as spark_session
from agent.spark.class_archive import place
from agent.spark.defaults import JVM_OPTIONS
from agent.spark.java import find_java

_MASTER: Final = "local[1]"
#: a JVM writes the archive while it exits
_EXIT_TIMEOUT_S: Final = 300.0


def archive_classes() -> Path | None:
    """Return the archive for the Java that Spark will use; make it if there is none. None: it cannot be kept anywhere.

    The process must not have a session.

    :raises JavaError: no Java, or one too old.
    :raises JobError: Spark failed, or its JVM did not write the archive.
    """
    archive = place(find_java())
    if archive is None or archive.exists():
        return archive
    with tempfile.TemporaryDirectory(prefix="spark-", dir=archive.parent) as directory:
        new = Path(directory, archive.name)
        settings = {"spark.driver.extraJavaOptions": f"{JVM_OPTIONS} -XX:ArchiveClassesAtExit={new}"}
        session = spark_session.open_session(spark_session.Order(_MASTER, settings, Path(directory)))
        try:
            session.range(0, 1, 1, 1).mapInArrow(_same, "id bigint").collect()
        finally:
            spark_session.close_session(session, exit_timeout_s=_EXIT_TIMEOUT_S)
        if not new.exists():
            raise JobError(f"{find_java()} did not write an archive of Spark's classes; Spark works without one")
        new.rename(archive)
    return archive


def _same(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches

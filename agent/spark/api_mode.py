"""API mode of PySpark: keeps this process in classic mode, in which it may have a driver of its own.

PySpark takes its mode from the environment, and ignores the master that it is given where the environment asks for
Spark Connect. Users of Spark Connect have ``SPARK_REMOTE`` or ``SPARK_API_MODE`` there. A session of Spark Connect adds
``SPARK_CONNECT_MODE_ENABLED``, which stays when the session has ended and is inherited by child processes.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from agent.errors import JobError

_ENABLED: Final = "SPARK_CONNECT_MODE_ENABLED"
_ASKED: Final = ("SPARK_REMOTE", "SPARK_API_MODE", "SPARK_CONNECT_MODE")


@contextmanager
def classic_mode() -> Iterator[None]:
    """Make sessions that are opened in the context classic ones, whatever the environment asks for.

    :raises JobError: this process has a session of Spark Connect, which excludes a driver.
    """
    if _has_connect_session():
        raise JobError(
            "this process has a session of Spark Connect, and PySpark allows no driver beside one; run the capture in "
            "a process of its own (weir server), give it a server of Spark Connect (spark-master sc://…), or stop that "
            "session first"
        )
    leave_connect_mode()
    asked = {name: os.environ.pop(name) for name in _ASKED if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(asked)


def leave_connect_mode() -> None:
    """Forget the mode of a session of Spark Connect that has ended."""
    if not _has_connect_session():
        os.environ.pop(_ENABLED, None)


def _has_connect_session() -> bool:
    module = sys.modules.get("pyspark.sql.connect.session")
    session = module and module.SparkSession._default_session
    return session is not None and not session.is_stopped

"""Spark queries of users: scripts in processes and sessions of their own, with settings that make a start cheap.

They have the Java options of our own sessions, the archive of Spark's classes, and our daemon (see ``docs/python.md``).
"""

import os
import shlex
import subprocess
import sys

from agent.spark.class_archive import jvm_option
from agent.spark.defaults import JVM_OPTIONS
from agent.spark.java import find_java
from tests.patience import patient

_SETTINGS = {
    "spark.python.daemon.module": "agent.spark.daemon",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.ui.enabled": "false",
}


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run it to its end in a process group of its own, which it may kill."""
    java = find_java()
    settings = _SETTINGS | {"spark.driver.extraJavaOptions": f"{JVM_OPTIONS} {jvm_option(java)}"}
    options = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    return subprocess.run(
        [sys.executable, "-c", script, *arguments],
        capture_output=True,
        text=True,
        timeout=patient(120),
        check=False,
        env=os.environ
        | {
            "JDK_JAVA_OPTIONS": JVM_OPTIONS,
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_SUBMIT_ARGS": shlex.join([*options, "pyspark-shell"]),
        },
        start_new_session=True,
    )

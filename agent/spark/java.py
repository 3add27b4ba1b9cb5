"""Java lookup: finds the Java that runs Spark in ``JAVA_HOME``, then in ``PATH``; 17 or newer.

Spark searches the same places, but reports problems as a shell script's error with a stack trace.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

from agent.errors import JavaError

JAVA_MAJOR_MIN = 17
_CURE = f"install a JRE {JAVA_MAJOR_MIN}+ (Debian: openjdk-17-jre-headless) or set JAVA_HOME"
_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')


def find_java() -> Path:
    """Return the ``java`` executable that Spark will use.

    :raises JavaError: there is none, or it is older than 17.
    """
    java = _located()
    major = _major_version(java)
    if major < JAVA_MAJOR_MIN:
        raise JavaError(f"{java} is Java {major}, Spark needs {JAVA_MAJOR_MIN} or newer; {_CURE}")
    return java


def _located() -> Path:
    home = os.environ.get("JAVA_HOME")
    if home:
        java = Path(home) / "bin" / "java"
        if not os.access(java, os.X_OK):
            raise JavaError(f"JAVA_HOME is {home}, but there is no bin/java in it; {_CURE}")
        return java
    found = shutil.which("java")
    if found is None:
        raise JavaError(f"no Java in JAVA_HOME or PATH; {_CURE}")
    return Path(found)


def _major_version(java: Path) -> int:
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise JavaError(f"{java} does not run ({type(error).__name__}); {_CURE}") from error
    match = _VERSION.search(answer.stderr + answer.stdout)
    if match is None:
        raise JavaError(f"{java} does not report its version; {_CURE}")
    major = int(match[1])
    return int(match[2] or 0) if major == 1 else major  # Java 8 calls itself 1.8

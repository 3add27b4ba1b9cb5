"""Self-test: checks that this process can write its directories, open files, start threads, allocate memory and run
Spark. Blocking.
"""

import os
import threading
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from agent.errors import OwnFaultError
from agent.own_faults import own_fault

#: bytes to write while the capture is well, and before it counts as well again: a few free bytes are not enough
_BYTES, _BYTES_AGAIN = 64 << 10, 4 << 20
_DESCRIPTORS, _DESCRIPTORS_AGAIN = 4, 64
_MEMORY_BYTES = 32 << 20


class Restartable(Protocol):
    """The part of ``agent.spark.executor.SparkExecutor`` that is tested."""

    def check(self) -> str:
        """Start Spark again if it has died; return why it does not run, or an empty text."""
        ...


class SelfTest:
    """``directories``: this capture's own, that only it writes."""

    def __init__(self, directories: Sequence[Path], spark: Restartable) -> None:
        self._directories = tuple(directories)
        self._spark = spark

    def __call__(self, *, is_again: bool) -> str:
        """Return one line that says what is missing, or an empty text. ``is_again``: it was missing before."""
        try:
            _open_files(_DESCRIPTORS_AGAIN if is_again else _DESCRIPTORS)
            _start_thread()
            bytearray(_MEMORY_BYTES)
        except Exception as error:
            fault = own_fault(error)
            if fault is None:
                raise
            return str(fault)
        for directory in self._directories:
            if cause := _refusal(directory, _BYTES_AGAIN if is_again else _BYTES):
                return cause
        return self._spark.check()


def _refusal(directory: Path, size: int) -> str:
    path = directory / f".self-test-{uuid.uuid4().hex}"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        try:
            with path.open("wb") as file:
                file.write(os.urandom(size))
                file.flush()
                os.fsync(file.fileno())
        finally:
            path.unlink(missing_ok=True)
    except OSError as error:
        fault: OwnFaultError | None = own_fault(error)
        if fault is not None:
            return str(fault)
        return (
            f"this capture cannot write its own directory {directory} ({error.strerror or error}); give it room or "
            "make it writable; its work goes to others, and it tests itself again"
        )
    return ""


def _open_files(count: int) -> None:
    opened: list[int] = []
    try:
        while len(opened) < count:
            opened.append(os.open(os.devnull, os.O_RDONLY))
    finally:
        for descriptor in opened:
            os.close(descriptor)


def _start_thread() -> None:
    thread = threading.Thread(target=lambda: None, name="self-test")
    thread.start()
    thread.join()

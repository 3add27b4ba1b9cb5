"""Log storage: a directory per changefeed and source, on local disk or anywhere fsspec reaches.

The *marker* is one small file at the root saying whose storage this is; captures compare it with what the cluster
knows, since a local directory on two machines is not one log.
"""

import contextlib
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO

import fsspec
import pyarrow as pa

from agent.errors import LogError, LogStorageMismatchError
from agent.log.directories import TEMPORARY, LocalDirectory, RemoteDirectory
from agent.ports.log_storage import Entry, LogStorage

_MARKER = "weir-log"


class LogDirectory:
    """The segments of one changefeed and source. Blocking; call it from worker threads."""

    def __init__(self, uri: str, *, changefeed: str, source: str) -> None:
        files, root = _resolve(uri)
        path = f"{root.rstrip('/')}/{changefeed}/{source}"
        self._storage: LogStorage = LocalDirectory(path) if _is_local(uri) else RemoteDirectory(files, path)
        self._shown = path if _is_local(uri) else str(files.unstrip_protocol(path))

    def __str__(self) -> str:
        return self._shown

    def path_of(self, name: str) -> str:
        """The path or URI that ``open_input`` takes, here and on executors."""
        return f"{self._shown}/{name}"

    def names(self) -> list[str]:
        """All files, finished or not. :raises LogError: the storage refused."""
        with self._errors(), contextlib.suppress(FileNotFoundError):
            return self._storage.names()
        return []

    def entries(self) -> list[Entry]:
        """As ``names``, with sizes and times. :raises LogError: the storage refused."""
        with self._errors(), contextlib.suppress(FileNotFoundError):
            return self._storage.entries()
        return []

    def write(self, name: str, fill: Callable[[BinaryIO], None]) -> int:
        """Make ``name`` with what ``fill`` writes, durable and all or nothing; returns its size.

        :raises LogError: the storage refused.
        """
        with self._errors():
            return self._storage.write(name, fill)

    def read(self, name: str) -> bytes:
        """A small file. :raises FileNotFoundError: there is none. :raises LogError: the storage refused."""
        try:
            return self._storage.read(name)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise self._refused(error) from error

    def remove(self, names: Iterable[str]) -> None:
        """Remove files; what is gone already is fine. :raises LogError: the storage refused."""
        for name in names:
            with self._errors(), contextlib.suppress(FileNotFoundError):
                self._storage.remove(name)

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self._refused(error) from error

    def _refused(self, error: OSError) -> LogError:
        reason = error.strerror or str(error)
        return LogError(f"the log storage {self._shown} failed ({reason}); it is tried again by itself")


def finished_name(name: str) -> str:
    """The name that a half-written file would have got."""
    return name.removeprefix(TEMPORARY)


def open_input(path: str) -> Any:
    """A file of the log for Arrow to read: mapped into memory where it is local.

    :raises LogError: it is missing or cannot be read.
    """
    try:
        if _is_local(path):
            return pa.memory_map(path.removeprefix("file://"))
        return pa.PythonFile(fsspec.open(path, "rb").open(), mode="r")
    except (ImportError, ValueError) as error:
        raise LogError(f"segment {path} cannot be opened ({error}); use a path or an installed scheme") from error
    except OSError as error:
        reason = "it is gone" if isinstance(error, FileNotFoundError) else str(error)
        raise LogError(
            f"segment {path} cannot be opened ({reason}); is the log storage shared by all captures?"
        ) from error


def claim(uri: str, *, cluster_id: str, expected: str | None) -> str:
    """Check the storage's marker and return it; ``expected`` is what the cluster has recorded, None if nothing yet.

    The first capture of a cluster makes the marker; the caller records it (so that the next one can compare).

    :raises LogStorageMismatchError: this is not the storage that the cluster's log lies on.
    :raises LogError: the storage refused.
    """
    files, root = _resolve(uri)
    path = f"{root.rstrip('/')}/{_MARKER}"
    try:
        found = str(files.cat_file(path), "utf-8").strip() if files.exists(path) else None
        if found is None and expected is None:
            return _mark(files, root, path, cluster_id)
    except OSError as error:
        raise LogError(
            f"the log storage {uri} cannot be used ({error.strerror or error}); check path and rights"
        ) from error
    if found is None:
        raise LogStorageMismatchError(
            f"the log storage {uri} lacks this cluster's marker: it is not the storage that the other captures use; "
            "point --log-storage at shared storage"
        )
    if found.partition(":")[0] != cluster_id or (expected is not None and found != expected):
        raise LogStorageMismatchError(
            f"the log storage {uri} belongs to another cluster ({found.partition(':')[0]}); choose another directory"
        )
    return found


def _mark(files: Any, root: str, path: str, cluster_id: str) -> str:
    files.makedirs(root, exist_ok=True)
    marker = f"{cluster_id}:{uuid.uuid4().hex}"
    files.pipe_file(path, marker.encode())
    return marker


def _resolve(uri: str) -> tuple[Any, str]:
    try:
        files, root = fsspec.core.url_to_fs(uri)
    except (ValueError, ImportError) as error:
        raise LogError(
            f"the log storage {uri} cannot be used ({error}); use a directory or an installed scheme"
        ) from error
    return files, str(root)


def _is_local(uri: str) -> bool:
    return "://" not in uri or uri.startswith("file://")

"""Log storage: a directory per changefeed and source, on local disk, an object store, or anywhere fsspec reaches.

The *marker* is a small file at the root that identifies the storage. Captures compare it with the marker that the
cluster has recorded, since local directories on two machines are not one log.
"""

import contextlib
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO

import fsspec
import pyarrow as pa

from agent import host_cache
from agent.errors import LogError, LogStorageMismatchError
from agent.log.directories import MARKER, TEMPORARY, LocalDirectory, ObjectDirectory, RemoteDirectory, cache_key
from agent.object_store import ObjectStore, is_object_store
from agent.ports.log_storage import Entry, LogStorage


class LogDirectory:
    """The files of one changefeed and source. Blocking; call it from worker threads."""

    def __init__(self, uri: str, *, changefeed: str, source: str) -> None:
        self._storage: LogStorage
        if is_object_store(uri):
            self._shown = f"{uri.rstrip('/')}/{changefeed}/{source}"
            self._storage = ObjectDirectory(ObjectStore(self._shown))
            return
        files, root = _resolve(uri)
        path = f"{root.rstrip('/')}/{changefeed}/{source}"
        self._storage = LocalDirectory(path) if _is_local(uri) else RemoteDirectory(files, path)
        self._shown = path if _is_local(uri) else str(files.unstrip_protocol(path))

    def __str__(self) -> str:
        return self._shown

    def path_of(self, name: str) -> str:
        """Return the path or URI that ``open_input`` takes, here and on executors."""
        return f"{self._shown}/{name}"

    def names(self) -> list[str]:
        """Return the names of all files, finished or not.

        :raises LogError: the storage refused.
        """
        with self._errors(), contextlib.suppress(FileNotFoundError):
            return self._storage.names()
        return []

    def entries(self) -> list[Entry]:
        """Return all files with sizes and times.

        :raises LogError: the storage refused.
        """
        with self._errors(), contextlib.suppress(FileNotFoundError):
            return self._storage.entries()
        return []

    def write(self, name: str, fill: Callable[[BinaryIO], None]) -> int:
        """Write ``name`` with ``fill``, atomically and durably. Return its size in bytes.

        :raises LogError: the storage refused.
        """
        with self._errors():
            return self._storage.write(name, fill)

    def read(self, name: str) -> bytes:
        """Return a small file's content.

        :raises FileNotFoundError: there is no such file.
        :raises LogError: the storage refused.
        """
        try:
            return self._storage.read(name)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise self._refused(error) from error

    def remove(self, names: Iterable[str]) -> None:
        """Remove files; missing ones are ignored.

        :raises LogError: the storage refused.
        """
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
        return LogError(f"the log storage {self._shown} failed ({reason}); it is retried automatically")


def finished_name(name: str) -> str:
    """Return the final name of a half-written file."""
    return name.removeprefix(TEMPORARY)


def open_input(path: str) -> Any:
    """Open a file of the log for Arrow. Local files and the host cache's copies of objects are memory-mapped; other
    files are read on demand.

    :raises LogError: the file is missing or cannot be read.
    """
    try:
        if _is_local(path):
            return pa.memory_map(path.removeprefix("file://"))
        if is_object_store(path):
            return _fetched(path)
        return pa.PythonFile(fsspec.open(path, "rb").open(), mode="r")
    except (ImportError, ValueError) as error:
        raise LogError(f"segment {path} cannot be opened ({error}); use a path or an installed scheme") from error
    except OSError as error:
        reason = "it is gone" if isinstance(error, FileNotFoundError) else str(error)
        raise LogError(
            f"segment {path} cannot be opened ({reason}); is the log storage shared by all captures?"
        ) from error


def _fetched(path: str) -> Any:
    """Map the object's copy in the host cache."""
    folder, _, name = path.rpartition("/")
    return pa.memory_map(host_cache.fetch_path(cache_key(path), lambda: ObjectStore(folder).read(name)))


def claim(uri: str, *, cluster_id: str, expected: str | None) -> str:
    """Check the storage's marker and return it; ``expected``: the marker that the cluster has recorded, None if none
    yet.

    The first capture of a cluster creates the marker; the caller records it for later captures to compare.

    :raises LogStorageMismatchError: this storage does not hold the cluster's log.
    :raises LogError: the storage refused.
    """
    try:
        root = _root(uri)
        try:
            found = _marker_of(root)
        except FileNotFoundError:
            found = None
        if found is None and expected is None:
            root.create(MARKER, f"{cluster_id}:{uuid.uuid4().hex}".encode())
            found = _marker_of(root)  # another capture may have been first
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


def _marker_of(root: LogStorage) -> str:
    return str(root.read(MARKER), "utf-8").strip()


def _root(uri: str) -> LogStorage:
    if is_object_store(uri):
        return ObjectDirectory(ObjectStore(uri.rstrip("/")))
    files, root = _resolve(uri)
    return LocalDirectory(root) if _is_local(uri) else RemoteDirectory(files, root)


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

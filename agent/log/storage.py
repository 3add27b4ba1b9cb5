"""Log storage: a directory per changefeed and source, on local disk or anywhere fsspec reaches.

On local disk a file is written beside its place, synced and renamed, and its directory synced; on object stores a
finished upload is atomic by itself. The *marker* is one small file at the root saying whose storage this is; captures
compare it with what the cluster knows, since a local directory on two machines is not one log.
"""

import contextlib
import os
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import fsspec
import pyarrow as pa

from agent.errors import LogError, LogStorageMismatchError

_MARKER = "weir-log"
_TEMPORARY = ".part-"


@dataclass(frozen=True, slots=True)
class Entry:
    """One file of a log directory. ``modified_at``: Unix seconds."""

    name: str
    size: int
    modified_at: float


class LogDirectory:
    """The segments of one changefeed and source. Blocking; call it from worker threads."""

    def __init__(self, uri: str, *, changefeed: str, source: str) -> None:
        self._files, root = _resolve(uri)
        self._is_local = _is_local(uri)
        self._root = f"{root.rstrip('/')}/{changefeed}/{source}"
        self._shown = self._root if self._is_local else str(self._files.unstrip_protocol(self._root))

    def __str__(self) -> str:
        return self._shown

    def path_of(self, name: str) -> str:
        """The path or URI that ``open_input`` takes, here and on executors."""
        return f"{self._shown}/{name}"

    def names(self) -> list[str]:
        """All files, finished or not. :raises LogError: the storage refused."""
        try:
            if self._is_local:
                return os.listdir(self._root)
            self._files.invalidate_cache(self._root)
            return [path.rsplit("/", 1)[-1] for path in self._files.ls(self._root, detail=False)]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise self._refused(error) from error

    def entries(self) -> list[Entry]:
        """As ``names``, with sizes and times. :raises LogError: the storage refused."""
        try:
            if self._is_local:
                return list(_local_entries(self._root))
            self._files.invalidate_cache(self._root)
            return [_remote_entry(info) for info in self._files.ls(self._root, detail=True)]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise self._refused(error) from error

    def write(self, name: str, fill: Callable[[BinaryIO], None]) -> int:
        """Make ``name`` with what ``fill`` writes, durable and all or nothing; returns its size.

        :raises LogError: the storage refused.
        """
        try:
            return self._write_local(name, fill) if self._is_local else self._write_remote(name, fill)
        except OSError as error:
            raise self._refused(error) from error

    def read(self, name: str) -> bytes:
        """A small file. :raises FileNotFoundError: there is none. :raises LogError: the storage refused."""
        try:
            return bytes(self._files.cat_file(f"{self._root}/{name}"))
        except FileNotFoundError:
            raise
        except OSError as error:
            raise self._refused(error) from error

    def remove(self, names: Iterable[str]) -> None:
        """Remove files; what is gone already is fine. :raises LogError: the storage refused."""
        for name in names:
            try:
                with contextlib.suppress(FileNotFoundError):
                    self._files.rm_file(f"{self._root}/{name}")
            except OSError as error:
                raise self._refused(error) from error

    def _write_local(self, name: str, fill: Callable[[BinaryIO], None]) -> int:
        os.makedirs(self._root, exist_ok=True)
        temporary = f"{self._root}/{_TEMPORARY}{name}"
        with open(temporary, "wb") as file:
            fill(file)
            file.flush()
            os.fsync(file.fileno())
            size = file.tell()
        os.rename(temporary, f"{self._root}/{name}")
        _sync_directory(self._root)
        return size

    def _write_remote(self, name: str, fill: Callable[[BinaryIO], None]) -> int:
        self._files.makedirs(self._root, exist_ok=True)
        with self._files.open(f"{self._root}/{name}", "wb") as file:
            fill(file)
            return int(file.tell())

    def _refused(self, error: OSError) -> LogError:
        reason = error.strerror or str(error)
        return LogError(f"the log storage {self._shown} failed ({reason}); it is tried again by itself")


def is_temporary(name: str) -> bool:
    """A file that a crash left half-written (or that is being written just now)."""
    return name.startswith(_TEMPORARY)


def finished_name(name: str) -> str:
    """The name that a half-written file would have got."""
    return name.removeprefix(_TEMPORARY)


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


def _local_entries(root: str) -> Iterable[Entry]:
    with os.scandir(root) as found:
        for item in found:
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                status = item.stat()
                yield Entry(item.name, status.st_size, status.st_mtime)


def _remote_entry(info: dict[str, Any]) -> Entry:
    modified = info.get("LastModified") or info.get("mtime") or info.get("created") or 0.0
    seconds = modified.timestamp() if hasattr(modified, "timestamp") else float(modified)
    return Entry(str(info["name"]).rsplit("/", 1)[-1], int(info.get("size") or 0), seconds)


def _sync_directory(path: str) -> None:
    descriptor = os.open(Path(path), os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

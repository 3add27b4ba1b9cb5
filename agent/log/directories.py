"""Log directories: ``agent.ports.log_storage`` on a local disk, an object store, or any file system of fsspec."""

import contextlib
import io
import os
import uuid
from collections.abc import Callable
from functools import lru_cache
from typing import Any, BinaryIO, Final

from agent import host_cache
from agent.object_store import ObjectStore
from agent.ports.log_storage import Entry

TEMPORARY: Final = ".part-"
#: marker file at a storage's root: identifies its cluster
MARKER: Final = "weir-log"


class LocalDirectory:
    """Writes a file under a temporary name, syncs and renames it, and syncs the directory."""

    def __init__(self, root: str) -> None:
        self._root = root

    def names(self) -> list[str]:
        return os.listdir(self._root)

    def entries(self) -> list[Entry]:
        found = []
        with os.scandir(self._root) as items:
            for item in items:
                with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                    status = item.stat()
                    found.append(Entry(item.name, status.st_size, status.st_mtime))
        return found

    def write(self, name: str, fill: Callable[[BinaryIO], None]) -> int:
        os.makedirs(self._root, exist_ok=True)
        temporary = f"{self._root}/{TEMPORARY}{name}"
        with open(temporary, "wb") as file:
            fill(file)
            file.flush()
            os.fsync(file.fileno())
            size = file.tell()
        os.rename(temporary, f"{self._root}/{name}")
        _sync(self._root)
        return size

    def create(self, name: str, content: bytes) -> None:
        os.makedirs(self._root, exist_ok=True)
        temporary = f"{self._root}/{TEMPORARY}{name}-{uuid.uuid4().hex}"
        with open(temporary, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(temporary, f"{self._root}/{name}")
        os.remove(temporary)
        _sync(self._root)

    def read(self, name: str) -> bytes:
        with open(f"{self._root}/{name}", "rb") as file:
            return file.read()

    def remove(self, name: str) -> None:
        os.remove(f"{self._root}/{name}")


class ObjectDirectory:
    """Stores a file as an object: one request writes it, one reads it."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def names(self) -> list[str]:
        return [item.name for item in self._store.list()]

    def entries(self) -> list[Entry]:
        return [Entry(item.name, item.size, item.modified) for item in self._store.list()]

    def write(self, name: str, fill: Callable[[BinaryIO], None]) -> int:
        buffer = io.BytesIO()
        fill(buffer)
        content = buffer.getvalue()
        self._store.write(name, content)
        if name != MARKER:
            host_cache.put(cache_key(f"{self._store.location}/{name}"), content)
        return len(content)

    def create(self, name: str, content: bytes) -> None:
        with contextlib.suppress(FileExistsError):
            self._store.create(name, content)

    def read(self, name: str) -> bytes:
        return self._store.read(name)

    def remove(self, name: str) -> None:
        self._store.remove(name)


def cache_key(path: str) -> str:
    """Return the key of a file in the host cache. It contains the storage's marker, because another cluster's log may
    have used the same location and names."""
    return f"{path}#{_marker(path.rsplit('/', 3)[0])}"


@lru_cache(maxsize=64)
def _marker(root: str) -> str:
    try:
        return ObjectStore(root).read(MARKER).decode()
    except FileNotFoundError:
        return ""


class RemoteDirectory:
    """Uses a file system of fsspec (``files``), whose uploads are atomic once finished."""

    def __init__(self, files: Any, root: str) -> None:
        self._files = files
        self._root = root

    def names(self) -> list[str]:
        self._files.invalidate_cache(self._root)
        return [path.rsplit("/", 1)[-1] for path in self._files.ls(self._root, detail=False)]

    def entries(self) -> list[Entry]:
        self._files.invalidate_cache(self._root)
        return [_entry(info) for info in self._files.ls(self._root, detail=True)]

    def write(self, name: str, fill: Callable[[BinaryIO], None]) -> int:
        self._files.makedirs(self._root, exist_ok=True)
        path = f"{self._root}/{name}"
        try:
            with self._files.open(path, "wb") as file:
                fill(file)
                return int(file.tell())
        except BaseException:  # closing the file has finished the upload of a partial file
            with contextlib.suppress(OSError):
                self._files.rm_file(path)
            raise

    def create(self, name: str, content: bytes) -> None:
        """A file system of fsspec does not tell who is first."""
        self._files.makedirs(self._root, exist_ok=True)
        if not self._files.exists(f"{self._root}/{name}"):
            self._files.pipe_file(f"{self._root}/{name}", content)

    def read(self, name: str) -> bytes:
        return bytes(self._files.cat_file(f"{self._root}/{name}"))

    def remove(self, name: str) -> None:
        self._files.rm_file(f"{self._root}/{name}")


def _entry(info: dict[str, Any]) -> Entry:
    modified = info.get("LastModified") or info.get("mtime") or info.get("created") or 0.0
    seconds = modified.timestamp() if hasattr(modified, "timestamp") else float(modified)
    return Entry(str(info["name"]).rsplit("/", 1)[-1], int(info.get("size") or 0), seconds)


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

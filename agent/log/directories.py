"""Log directories by where they are: on a local disk, or anywhere that fsspec reaches (``agent.ports.log_storage``)."""

import contextlib
import os
from collections.abc import Callable
from typing import Any, BinaryIO, Final

from agent.ports.log_storage import Entry

TEMPORARY: Final = ".part-"


class LocalDirectory:
    """A file is written beside its place, synced and renamed, and its directory synced."""

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

    def read(self, name: str) -> bytes:
        with open(f"{self._root}/{name}", "rb") as file:
            return file.read()

    def remove(self, name: str) -> None:
        os.remove(f"{self._root}/{name}")


class RemoteDirectory:
    """A finished upload is atomic by itself. ``files``: a file system of fsspec."""

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
        except BaseException:  # closing it has finished the upload, as far as it came
            with contextlib.suppress(OSError):
                self._files.rm_file(path)
            raise

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

"""Table commits: the files of a Delta table's log, one per commit, on a directory or an object store.

A commit is one file that appears under its number atomically, unless another commit has that number: on a directory by
``os.link``, on an object store by a conditional put, as delta-rs does. So writers of both kinds exclude each other.
"""

import json
import os
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO
from typing import Any, Final, Protocol
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from agent.errors import RESYNC, TableHeldError
from agent.object_store import ObjectStore, StoredObject
from agent.sinks.delta.table import disk
from agent.sinks.delta.table.place import TablePlace

Action = dict[str, Any]

LOG = "_delta_log"
_CHECKPOINT = re.compile(r"^(\d{20})\.checkpoint\.(.*)parquet$")
_COLUMNS = ("protocol", "metaData", "txn", "add")
_MAYBE = type(None)
#: the fields on which we rely; others may have written anything
_FIELDS: Final[Mapping[str, Mapping[str, type | tuple[type, ...]]]] = {
    "protocol": {"minWriterVersion": int, "readerFeatures": (list, _MAYBE), "writerFeatures": (list, _MAYBE)},
    "metaData": {"schemaString": str, "configuration": dict, "partitionColumns": (list, _MAYBE)},
    "txn": {"appId": str, "version": int},
    "add": {"path": str, "size": int, "partitionValues": (dict, _MAYBE), "deletionVector": (dict, _MAYBE)},
    "remove": {"path": str, "deletionVector": (dict, _MAYBE)},
}


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """``rows`` is None if the checkpoint's form is not delta-rs's."""

    version: int
    rows: pa.Table | None


class Commits(Protocol):
    """Methods raise ``OSError`` when the storage refuses. ``mark`` identifies the newest commit that was read or
    written: a different table at the same location has another one."""

    mark: str

    def read(self, version: int) -> list[Action] | None: ...

    def append(self, version: int, lines: bytes) -> bool:
        """Append a commit; return whether ``mark`` identifies it now, otherwise it has to be read.

        :raises FileExistsError: another commit has the number.
        """
        ...

    def follow(self, version: int) -> tuple[bool, list[Action] | None]:
        """Return whether the commit that ``mark`` identifies is still the one of this number; if so, also the commit
        after it, which ``mark`` identifies then, or None."""
        ...

    def checkpoint(self) -> Checkpoint | None:
        """Return the newest checkpoint."""
        ...


def commits_of(place: TablePlace) -> Commits:
    return LocalCommits(place) if place.is_local else ObjectCommits(place)


class LocalCommits:
    """Commits in a directory; acknowledged ones are on disk."""

    def __init__(self, place: TablePlace) -> None:
        self._directory = os.path.join(place.location, LOG)
        self.mark = ""

    def read(self, version: int) -> list[Action] | None:
        try:
            with open(self._path(version), "rb") as file:
                actions = actions_in(file.read(), version)
                self.mark = _identity(os.fstat(file.fileno()))
        except FileNotFoundError:
            return None
        return actions

    def append(self, version: int, lines: bytes) -> bool:
        scratch = os.path.join(self._directory, f"_commit_{uuid4().hex}.json.tmp")
        try:
            with open(scratch, "xb") as file:
                file.write(lines)
                file.flush()
                os.fsync(file.fileno())
            os.link(scratch, self._path(version))
            disk.sync(self._directory)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(scratch)
        return False

    def follow(self, version: int) -> tuple[bool, list[Action] | None]:
        try:
            is_same = bool(self.mark) and _identity(os.stat(self._path(version))) == self.mark
        except FileNotFoundError:
            is_same = False
        return is_same, self.read(version + 1) if is_same else None

    def checkpoint(self) -> Checkpoint | None:
        names = os.listdir(self._directory) if os.path.isdir(self._directory) else []
        found = [match for name in names if (match := _CHECKPOINT.match(name))]
        newest = max(found, key=lambda match: match[0], default=None)
        if newest is None:
            return None
        if newest[2]:
            return Checkpoint(int(newest[1]), None)
        with pq.ParquetFile(os.path.join(self._directory, newest[0])) as file:
            return Checkpoint(int(newest[1]), file.read(columns=list(_COLUMNS), use_threads=False))

    def _path(self, version: int) -> str:
        return os.path.join(self._directory, f"{version:020d}.json")


class ObjectCommits:
    """Commits on an object store: each call is one request, but for ``follow``, and nothing is listed."""

    def __init__(self, place: TablePlace) -> None:
        self._store: ObjectStore = place.store
        self.mark = ""

    def read(self, version: int) -> list[Action] | None:
        try:
            return self._taken(self._store.find(_name(version)), version)
        except FileNotFoundError:
            return None

    def _taken(self, found: StoredObject, version: int) -> list[Action]:
        actions = actions_in(found.content, version)
        self.mark = found.tag
        return actions

    def append(self, version: int, lines: bytes) -> bool:
        self.mark = self._store.create(_name(version), lines)
        return True

    def follow(self, version: int) -> tuple[bool, list[Action] | None]:
        """Two requests at the same time: each flush of each table begins with them."""
        if not self.mark:
            return False, None
        with ThreadPoolExecutor(1) as other:
            asked = other.submit(self._store.find, _name(version + 1))
            is_same = self._store.is_unchanged(_name(version), self.mark)
        if not is_same:
            return False, None
        try:
            return True, self._taken(asked.result(), version + 1)
        except FileNotFoundError:
            return True, None

    def checkpoint(self) -> Checkpoint | None:
        try:
            newest = json.loads(self._store.read(f"{LOG}/_last_checkpoint"))
        except FileNotFoundError:
            return None
        version = int(newest["version"])
        if newest.get("parts") or "v2Checkpoint" in newest:
            return Checkpoint(version, None)
        content = self._store.read(f"{LOG}/{version:020d}.checkpoint.parquet")
        return Checkpoint(version, pq.read_table(BytesIO(content), columns=list(_COLUMNS), use_threads=False))


def _name(version: int) -> str:
    return f"{LOG}/{version:020d}.json"


def _identity(found: os.stat_result) -> str:
    return f"{found.st_ino}-{found.st_mtime_ns}-{found.st_size}"


def actions_in(content: bytes, version: int) -> list[Action]:
    """Return the actions of a commit, each a kind and its fields.

    :raises TableHeldError: delta-rs must not see it: its stack would overflow, and end this process.
    :raises ValueError: it is none.
    """
    try:
        actions = [json.loads(line) for line in content.splitlines() if line.strip()]
    except RecursionError:
        raise TableHeldError(
            f"commit {version} of the Delta table is nested so deeply that nobody can read it; remove it and what "
            f"another writer has added, and resume the changefeed, or {RESYNC}"
        ) from None
    if not actions or not all(isinstance(action, dict) for action in actions):
        raise ValueError(f"commit {version} has no actions")
    kept = [{kind: fields for kind, fields in action.items() if fields is not None} for action in actions]
    if not all(is_shaped(kind, fields) for action in kept for kind, fields in action.items()):
        raise ValueError(f"commit {version} has an action of another form")
    return kept


def is_shaped(kind: str, fields: Any) -> bool:
    """Return whether the action has the fields on which we rely."""
    wanted = _FIELDS.get(kind, {})
    return isinstance(fields, dict) and all(isinstance(fields.get(name), types) for name, types in wanted.items())

"""File access of Iceberg tables: pyiceberg's over pyarrow, except that a local file is on disk when it is closed.

The catalog names a file right after it was written. Without this, a power failure could leave a table whose metadata
exists and whose files do not. The names of a commit's files are made durable together, when the last one, the table's
metadata, is. So is the content of files that one thread writes for one commit (``together``): a disk takes about as
long for several at a time as for one.

Metadata and manifests name files by any path, and of these only files in the table's directory are its: no other is
read or removed with the rights of this process (``of_table``).

pyiceberg imports and calls what some properties name. A REST catalog's answers and a table's properties have such ones
too, so whoever controls these would choose what runs on captures and executors: no property names code here.
"""

import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import IO, Any, ClassVar, Final, Self
from uuid import uuid4

from pyiceberg.io import FileIO, InputFile, OutputFile, OutputStream
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO
from pyiceberg.table import TableProperties
from pyiceberg.typedef import EMPTY_DICT, Properties

from agent.errors import RESYNC, TableHeldError

#: the file that names all others
_LAST: Final = ".metadata.json"
#: files that wait to be brought to disk together, each open
_WAITING_MAX: Final = 16


class _Waiting(threading.local):
    """Files that this thread has closed, and that are not on disk yet; None: each is when it is closed."""

    files: list[IO[bytes]] | None = None


_waiting: Final = _Waiting()


@contextmanager
def together() -> Iterator[None]:
    """Bring files to disk together that this thread closes inside: with a table's metadata, at ``sync_waiting``, or at
    the end. After an error they are not, since nothing names them."""
    if _waiting.files is not None:
        yield
        return
    _waiting.files = []
    try:
        yield
        sync_waiting()
    finally:
        for file in _waiting.files:
            file.close()
        _waiting.files = None


def sync_waiting() -> None:
    """Bring to disk what this thread has closed within ``together``.

    :raises OSError: the disk refuses one.
    """
    files = _waiting.files or []
    errors: list[BaseException] = []

    def sync(file: IO[bytes]) -> None:
        try:
            os.fsync(file.fileno())
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=sync, args=[file], name="sink-sync", daemon=True) for file in files[1:]]
    for thread in threads:
        thread.start()
    for file in files[:1]:
        sync(file)
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    while files:
        files.pop().close()


#: names of properties whose values are code
_CODE: Final = re.compile(r"impl$", re.IGNORECASE)
#: properties with server, account and credentials of a store: requests with ours could be sent elsewhere
_ACCESS: Final = ("s3.", "gcs.", "adls.", "hdfs.", "hf.", "client.")
_LOCATION_PROVIDER: Final = TableProperties.WRITE_PY_LOCATION_PROVIDER_IMPL


def names_code(name: str) -> bool:
    """Return whether the value of this property would be imported and called."""
    return _CODE.search(name) is not None


class LakeFileIO(PyArrowFileIO):
    """The file access of every catalog and table."""

    def __init__(self, properties: Properties = EMPTY_DICT) -> None:
        super().__init__({name: value for name, value in properties.items() if not names_code(name)})
        self._home, self._removes = "", True

    def of_table(self, home: str, *, removes: bool = True) -> Self:
        """Return the access to the files of a table whose directory is ``home``. ``removes``: it may remove some."""
        found = type(self)(self.properties)
        found._home, found._removes, found.fs_by_scheme = home, removes, self.fs_by_scheme
        return found

    def new_input(self, location: str) -> PyArrowFile:
        """:raises TableHeldError: it is no file of the table's directory."""
        if self._home and not is_below(self._home, location):
            raise TableHeldError(
                f"the metadata of the table in {self._home} names the file {location[:200]!r}, which is not in that "
                f"directory; undo what another writer has added and resume the changefeed, or {RESYNC}"
            )
        return super().new_input(location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        """:raises PermissionError: it is no file of the table's directory: it stays."""
        path = location if isinstance(location, str) else location.location
        if self._home and not (self._removes and is_below(self._home, path)):
            raise PermissionError(f"{path[:200]!r} is not in {self._home}")
        super().delete(location)

    def new_output(self, location: str) -> PyArrowFile:
        scheme, netloc, path = self.parse_location(location, self.properties)
        if scheme != "file":
            return super().new_output(location)
        return _DurableFile(location, path, self.fs_by_scheme(scheme, netloc))


def is_below(home: str, location: str) -> bool:
    """Return whether a file is in a directory: schemes of one kind of store are the same."""
    scheme, host, directory = PyArrowFileIO.parse_location(home)
    other, its_host, path = PyArrowFileIO.parse_location(location)
    is_same_store = (scheme == "file", host) == (other == "file", its_host)
    return is_same_store and path.startswith(f"{directory.rstrip('/')}/") and ".." not in path.split("/")


class OwnFileIO:
    """A catalog whose tables are accessed through ``LakeFileIO``, whatever the properties say. ``TELLS_ACCESS``: it
    adds to a table's properties how the table's files are accessed; otherwise only whoever wrote the table did."""

    TELLS_ACCESS: ClassVar[bool] = False
    properties: Properties

    def _load_file_io(self, properties: Properties = EMPTY_DICT, location: str | None = None) -> FileIO:
        """:raises TableHeldError: the table's properties name code, which a commit would run."""
        if _LOCATION_PROVIDER in properties:
            raise TableHeldError(
                f"the table of {location} has the property {_LOCATION_PROVIDER}, which names code that would run here; "
                "remove the property, then resume the changefeed"
            )
        if not self.TELLS_ACCESS:
            properties = {name: value for name, value in properties.items() if not name.startswith(_ACCESS)}
        return LakeFileIO({**self.properties, **properties})


class _DurableFile(PyArrowFile):
    """A local file that appears under its name when it is complete and on disk."""

    def create(self, overwrite: bool = False) -> OutputStream:
        if not overwrite and self.exists():
            raise FileExistsError(f"cannot create {self.location}: it exists")
        return _DurableStream(self._path)


class _DurableStream(OutputStream):
    def __init__(self, path: str) -> None:
        self._path = path
        self._scratch = f"{path}.{uuid4().hex[:8]}.tmp"
        os.makedirs(os.path.dirname(path), exist_ok=True)
        self._file = open(self._scratch, "xb")  # noqa: SIM115  # closed by close, or when it is on disk
        self._is_closed = False

    def write(self, data: bytes) -> int:
        return self._file.write(data)

    def tell(self) -> int:
        return self._file.tell()

    @property
    def closed(self) -> bool:
        return self._is_closed

    def close(self) -> None:
        if self._is_closed:
            return
        self._file.flush()
        self._sync()
        self._is_closed = True
        os.replace(self._scratch, self._path)
        if self._path.endswith(_LAST):
            directory = os.path.dirname(self._path)
            sync_directory(directory)
            data = os.path.join(os.path.dirname(directory), "data")
            if os.path.isdir(data):
                sync_directory(data)

    def _sync(self) -> None:
        if _waiting.files is None:
            os.fsync(self._file.fileno())
            self._file.close()
            return
        _waiting.files.append(self._file)
        if self._path.endswith(_LAST) or len(_waiting.files) >= _WAITING_MAX:
            sync_waiting()

    def abort(self) -> None:
        """Close without the file: nothing appears."""
        self._is_closed = True
        self._file.close()
        os.unlink(self._scratch)

    def __enter__(self) -> "_DurableStream":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        elif not self._is_closed:
            self.abort()


def sync_directory(directory: str) -> None:
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def discard(stream: Any) -> None:
    """Close a stream after an error, without its file where that is possible."""
    if isinstance(stream, _DurableStream):
        if not stream.closed:
            stream.abort()
    else:
        stream.close()

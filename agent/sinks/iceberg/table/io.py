"""File access of Iceberg tables: pyiceberg's over pyarrow, except that a local file is on disk when it is closed.

The catalog names a file right after it was written. Without this, a power failure could leave a table whose metadata
exists and whose files do not. The names of a commit's files are made durable together, when the last one, the table's
metadata, is.

pyiceberg imports and calls what some properties name. A REST catalog's answers and a table's properties have such ones
too, so whoever controls these would choose what runs on captures and executors: no property names code here.
"""

import os
import re
from types import TracebackType
from typing import Any, Final
from uuid import uuid4

from pyiceberg.io import FileIO, OutputStream
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO
from pyiceberg.table import TableProperties
from pyiceberg.typedef import EMPTY_DICT, Properties

from agent.errors import TableHeldError

#: the file that names all others
_LAST: Final = ".metadata.json"


#: names of properties whose values are code
_CODE: Final = re.compile(r"impl$", re.IGNORECASE)
_LOCATION_PROVIDER: Final = TableProperties.WRITE_PY_LOCATION_PROVIDER_IMPL


def names_code(name: str) -> bool:
    """Return whether the value of this property would be imported and called."""
    return _CODE.search(name) is not None


class LakeFileIO(PyArrowFileIO):
    """The file access of every catalog and table."""

    def __init__(self, properties: Properties = EMPTY_DICT) -> None:
        super().__init__({name: value for name, value in properties.items() if not names_code(name)})

    def new_output(self, location: str) -> PyArrowFile:
        scheme, netloc, path = self.parse_location(location, self.properties)
        if scheme != "file":
            return super().new_output(location)
        return _DurableFile(location, path, self.fs_by_scheme(scheme, netloc))

    def local_path(self, location: str) -> str | None:
        """Return the path of a local file; None if it is elsewhere."""
        scheme, _, path = self.parse_location(location, self.properties)
        return path if scheme == "file" else None


class OwnFileIO:
    """A catalog whose tables are accessed through ``LakeFileIO``, whatever the properties say."""

    properties: Properties

    def _load_file_io(self, properties: Properties = EMPTY_DICT, location: str | None = None) -> FileIO:
        """:raises TableHeldError: the table's properties name code, which a commit would run."""
        if _LOCATION_PROVIDER in properties:
            raise TableHeldError(
                f"the table of {location} has the property {_LOCATION_PROVIDER}, which names code that would run here; "
                "remove the property, then resume the changefeed"
            )
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
        self._file = open(self._scratch, "xb")  # noqa: SIM115  # closed by close

    def write(self, data: bytes) -> int:
        return self._file.write(data)

    def tell(self) -> int:
        return self._file.tell()

    @property
    def closed(self) -> bool:
        return self._file.closed

    def close(self) -> None:
        if self._file.closed:
            return
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        os.replace(self._scratch, self._path)
        if self._path.endswith(_LAST):
            directory = os.path.dirname(self._path)
            sync_directory(directory)
            data = os.path.join(os.path.dirname(directory), "data")
            if os.path.isdir(data):
                sync_directory(data)

    def abort(self) -> None:
        """Close without the file: nothing appears."""
        self._file.close()
        os.unlink(self._scratch)

    def __enter__(self) -> "_DurableStream":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        elif not self._file.closed:
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

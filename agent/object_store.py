"""Object store: objects below one location on S3, Azure Blob or Google Cloud Storage, one request per call.

The client is Rust's ``object_store`` (through obstore), the same as in delta-rs: both take the same options and the
same environment variables (``AWS_ACCESS_KEY_ID``, ``AWS_ENDPOINT_URL``, …), renew expiring credentials, and retry
throttled requests (503 SlowDown, 429) with exponential backoff.

Writes are atomic. Commits rest on ``create``: of several concurrent writers exactly one succeeds.
"""

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, Final

import obstore
from obstore import exceptions
from obstore.store import from_url

SCHEMES: Final = frozenset({"s3", "s3a", "gs", "az", "azure", "abfs", "abfss", "adl"})
#: options of obstore's HTTP client; obstore takes them apart from those of the store
_CLIENT: Final = frozenset(
    {
        *("allow_http", "allow_invalid_certificates", "connect_timeout", "timeout", "pool_idle_timeout"),
        *("pool_max_idle_per_host", "proxy_url", "user_agent", "http1_only", "http2_only"),
    }
)
#: options of delta-rs that obstore does not know
_OF_DELTA: Final = ("aws_s3_locking_provider", "aws_s3_allow_unsafe_rename", "delta_dynamo", "dynamo_", "allow_unsafe")
_ENDPOINT: Final = re.compile(r"(?<!fabric_)endpoint(_url)?$", re.IGNORECASE)
_HTTP: Final = re.compile(r"https?://[^/]", re.IGNORECASE)
_MULTIPART_BYTES: Final = 16 << 20
_SOME: Final = 10
#: a machine's role: where clients look that have no credentials, and what delta-rs says about that
_ROLES: Final = ("169.254.169.254", "169.254.170.2", "metadata.google.internal", "while loading credentials")
_NO_CREDENTIALS: Final = (
    "no credentials: neither options nor the environment of this process have any, and the machine has no role; "
    'executors of another machine get theirs by "spark.executorEnv.…"'
)


class StoreOptionsError(OSError):
    """A location and its options do not make a store."""


def without_credentials(text: str) -> str:
    """Return what a client lacks whose error has this text; empty if it has credentials."""
    return _NO_CREDENTIALS if any(sign in text for sign in _ROLES) else ""


def is_object_store(uri: str) -> bool:
    scheme, colon, _ = uri.partition("://")
    return bool(colon) and scheme.lower() in SCHEMES


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object's content and its entity tag, which identifies this version of it."""

    content: bytes
    tag: str


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    name: str
    size: int
    modified: float


@dataclass(frozen=True, slots=True)
class ObjectStore:
    """The objects below ``location``. Blocking and thread-safe. ``options`` may hold secrets, so they are not in the
    repr.

    All methods raise OSError when the store refuses a request, FileNotFoundError and FileExistsError among them.
    """

    location: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def read(self, name: str) -> bytes:
        return self.find(name).content

    def find(self, name: str) -> StoredObject:
        found: StoredObject = _request(lambda: _stored_object(obstore.get(self._store, name)))
        return found

    def open(self, name: str, size: int) -> "RangedObject":
        """Return an object of ``size`` bytes as a file; each read of the file is one request."""
        return RangedObject(self, name, size)

    def read_range(self, name: str, start: int, length: int) -> bytes:
        return bytes(_request(lambda: obstore.get_range(self._store, name, start=start, length=length)))

    def is_unchanged(self, name: str, tag: str) -> bool:
        """Return whether the object still has the entity tag ``tag``."""
        try:
            found = obstore.get(self._store, name, options={"if_none_match": tag})
            return str(found.meta["e_tag"]) == tag  # a store that ignores If-None-Match
        except exceptions.NotModifiedError:
            return True
        except FileNotFoundError:
            return False
        except exceptions.BaseError as error:
            raise OSError(_line(error)) from error

    def write(self, name: str, content: bytes) -> None:
        """Write the object, replacing an earlier one."""
        _request(lambda: obstore.put(self._store, name, content, use_multipart=len(content) > _MULTIPART_BYTES))

    def upload(self, name: str, path: str) -> None:
        """Write the object from a file, in bounded memory."""
        _request(lambda: obstore.put(self._store, name, Path(path)))

    def create(self, name: str, content: bytes) -> str:
        """Write the object if there is none, and return its entity tag.

        :raises FileExistsError: the object exists.
        """
        try:
            return str(_request(lambda: obstore.put(self._store, name, content, mode="create"))["e_tag"])
        except exceptions.AlreadyExistsError as error:
            raise FileExistsError(name) from error

    def copy(self, name: str, to: str) -> None:
        """Copy an object within the store, replacing an earlier one."""
        _request(lambda: obstore.copy(self._store, name, to))

    def remove(self, name: str) -> None:
        _request(lambda: obstore.delete(self._store, name))

    def discard(self, name: str) -> None:
        """Remove the object if it exists."""
        with suppress(FileNotFoundError):
            self.remove(name)

    def all_names(self) -> list[str]:
        """Return the names of all objects, of those in folders too."""
        found = _request(lambda: obstore.list(self._store).collect())
        return [name for item in found if (name := str(item["path"]))]

    def holds_any(self) -> bool:
        """Return whether there is an object of any name."""
        chunks = _request(lambda: list(islice(obstore.list(self._store, chunk_size=_SOME), 1)))
        return any(str(item["path"]) for chunk in chunks for item in chunk)

    def list(self, folder: str = "") -> Iterator[ObjectInfo]:
        """Yield the objects directly in ``folder``."""
        prefix = f"{folder.rstrip('/')}/" if folder else None
        found = _request(lambda: obstore.list_with_delimiter(self._store, prefix))
        for item in found["objects"]:
            name = str(item["path"]).rsplit("/", 1)[-1]
            if not name:  # some servers and tools keep an object for a folder
                continue
            yield ObjectInfo(name, int(item["size"]), item["last_modified"].timestamp())

    def entries(self) -> Sequence[str]:
        """Return the names of the objects and folders directly at the location."""
        found = _request(lambda: obstore.list_with_delimiter(self._store))
        paths = [*(str(item["path"]) for item in found["objects"]), *map(str, found["common_prefixes"])]
        return [name for path in paths if (name := path.rstrip("/").rsplit("/", 1)[-1])]

    def supports_create(self, name: str) -> bool:
        """Return whether ``create`` fails when the object exists, which some stores ignore. Writes and removes
        ``name``."""
        self.write(name, b"first")
        try:
            self.create(name, b"second")
        except FileExistsError:
            return True
        else:
            return False
        finally:
            self.remove(name)

    @property
    def _store(self) -> Any:
        return _opened(self.location, tuple(sorted(self.options.items())))


class RangedObject(io.RawIOBase):
    """An object as a file that can be read at any place."""

    def __init__(self, store: ObjectStore, name: str, size: int) -> None:
        super().__init__()
        self._store = store
        self._name = name
        self._size = size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = max(offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence], 0)
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        rest = max(self._size - self._at, 0)
        length = rest if size is None or size < 0 else min(size, rest)
        found = self._store.read_range(self._name, self._at, length) if length else b""
        self._at += len(found)
        return found


@lru_cache(maxsize=256)
def _opened(location: str, options: tuple[tuple[str, str], ...]) -> Any:
    """:raises StoreOptionsError: the options are invalid."""
    client: Any = {}
    config: Any = {}
    for name, value in options:
        if _ENDPOINT.search(name) and not _HTTP.match(value):  # the client panics at such a one
            raise StoreOptionsError(f"{location} cannot be opened: option {name} is no http:// or https:// URL")
        plain = name.lower().removeprefix("aws_").removeprefix("azure_").removeprefix("google_")
        if plain in _CLIENT:
            client[plain] = value.lower() == "true" if value.lower() in ("true", "false") else value
        elif not name.lower().startswith(_OF_DELTA):
            config[name.lower()] = value
    try:
        return from_url(location, config=config or None, client_options=client or None)
    except (exceptions.BaseError, ValueError) as error:
        raise StoreOptionsError(f"{location} cannot be opened ({_line(error)})") from error


def _stored_object(result: Any) -> StoredObject:
    return StoredObject(bytes(result.bytes()), str(result.meta["e_tag"]))


def _request(call: Any) -> Any:
    try:
        return call()
    except (FileNotFoundError, exceptions.AlreadyExistsError):
        raise
    except exceptions.BaseError as error:
        raise OSError(_line(error)) from error


def _line(error: BaseException) -> str:
    line = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return without_credentials(line) or line[:300]

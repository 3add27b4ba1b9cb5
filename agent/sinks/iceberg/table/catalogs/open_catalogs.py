"""Open catalogs: those of this process, each opened again where the file of an embedded one was replaced."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pyiceberg.catalog import Catalog

from reactor import files

#: what a catalog is opened with, the process (connections must not pass a fork) and the lake's location among it
Key = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class _Opened:
    """A catalog. ``file``: device and inode of an embedded one."""

    catalog: Catalog
    file: tuple[int, int] | None


_opened: Final[dict[Key, _Opened]] = {}
_opening = threading.Lock()


def opened(key: Key, open: Callable[[], Catalog], *, database: str = "") -> Catalog:
    """Return the catalog of ``key``, which ``open`` opens if need be. ``database``: the path of an embedded one.

    A connection stays with its file, also if that is removed and a backup is put in its place: commits would be lost.
    """
    with _opening:
        known = _opened.get(key)
        if known is not None and database and files.identity(database) not in (known.file, None):
            _opened.pop(key).catalog.close()
            known = None
        if known is None:
            catalog = open()
            known = _opened[key] = _Opened(catalog, files.identity(database) if database else None)
        return known.catalog


def close_at(location: str) -> None:
    """Close the catalogs of a lake whose file is gone."""
    with _opening:
        for key in [key for key in _opened if location in key]:
            _opened.pop(key).catalog.close()

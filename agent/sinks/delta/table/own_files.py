"""Own files: a Delta table's log may name a file by any path, and of these only files in the table's directory are its.

Paths of the log are URLs, relative to the table's directory. delta-rs follows them anywhere: rows of a file elsewhere
would be read, and copied into the table, with the rights of this process (seen with 1.6.6).
"""

import re
from collections.abc import Iterable
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.table import TableMerger, TableOptimizer

from agent.errors import RESYNC, TableHeldError

#: of a URL that is not relative
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_PLAIN_SCHEME: Final = re.compile(r"[A-Za-z][\w+.-]*:/")
#: readers of URLs leave them out, or take them for slashes
_LEFT_OUT: Final = re.compile(r"[\x00-\x1f\\]|^ | $")


def is_own(path: str) -> bool:
    """Return whether ``path``, as a table's log has it, is in the table's directory to whoever reads it."""
    name = unquote(path)
    is_elsewhere = name.startswith("/") or ".." in name.split("/") or _PLAIN_SCHEME.match(name)
    return not (is_elsewhere or _SCHEME.match(path) or _LEFT_OUT.search(path))


def refuse_others(paths: Iterable[str], place: object) -> None:
    """:raises TableHeldError: a file is not in the table's directory."""
    found = next((path for path in paths if not is_own(path)), None)
    if found is not None:
        raise TableHeldError(
            f"the log of {place} names the file {found[:200]!r}, which is not in the table's directory; undo what "
            f"another writer has added and resume the changefeed, or {RESYNC}"
        )


class OwnTable(DeltaTable):
    """A table that delta-rs reads from its own directory alone.

    :raises TableHeldError: by all that reads rows: its log names a file elsewhere.
    """

    def scan(self, *args: Any, **named: Any) -> Any:
        self._refuse_others()
        return super().scan(*args, **named)

    def merge(self, *args: Any, **named: Any) -> TableMerger:
        self._refuse_others()
        return super().merge(*args, **named)

    @property
    def optimize(self) -> TableOptimizer:
        self._refuse_others()
        return super().optimize

    def _refuse_others(self) -> None:
        refuse_others(pa.table(self.get_add_actions()).column("path").to_pylist(), self.table_uri)

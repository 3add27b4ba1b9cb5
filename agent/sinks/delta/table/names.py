"""Table names: checks which names are possible as directories of the sink, and names temporary directories.

A table is stored at its recorded location (``reactor.records.tables.locations``). A table without one is stored at
``{schema}/{table}`` with unencoded names: names that need no encoding, and those of versions before v0.2.0. Such a name
has to be a single path component that means the same to the file system, to delta-rs (which interprets some characters
as in URLs) and to us.
"""

import re
from hashlib import blake2b

from reactor.ids import Ts
from reactor.records.tables.table import TableRecord

#: prefix of temporary directories of renamed tables
ASIDE = ".weir-"
#: bytes; temporary directories need some more
_BYTES_MAX = 224
_NAME_MAX = 255
#: path separators; characters that delta-rs takes for escapes or refuses in a URL; control characters
_REFUSED = re.compile(r"[/\\%\[\]|^\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_RESERVED = frozenset({"", ".", "..", "_delta_log", "_change_data"})
#: in the URL of an object store
_REFUSED_IN_URL = re.compile(r"[?#]")


def refusal(table: TableRecord, *, is_local: bool) -> str:
    """Return why this table's name is not possible as a directory, and the cure; empty if it is."""
    if table.location:
        is_long = max(len(part.encode()) for part in table.path.split("/")) > _NAME_MAX
        return _refused(table, f"its name takes more than {_NAME_MAX} bytes") if is_long else ""
    for part in (table.schema_name, table.name):
        reason = _reason(part, is_local=is_local)
        if reason:
            return _refused(table, reason)
    return ""


def merged(table: TableRecord, other: TableRecord) -> str:
    """Like ``refusal``, for two names that the file system considers equal."""
    taken = f"the file system takes it for that of {shown(other.schema_name, other.name)}"
    return _refused(table, taken)


def dropped(directory: str, ts: Ts) -> str:
    """Return the directory's name after another table has taken its place; no table ever has such a name."""
    suffix = f".dropped-{int(ts):x}"
    if len(directory.encode()) + len(suffix) > _NAME_MAX:
        directory = f"{directory[:40]}-{blake2b(directory.encode(), digest_size=8).hexdigest()}"
    return directory + suffix


def is_refused(part: str) -> bool:
    """Return whether a path component is one below which our tables cannot be stored."""
    return part != "/" and (part in _RESERVED or _REFUSED.search(part) is not None)


def shown(schema_name: str, name: str) -> str:
    """Return the name in one line."""
    return ".".join(part if part.isprintable() and part else ascii(part) for part in (schema_name, name))


def _refused(table: TableRecord, reason: str) -> str:
    return (
        f"table {shown(table.schema_name, table.name)} cannot be a directory of the sink: {reason}; rename it at the "
        "source, or leave it out by a filter rule, and create the changefeed again"
    )


def _reason(part: str, *, is_local: bool) -> str:
    if part in _RESERVED:
        return f"the name {part!r} is taken"
    if part.startswith(ASIDE):
        return f"the name {part!r} begins with {ASIDE}"
    found = _REFUSED.search(part) or (None if is_local else _REFUSED_IN_URL.search(part))
    if found:
        return f"the name {part!a} has the character {found[0]!a}"
    if len(part.encode()) > _BYTES_MAX:
        return f"the name {part[:20]!r}… is longer than {_BYTES_MAX} bytes"
    return ""

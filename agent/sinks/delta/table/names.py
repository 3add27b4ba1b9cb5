"""Table names: checks which names of tables can be directories of the sink.

A table lies at ``{directory}/{schema}/{table}``, each name as it is. So a name has to be one part of a path, the same
for the file system, for delta-rs (which takes some characters for those of a URL) and for us.
"""

import re

from reactor.records.changefeed import TableRecord

#: where a renamed table waits for its place
ASIDE = ".weir-"
#: of bytes; a directory that goes aside gets some more
_BYTES_MAX = 224
#: parts of a path; what delta-rs reads as an escape, or refuses in a URL; what no line of a log should have in it
_REFUSED = re.compile(r"[/\\%\[\]|^\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_RESERVED = frozenset({"", ".", "..", "_delta_log", "_change_data"})
#: in the URL of an object store
_REFUSED_IN_URL = re.compile(r"[?#]")


def refusal(schema_name: str, name: str, *, is_local: bool) -> str:
    """Why no directory can carry this table, and what to do; empty where one can."""
    for part in (schema_name, name):
        reason = _reason(part, is_local=is_local)
        if reason:
            return _refused(schema_name, name, reason)
    return ""


def merged(table: TableRecord, other: TableRecord) -> str:
    """As ``refusal``, where the file system takes two names for one."""
    taken = f"the file system takes it for that of {shown(other.schema_name, other.name)}"
    return _refused(table.schema_name, table.name, taken)


def is_refused(part: str) -> bool:
    """A part of a path that tables of ours cannot lie below."""
    return part != "/" and (part in _RESERVED or _REFUSED.search(part) is not None)


def shown(schema_name: str, name: str) -> str:
    """In one line, whatever it is."""
    return ".".join(part if part.isprintable() and part else ascii(part) for part in (schema_name, name))


def _refused(schema_name: str, name: str, reason: str) -> str:
    return (
        f"table {shown(schema_name, name)} cannot be a directory of the sink: {reason}; rename it at the source, or "
        "leave it out by a filter rule, and create the changefeed again"
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

"""Prepared before: the XA transactions that a server holds when a changefeed begins, which it has to know of.

They are in no snapshot, and their XA PREPARE lies before the changefeed's position; so the position says where, as it
does of those that come later, and the binlog is kept for them until they are decided. The newest part of the binlog is
searched for the places. What is not found there may lie anywhere before: then the oldest file counts, unless all of
the binlog was searched. What is in none of it has no rows (MariaDB does not write such), or its file was purged.
"""

from collections.abc import Callable, Collection
from contextlib import closing
from dataclasses import replace
from typing import Final

import structlog

from agent.sources.mysql.binlog.prepared import digest
from agent.sources.mysql.binlog.recover import held_names
from agent.sources.mysql.binlog.reread import Dump, prepared_in
from agent.sources.mysql.position.positions import FIRST_POSITION, BinlogPosition, SourcePosition, pack, split_file_name
from agent.sources.mysql.server.connection import Connection
from reactor.ids import Ts

_log = structlog.get_logger()

#: of the binlog that are searched
_SEARCHED_BYTES: Final = 256 << 20


def names_before(connection: Connection) -> frozenset[str]:
    """To be asked for before the position is. Where the server does not say, the log does."""
    names = held_names(connection)
    if names is None:
        _log.warning(
            "the server does not say which XA transactions are prepared, so source_position does not count those from "
            f"before this changefeed; run: GRANT XA_RECOVER_ADMIN ON *.* TO {connection.target.user}"
        )
    return names or frozenset()


def with_prepared(
    connection: Connection, position: SourcePosition, before: Collection[str], connect: Callable[[], Connection]
) -> SourcePosition:
    """``position`` with those that are held ``before`` it was read, or now."""
    names = frozenset(before) | (held_names(connection) or frozenset())
    if not names:
        return position
    files = [(str(name), int(size or 0)) for name, size, *_ in connection.query("SHOW BINARY LOGS")]
    found = _find(names, files, position, connect)
    held = replace(position, prepared=tuple(sorted((digest(name), int(ts)) for name, ts in found.items())))
    _log.warning(
        "XA transactions are prepared; as long as they are not decided the binlog is needed from where they lie",
        names=sorted(names)[:20],
        source_position=str(held.needed),
    )
    return held


def _find(
    names: Collection[str], files: list[tuple[str, int]], position: SourcePosition, connect: Callable[[], Connection]
) -> dict[str, Ts]:
    """The last place of each that has one."""
    found: dict[str, Ts] = {}
    epoch, left = position.epoch.number, _SEARCHED_BYTES
    end = position.binlog
    for file, size in reversed(files[: [name for name, _ in files].index(end.file) + 1]):
        if left <= 0:
            return {**dict.fromkeys(names, _begin(epoch, files[0][0])), **found}
        left -= size
        until = end.position if file == end.file else None
        with closing(Dump(connect(), BinlogPosition(file))) as dump:
            here = {name: _begin(epoch, file, at) for name, at in prepared_in(dump, until) if name in names}
        found = {**here, **found}
        if len(found) == len(names):
            break
    return found


def _begin(epoch: int, file: str, at: int = FIRST_POSITION) -> Ts:
    return pack(epoch, split_file_name(file)[1], at)

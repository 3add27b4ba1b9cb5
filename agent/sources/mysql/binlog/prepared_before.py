"""Prepared before: finds the XA transactions that a server holds prepared when a changefeed begins.

They are in no snapshot, and their XA PREPARE is before the changefeed's position; so the position has their places, as
for later ones, and the binlog is kept until they are decided. The newest part of the binlog is searched for the places.
A transaction that is not found there may be anywhere before: then the start of the oldest file is its place, unless the
whole binlog was searched. One that is not in the binlog has no rows (MariaDB does not log it), or its file was purged.
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

#: number of bytes of the binlog that are searched
_SEARCHED_BYTES: Final = 256 << 20


def names_before(connection: Connection) -> frozenset[str]:
    """Return the prepared names, to be called before the position is read. The log shows if the server does not say."""
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
    """Return ``position`` with the transactions held ``before`` it was read, or now."""
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
    """Return the last place of each name that has one."""
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

"""Event list: the events of a binlog file as the server lists them (SHOW BINLOG EVENTS), page by page."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from agent.sources.mysql.position.positions import FIRST_POSITION
from agent.sources.mysql.server.connection import Connection
from agent.sources.mysql.server.sql import literal

_AT_ONCE: Final = 10_000
_GTID_LIST, _ANONYMOUS = "Gtid_list", "Anonymous_Gtid"
_QUERIES: Final = frozenset({"Query", "Query_compressed"})
_USE: Final = re.compile(r"use `((?:[^`]|``)*)`; (.*)", re.DOTALL | re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ListedEvent:
    """An event from offset ``begin`` to ``end``; ``kind`` and ``info`` as the server shows them."""

    begin: int
    end: int
    kind: str
    info: str

    @property
    def opens_transaction(self) -> bool:
        return self.kind == _ANONYMOUS or (self.kind.startswith("Gtid") and self.kind != _GTID_LIST)

    @property
    def statement(self) -> tuple[str, str]:
        """Return a statement's database and text; both empty for other events."""
        if self.kind not in _QUERIES:
            return "", ""
        found = _USE.fullmatch(self.info)
        return (found[1].replace("``", "`"), found[2]) if found else ("", self.info)


def list_events(connection: Connection, file: str, begin: int = FIRST_POSITION) -> Iterator[ListedEvent]:
    """Yield the events from ``begin``, which must be the start of an event, to the file's end.

    :raises SourceError: the server has no such file, or refuses.
    """
    at = begin
    while True:
        rows = connection.query(f"SHOW BINLOG EVENTS IN {literal(file)} FROM {at} LIMIT {_AT_ONCE}")
        for _, first, kind, _, end, info in rows:
            at = int(end or 0)
            yield ListedEvent(int(first or 0), at, str(kind), info or "")
        if len(rows) < _AT_ONCE:
            return

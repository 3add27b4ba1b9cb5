"""Held newcomers: tables that were held before the stream had them, and are dropped or renamed at the source.

The stream says nothing of them. A hold ends with its table, or its table's name: under another one the table is judged
again. It also ends where the table becomes a partition, whose rows belong to its root's table.
"""

from collections.abc import Callable, Collection, Mapping

from agent.sources.postgres.publication.findings import Findings
from agent.sources.postgres.publication.published import Catalog
from agent.sources.postgres.publication.silent import place
from agent.sources.postgres.server.catalog import names_of
from agent.sources.postgres.server.connection import Connection
from reactor.ids import Ts

Name = tuple[str, str]


class HeldNewcomers:
    """The held newcomers of one stream. ``wants`` selects by schema and name."""

    def __init__(self, wants: Callable[[str, str], bool]) -> None:
        self._wants = wants
        #: those whose hold ends, and where the log ended when that was seen
        self._since: dict[int, Ts] = {}
        self._is_renamed = False

    @property
    def is_due(self) -> bool:
        """Return whether the stream has yet to pass what was seen, or a table is to be judged under another name."""
        return bool(self._since) or self._is_renamed

    def has_news(self, connection: Connection, names: Mapping[int, Name]) -> bool:
        """Return whether one is gone, or has another name than in ``names``."""
        return bool(names) and names_of(connection, names) != names

    def judge(
        self, connection: Connection, now: Catalog, found: Findings, upto: Ts, *, joining: Collection[Name]
    ) -> None:
        """End holds, of a stream that is at ``upto``."""
        unknown = found.held.difference(found.known)
        names, since = names_of(connection, unknown), self._since
        for table_id in unknown.difference(found.newcomers):  # a proof of an earlier version has no names
            found.newcomers[table_id] = names.get(table_id, ("", ""))
        self._since, self._is_renamed = {}, False
        for table_id in sorted(unknown):
            name = names.get(table_id)
            is_wanted = name == found.newcomers[table_id] and (name in joining or self._wants(*name))
            if is_wanted and not self._is_part(now, table_id):
                continue
            self._since[table_id] = since.get(table_id, now.end_ts)
            if self._since[table_id] <= upto:
                del self._since[table_id]
                found.withdraw(table_id, upto)
                self._is_renamed = self._is_renamed or name is not None

    def _is_part(self, now: Catalog, table_id: int) -> bool:
        """Return whether its rows are sent under a root's name, or will be as soon as that is published."""
        above = [table for table in now.lineage(table_id)[1:] if table in now.tables]
        named = (now.tables[table] for table in above)
        wanted = {table_id, *(one.table_id for one in named if self._wants(one.schema_name, one.name))}
        return any(now.ways(table) for table in above) or place(now, table_id, wanted) != table_id

"""Quiet changes: schema changes of tables without a later row, from the catalog to the stream.

The stream declares a changed table in front of the table's next row, which may never come: old partitions get no rows.
So the prover posts the definition that the catalog has, and the stream notes it where it has read all that was in the
server's log at that moment: rows of the old definition are before it, as a change of columns waits for their writers.

A definition that the stream has may be newer than the catalog's, as a commit is sent slightly before others see it. So
a definition counts only if the catalog showed the transaction that the stream's own is of; of a stream that has not
declared the table since it was opened, if all transactions have ended that ran when the catalog was read first.
"""

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import structlog

from agent.rows.schema import TableSchema
from agent.sources.postgres.publication.proof import Proof
from agent.sources.postgres.publication.published import Catalog, Relation
from agent.sources.postgres.server import xids
from agent.sources.postgres.server.catalog import read_schemas
from agent.sources.postgres.server.connection import Connection
from agent.sources.postgres.server.idle import write_message
from agent.sources.postgres.server.terms import read_terms
from reactor.ids import Ts
from reactor.records.tables.table import TableRecord

#: between two readings of definitions that do not count yet
_AGAIN_S: Final = 5.0


_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Posted:
    schema: TableSchema
    catalog: Catalog
    is_settled: bool


class QuietChanges:
    """Posted by the prover (``look``), taken by the stream's thread (``note_declared``, ``take``)."""

    def __init__(self) -> None:
        self._posted: dict[int, _Posted] = {}
        self._lock = threading.Lock()
        #: by table, the transaction (32 bits) of its last declaration; of the stream's thread
        self._declared: dict[int, int] = {}
        #: the first transaction that had not begun at the first reading; of the prover's thread, as the rest
        self._first_ahead: int | None = None
        self._unsettled: set[int] = set()
        self._again_at = 0.0

    # The prover

    def is_due(self) -> bool:
        """Return whether the catalog must be read again for a definition that did not count."""
        return bool(self._unsettled) and time.monotonic() >= self._again_at

    def look(
        self,
        connection: Connection,
        publications: Sequence[str],
        before: Proof,
        now: Catalog,
        tables: Mapping[int, TableRecord],
        schemas: Mapping[int, TableSchema],
    ) -> None:
        """Post the definitions of these tables that are not those of ``schemas``; inside ``published.one_moment``.

        :raises SourceError: the catalog cannot be read.
        """
        is_first = self._first_ahead is None
        self._first_ahead = now.ahead if self._first_ahead is None else self._first_ahead
        suspects = {
            table
            for table in tables.keys() & schemas.keys() & now.tables.keys()
            if is_first or table in self._unsettled or _is_altered(before, now, tables[table], schemas[table])
        }
        found = (
            read_schemas(connection, sorted(suspects), read_terms(connection, publications, with_rows=False))
            if suspects
            else {}
        )
        is_settled = now.horizon >= self._first_ahead
        posted = {
            table: _Posted(schema, now, is_settled)
            for table, schema in found.items()
            if _definition(schema) != _definition(schemas[table])
        }
        self._unsettled = set() if is_settled else set(posted)
        self._again_at = time.monotonic() + _AGAIN_S
        with self._lock:
            self._posted |= posted

    def move_on(self, connection: Connection) -> None:
        """Write a message into the log of a server that may be idle: it moves the stream past what is posted, with a
        place for each table. Outside ``published.one_moment``."""
        with self._lock:
            places = len(self._posted)
        if places and (reason := write_message(connection, size=places)):
            _log.info("a schema change waits until the source writes", tables=places, reason=reason)

    # The stream

    def note_declared(self, table_id: int, xid: int) -> None:
        """The stream declares the table in the transaction ``xid``."""
        self._declared[table_id] = xid

    def take(self, after: Ts, upto: Ts) -> list[tuple[Ts, TableSchema, int]]:
        """Return, once, the definitions that count for a stream that is at ``upto``: of each its place above ``after``,
        and the first transaction (32 bits) that had not begun when it was read.

        Each has a place of its own, so that a table that cannot follow its change holds no other; those for which there
        is none are returned at a later position.
        """
        found: list[tuple[Ts, TableSchema, int]] = []
        with self._lock:
            for table, posted in sorted(self._posted.items(), key=lambda item: item[1].catalog.end_ts):
                ts = max(posted.catalog.end_ts, after + 1)
                if ts > upto:
                    break
                del self._posted[table]
                if self._counts(posted):
                    found.append((Ts(ts), posted.schema, xids.short(posted.catalog.ahead)))
                    after = Ts(ts)
        return found

    def _counts(self, posted: _Posted) -> bool:
        xid = self._declared.get(posted.schema.table_id)
        return posted.is_settled if xid is None else posted.catalog.shows(xids.near(xid, posted.catalog.ahead))


def _is_altered(before: Proof, now: Catalog, record: TableRecord, schema: TableSchema) -> bool:
    """Return whether the table has another name, or a column that was added, removed, renamed or altered."""
    relation = now.tables[record.table_id]
    if (record.schema_name, record.name) != (relation.schema_name, relation.name):
        return True
    table_id, known = record.table_id, before.columns.get(record.table_id, {})
    if relation.columns.keys() != known.keys() or _is_renamed(schema, relation):
        return True
    return any(not before.has_seen(f"c{table_id}.{at}", now.xids[f"c{table_id}.{at}"]) for at in relation.columns)


def _is_renamed(schema: TableSchema, relation: Relation) -> bool:
    return any(relation.numbers.get(column.name) != column.place for column in schema.columns if column.place)


def _definition(schema: TableSchema) -> TableSchema:
    """Return it without the spelling of types, and without numbers, which the stream may not know."""
    return replace(schema, columns=tuple(replace(column, type_name="", place=0) for column in schema.columns))

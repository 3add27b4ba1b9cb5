"""Beginning: a source's position, with its tables, their keys and their definitions as they are there.

They are read by several queries, so each of them may be of another moment, and a position is of a third. A table that
changes in between would get rows by a key, or in columns, that it did not have at the position. So everything is read
before the position is taken and after it: what is equal in both was so at the position, too. Otherwise another position
is taken. A table that is gone by then is left out, and one that has come since joins the stream.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import structlog

from agent.errors import SourceError, SourceUnreachableError
from agent.ports.source import Position, Source, SourceReport
from agent.rows.schema import TableSchema
from reactor.records.tables.table import TableRecord

_ATTEMPTS_MAX: Final = 5

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Begun:
    """``schemas``: of ``report.tables``, by their ids. ``joining``: schema and name of tables that are to join the
    stream (see ``Source.missed_tables``)."""

    report: SourceReport
    schemas: Mapping[int, TableSchema]
    position: Position
    joining: tuple[tuple[str, str], ...] = ()

    @property
    def tables(self) -> tuple[TableRecord, ...]:
        return self.report.tables


def begin(source: Source, take: Callable[[Sequence[TableRecord]], Position], *, accepts_unfit: bool = False) -> Begun:
    """Return the position that ``take`` makes of the source's tables, and these; blocking. ``accepts_unfit``: also with
    tables that cannot be replicated as they are.

    :raises TableIneligibleError: one cannot, and ``accepts_unfit`` is off.
    :raises SourceUnreachableError: tables change all the time.
    :raises SourceError: the source refuses.
    """
    before = _read(source)
    for attempt in range(_ATTEMPTS_MAX):
        position, refusal = None, None
        try:
            if not accepts_unfit:
                before.report.refuse_unfit(before.report.tables)
            position = take(before.report.tables)
        except SourceError as error:  # it may be about a table that is gone
            refusal = error
        now = _read(source)
        there = _without(before, before.schemas.keys() - now.schemas.keys())
        changed = _changed(there, now)
        if position and not changed:
            joining = source.missed_tables(there.report.tables)
            if not joining or attempt == _ATTEMPTS_MAX - 1:
                return Begun(there.report, there.schemas, position, joining)
            changed = [".".join(name) for name in joining]
        is_gone = there.schemas.keys() != before.schemas.keys()
        if refusal and not changed and not is_gone:
            raise refusal
        _log.info("tables have changed while a position was taken; another one is taken", tables=changed[:10])
        before = now
    if refusal:
        raise refusal
    raise SourceUnreachableError(
        f"table {changed[0]} changes again and again while the stream's first position is taken; it is tried again"
    )


@dataclass(frozen=True, slots=True)
class _Reading:
    report: SourceReport
    schemas: Mapping[int, TableSchema]


def _changed(before: _Reading, now: _Reading) -> list[str]:
    """Return the names of tables that are not as they were before; rows are in the log."""
    records = {table.table_id: _without_rows(table) for table in now.report.tables}
    return [
        f"{table.schema_name}.{table.name}"
        for table in before.report.tables
        if records.get(table.table_id) != _without_rows(table)
        or now.schemas[table.table_id] != before.schemas[table.table_id]
    ]


def _without_rows(table: TableRecord) -> TableRecord:
    return table.with_(rows_estimated=0)


def _without(reading: _Reading, gone: Collection[int]) -> _Reading:
    tables = tuple(table for table in reading.report.tables if table.table_id not in gone)
    schemas = {table.table_id: reading.schemas[table.table_id] for table in tables}
    return _Reading(replace(reading.report, tables=tables), schemas)


def _read(source: Source) -> _Reading:
    report = source.discover()
    schemas = source.read_schemas(report.tables)
    gone = {table.table_id for table in report.tables} - schemas.keys()
    return _without(_Reading(report, schemas), gone)

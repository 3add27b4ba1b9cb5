"""Beginning: a source's position, with its tables, their keys and their definitions as they are there.

They are read by several queries, so each of them may be of another moment, and a position is of a third. A table that
changes in between would get rows by a key, or in columns, that it did not have at the position. So everything is read
before the position is taken and after it: what is equal in both was so at the position, too. Otherwise another position
is taken.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from agent.errors import SourceConfigError, SourceError, SourceUnreachableError
from agent.ports.source import Position, Source, SourceReport
from agent.rows.schema import TableSchema
from reactor.records.tables.table import TableRecord

_ATTEMPTS_MAX: Final = 5

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Begun:
    """``schemas``: of ``report.tables``, by their ids."""

    report: SourceReport
    schemas: Mapping[int, TableSchema]
    position: Position

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
    for _ in range(_ATTEMPTS_MAX):
        position, refusal = None, None
        try:
            if not accepts_unfit:
                before.report.refuse_unfit(before.report.tables)
            position = take(before.report.tables)
        except SourceError as error:  # it may be about a table that is gone
            refusal = error
        changed = _changed(before, now := _read(source))
        if not changed and refusal:
            raise refusal
        if not changed and position:
            return Begun(before.report, before.schemas, position)
        _log.info("tables have changed while a position was taken; another one is taken", tables=changed[:10])
        before = now
    raise SourceUnreachableError(
        f"table {changed[0]} changes again and again while the stream's first position is taken; it is tried again"
    )


@dataclass(frozen=True, slots=True)
class _Reading:
    report: SourceReport
    schemas: Mapping[int, TableSchema]


def _changed(before: _Reading, now: _Reading) -> list[str]:
    """Return the names of tables that are no more as they were. New ones are the stream's, and rows are in the log."""
    records = {table.table_id: _without_rows(table) for table in now.report.tables}
    return [
        f"{table.schema_name}.{table.name}"
        for table in before.report.tables
        if records.get(table.table_id) != _without_rows(table)
        or now.schemas[table.table_id] != before.schemas[table.table_id]
    ]


def _without_rows(table: TableRecord) -> TableRecord:
    return table.with_(rows_estimated=0)


def _read(source: Source) -> _Reading:
    for _ in range(_ATTEMPTS_MAX - 1):
        report = source.discover()
        try:
            return _Reading(report, source.read_schemas([table.table_id for table in report.tables]))
        except SourceConfigError as error:  # a table is gone
            _log.info("tables are read again", reason=str(error))
    report = source.discover()
    return _Reading(report, source.read_schemas([table.table_id for table in report.tables]))

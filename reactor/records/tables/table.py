"""Table record: one replicated table: its names, its key and its place at the sink."""

from typing import Any, Self

from reactor.ids import Ts
from reactor.records.base import Count, Estimate, Record, StoredTs, TableId, later
from reactor.records.tables import locations

#: shared by all table records, since there may be a hundred thousand; always empty
_NOT_KEPT: set[str] = set()


class TableRecord(Record):
    """One replicated table as the dump (or the stream) found it."""

    table_id: TableId
    schema_name: str
    name: str
    #: columns of the key, in order; empty = append only
    key: tuple[str, ...] = ()
    #: every change at or below it is in the loaded snapshot
    start_ts: StoredTs = Ts(0)
    #: a resumed dump reads later chunks later: the first flush must reach at least here (see agent.units.dump)
    consistent_ts: StoredTs = Ts(0)
    rows_estimated: Estimate = 0
    #: MySQL: number of the collation that texts in columns to come have unless they say another; 0: not known
    collation: Count = later(0)
    #: where it lies, below the directory of a sink; empty: under its names as they are
    location: str = later("", pattern=locations.PATTERN)
    #: it came with rows that are not in the log, and is to be copied before it is written
    to_copy: bool = later(False, format=4)
    #: rows changed at or below it are left out, as an operator wished
    skipped_ts: StoredTs = later(Ts(0), format=5)
    #: MySQL: where the server showed its key (with ``to_copy``: its columns), which no statement says; 0: one does
    shown_ts: StoredTs = later(Ts(0))
    #: MySQL: its key is the primary key of the source, which no DROP INDEX takes away; None: not known
    is_primary: bool | None = later(None)

    @classmethod
    def new(cls, table_id: int, schema_name: str, name: str, **fields: Any) -> Self:
        """Return the record of a table that no sink has yet."""
        location = _location(schema_name, name)
        return cls(table_id=table_id, schema_name=schema_name, name=name, location=location, **fields)

    def named(self, schema_name: str, name: str) -> Self:
        """Return the table under another name, which means another location; an unchanged name keeps its location."""
        if (schema_name, name) == (self.schema_name, self.name):
            return self
        return self.with_(schema_name=schema_name, name=name, location=_location(schema_name, name))

    @property
    def path(self) -> str:
        """The location below the directory of a sink; not always a valid path, if no location is recorded."""
        return self.location or f"{self.schema_name}/{self.name}"

    def model_post_init(self, _context: object) -> None:
        """Keep neither which fields were given, nor an empty container for unknown ones: records are very many."""
        object.__setattr__(self, "__pydantic_fields_set__", _NOT_KEPT)
        if not self.__pydantic_extra__:
            object.__setattr__(self, "__pydantic_extra__", None)


def _location(schema_name: str, name: str) -> str:
    """Return the location to record: empty if it equals the names."""
    location = locations.location_of(schema_name, name)
    return "" if location == f"{schema_name}/{name}" else location

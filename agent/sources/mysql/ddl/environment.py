"""Interpreter environment: what it queries from the server, and the changefeed's configuration."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from agent.rows.schema import TableSchema, ZeroDates
from agent.sources.mysql.ddl.expressions.unsteady import FULL_IMAGES
from agent.sources.mysql.ddl.parser.cursor import Name
from agent.sources.mysql.ddl.parser.edits import Effort
from agent.sources.mysql.retyping.terms import STRICT, RetypeTerms
from agent.sources.mysql.values.session import SYSTEM, Session
from reactor.ids import Ts
from reactor.records.tables.table import TableRecord

#: a table that is altered more often than this while it is read is copied with the definition of a later place
_READINGS_MAX: Final = 10


@dataclass(frozen=True, slots=True)
class Shown:
    """A table's definition at a place of the log. ``schema``: None if the table is gone."""

    schema: TableSchema | None
    is_primary: bool
    place: Ts


@dataclass(frozen=True, slots=True)
class Server:
    """``wants``: whether a new table is selected, by schema and name; ``takes``: whether it can be replicated.
    ``look``: a table's current definition, None if it is gone. ``ignores_rename``: whether to ignore a table that gets
    this name by this statement; ``ignores``: an event, by its name in event filters. ``time_zone``: the server's, empty
    if unknown. ``folds_names``: the server has table names in lower case, however statements spell them.
    ``logs_cascades``: row changes by foreign keys are logged, or accepted as missing. ``collations``: of all databases;
    ``collation_of``: of one that the log does not define, 0 if unknown. ``reaches``: whether a change of tables of
    these names may change others too. ``computed``: the expressions of a table's generated columns.
    ``explicit_timestamps``: ``explicit_defaults_for_timestamp`` of sessions where the log does not record it; None if
    MariaDB logs it as an option. ``place``: the end of the log. ``uniques``: the columns of a table's unique keys now,
    in lower case. ``has_primary``: whether a table has a primary key now; ``has_checks``: constraints that rows may
    fail (asked of MariaDB). ``selects``: whether a table's column is replicated. ``images``: MariaDB's
    ``binlog_row_image``; ``FULL`` of MySQL, which logs virtual columns. ``copies_partitions``: a table is copied by
    itself whose partitions came or went with rows."""

    wants: Callable[[str, str], bool]
    takes: Callable[[TableRecord], bool]
    look: Callable[[Name], TableSchema | None]
    ignores_rename: Callable[[Name, str], bool]
    ignores: Callable[[Name, str], bool]
    zero_dates: ZeroDates
    is_mariadb: bool
    time_zone: str = ""
    folds_names: bool = False
    explicit_timestamps: bool | None = True
    logs_cascades: bool = False
    collations: Callable[[], Mapping[str, int]] = lambda: {}
    collation_of: Callable[[str], int] = lambda database: 0
    reaches: Callable[[Sequence[Name]], bool] = lambda names: False
    computed: Callable[[Name], Mapping[str, str]] = lambda name: {}
    uniques: Callable[[Name], frozenset[str]] = lambda name: frozenset()
    place: Callable[[], Ts] = lambda: Ts(0)
    has_primary: Callable[[Name], bool] = lambda name: True
    has_checks: Callable[[Name], bool] = lambda name: False
    selects: Callable[[Name, str], bool] = lambda name, column: True
    images: str = FULL_IMAGES
    copies_partitions: bool = True

    def show(self, name: Name) -> Shown:
        """Read a table's definition and a place at which it has it: the definition is the same before and after. With
        any other place, a statement in between would be applied twice, or not at all."""
        seen = self._seen(name)
        for _ in range(_READINGS_MAX):
            place, before = self.place(), seen
            seen = self._seen(name)
            if seen == before:
                break
        return Shown(*seen, place)

    def _seen(self, name: Name) -> tuple[TableSchema | None, bool]:
        schema = self.look(name)
        return schema, schema is not None and self.has_primary(name)

    def session(self, logged: Session) -> Session:
        """Return the session of a statement, with what the log leaves to the server."""
        explicit = logged.explicit_timestamps
        if explicit is None:
            explicit = logged.has_explicit_bit if self.explicit_timestamps is None else self.explicit_timestamps
        zone = self.time_zone if logged.time_zone in ("", SYSTEM) else logged.time_zone
        return replace(logged, time_zone=zone, explicit_timestamps=explicit)

    def terms(self, logged: Session, effort: Effort) -> RetypeTerms:
        """Return the conditions under which a statement converts values."""
        session = self.session(logged)
        mode = session.sql_mode & ~STRICT if effort.is_lax else session.sql_mode
        return RetypeTerms(self.is_mariadb, mode, session.time_zone, copies=effort.copies, second=session.second)

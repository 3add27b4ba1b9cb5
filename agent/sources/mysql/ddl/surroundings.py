"""Surroundings of the interpreter: what it asks of the server, and of the changefeed's configuration."""

from collections.abc import Callable
from dataclasses import dataclass

from agent.rows.schema import TableSchema, ZeroDates
from agent.sources.mysql.ddl.parser.cursor import Name
from reactor.records.changefeed import TableRecord


@dataclass(frozen=True, slots=True)
class Server:
    """``wants``: whether a new table is, by schema and name; ``takes``: whether it can be replicated. ``look``: a
    table's definition as it is now, None when it is gone. ``ignores_rename``: whether a table that gets this name by
    this statement shall be left out. ``time_zone``: its own, empty where it is not known. ``folds_names``: tables are
    in lower case there, however a statement spells them. ``logs_cascades``: what foreign keys do to rows is in its log,
    or nobody minds. ``collation_of``: a database's own, 0 where not known."""

    wants: Callable[[str, str], bool]
    takes: Callable[[TableRecord], bool]
    look: Callable[[Name], TableSchema | None]
    ignores_rename: Callable[[Name, str], bool]
    zero_dates: ZeroDates
    is_mariadb: bool
    time_zone: str = ""
    folds_names: bool = False
    logs_cascades: bool = False
    collation_of: Callable[[str], int] = lambda database: 0

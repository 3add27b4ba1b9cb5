"""DDL event: one statement of the binlog that may change a table's definition."""

from dataclasses import dataclass

from agent.sources.mysql.values.session import UNKNOWN, Session
from reactor.ids import Ts


@dataclass(frozen=True, slots=True)
class DdlEvent:
    """A statement that defines, changes or removes tables or databases, and where in the log it took effect."""

    ts: Ts
    database: str
    statement: str
    session: Session = UNKNOWN

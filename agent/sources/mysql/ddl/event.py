"""DDL event: a statement of the binlog that may change a table's definition."""

from dataclasses import dataclass

from agent.sources.mysql.values.session import UNKNOWN, Session
from reactor.ids import Ts


@dataclass(frozen=True, slots=True)
class DdlEvent:
    """A statement that defines, changes or drops tables or databases, with its position in the log.

    ``is_failed``: the server has logged it with an error, for what it did before that.
    """

    ts: Ts
    database: str
    statement: str
    session: Session = UNKNOWN
    is_failed: bool = False

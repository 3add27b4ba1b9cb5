"""DDL event: a statement of the binlog that may change a table's definition."""

from dataclasses import dataclass
from typing import Final

from agent.sources.mysql.values.session import UNKNOWN, Session
from reactor.ids import Ts

_NOWHERE: Final = Ts(0)


@dataclass(frozen=True, slots=True)
class DdlEvent:
    """A statement that defines, changes or drops tables or databases, with its position in the log.

    ``end``: where the log continues behind it. ``is_failed``: the server has logged it with an error, for what it did
    before that.
    """

    ts: Ts
    database: str
    statement: str
    session: Session = UNKNOWN
    end: Ts = _NOWHERE
    is_failed: bool = False

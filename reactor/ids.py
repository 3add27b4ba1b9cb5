"""Ids and positions: names of captures, changefeeds and table spans, and positions in a source's log.

They are plain strings and integers at run time; the ``NewType`` names keep them from being mixed up.
"""

import re
from typing import NamedTuple, NewType

from reactor.errors import InvalidIdError

CaptureId = NewType("CaptureId", str)
ChangefeedId = NewType("ChangefeedId", str)
#: a 63-bit position in one source's log that orders its commits; PostgreSQL: the commit LSN
Ts = NewType("Ts", int)

#: no barrier: larger than every position of a source
MAX_TS = Ts((1 << 63) - 1)
#: one past the largest 64-bit key hash; the whole table is ``[0, KEY_SPACE)``
KEY_SPACE = 1 << 64

_NAME = re.compile(r"^[a-zA-Z0-9]+(-[a-zA-Z0-9]+)*\Z")
_NAME_LENGTH_MAX = 128
_RESERVED_CLUSTER_IDS = frozenset({"owner", "capture", "task", "changefeed", "job", "meta"})


class TableSpan(NamedTuple):
    """A range ``[start, end)`` of one table's key-hash space: the unit of scheduling and of fencing at the sink.

    A tuple, since spans are hashed and compared by the hundred thousand.
    """

    table_id: int
    start: int = 0
    end: int = KEY_SPACE

    @property
    def is_whole_table(self) -> bool:
        return self.start == 0 and self.end == KEY_SPACE

    def __str__(self) -> str:
        return f"{self.table_id}:{self.start:x}-{self.end:x}"

    @classmethod
    def parse(cls, text: str) -> "TableSpan":
        """Parse what ``str`` returns.

        :raises InvalidIdError: the text is not ``table:start-end``.
        """
        try:
            table, _, bounds = text.partition(":")
            start, _, end = bounds.partition("-")
            return cls(int(table), int(start, 16), int(end, 16))
        except ValueError as error:
            raise InvalidIdError(f"not a table span: {text!r}; it is written table:start-end") from error


def parse_changefeed_id(text: str) -> ChangefeedId:
    """:raises InvalidIdError: not letters and digits joined by single hyphens, or longer than 128 characters."""
    return ChangefeedId(_checked_name(text, what="changefeed id"))


def parse_cluster_id(text: str) -> str:
    """:raises InvalidIdError: malformed, or a reserved word of the key space."""
    if text in _RESERVED_CLUSTER_IDS:
        raise InvalidIdError(f"cluster id {text!r} is a word of the key space; choose another")
    return _checked_name(text, what="cluster id")


def _checked_name(text: str, *, what: str) -> str:
    if len(text) > _NAME_LENGTH_MAX or not _NAME.match(text):
        raise InvalidIdError(
            f"{what} {text!r} is malformed: letters and digits, joined by single hyphens, at most {_NAME_LENGTH_MAX}"
        )
    return text

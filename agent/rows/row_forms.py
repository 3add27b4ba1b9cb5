"""Row forms: which hash a source's own SQL computes of a row, and of what, column by column.

Values that travel; ``agent.rows.row_hashes`` computes the same.
"""

from dataclasses import dataclass
from enum import StrEnum


class Form(StrEnum):
    """The form of a value in its row's hash. The first six are PostgreSQL's, and hashed column by column; the others
    make up one text of the row, which is hashed as a whole."""

    #: an int4: integers up to 32 bits, truth values
    WORD = "word"
    #: days since 2000, as an int4
    DATE_WORD = "date-word"
    #: eight bytes, the largest first
    LONG = "long"
    #: microseconds since 2000, the same way
    MOMENT_LONG = "moment-long"
    #: the bits of a float, the same way, in four or eight bytes
    FLOAT = "float"
    #: its own bytes, or those of its text
    BYTES = "bytes"
    #: a number's or a moment's text
    PLAIN = "plain"
    #: a length, and the text's bytes
    SIZED = "sized"


class RowHash(StrEnum):
    """``RECORD``: PostgreSQL's ``hash_record_extended``. ``CRC_SQUARE``: the square of a CRC-32 of the row's text."""

    RECORD = "record"
    CRC_SQUARE = "crc-square"


@dataclass(frozen=True, slots=True)
class RowForm:
    """The hash of a row, and the form of each column in it."""

    hash: RowHash
    columns: tuple[tuple[str, Form], ...]

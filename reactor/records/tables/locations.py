"""Table locations: names of schemas and tables as parts of a path, by one encoding that can be undone.

Letters and digits of every script, ``_`` and ``-`` stay. Every other character becomes ``!`` and two hexadecimal digits
for each byte of its UTF-8: ``a/b`` is ``a!2Fb``. So no part is ``.`` or ``..``, divides a path, ends a line, or is
unquoted by those who take paths for URLs. A name that a table format or Weir uses itself has its first character
escaped: ``_delta_log`` is ``!5Fdelta_log``. A name with letters that a file system might compose has all of its letters
beyond ASCII escaped. What would be longer than ``BYTES_MAX`` bytes is *packed*: ``!z`` and one number in base 36, at
most 251 characters for 64 characters of any script.

A location is the part of the schema and that of the table, so tables never lie in each other's directories. It is
recorded with the table (``TableRecord.location``): another version of Unicode or of Weir never moves a table. Where
another table has a new one's location still, ``!t`` and the new one's number follow.
"""

import re
import string
import unicodedata
from typing import Final

ESCAPE: Final = "!"
#: maximum bytes of a part that is not packed; leaves room for a sink's suffixes
BYTES_MAX: Final = 224
#: a location as it is stored: none, or two parts of one path
PATTERN: Final = r"^([^/\\.%\x00-\x1f\x7f]+/[^/\\.%\x00-\x1f\x7f]+)?$"

_PACKED: Final = f"{ESCAPE}z"
_DIGITS: Final = string.digits + string.ascii_lowercase
_CODE_POINTS: Final = 0x110000
#: of Delta, Iceberg and Spark; in any case, since some file systems do not distinguish it
_RESERVED: Final = frozenset(
    {
        *("_delta_log", "_change_data", "_delta_index", "_symlink_format_manifest", "metadata", "data"),
        *("_temporary", "_success", "_metadata", "_common_metadata", "_spark_metadata"),
    }
)
_PLAIN: Final = re.compile(r"[A-Za-z0-9_-]+\Z")
_ESCAPED: Final = re.compile(f"{ESCAPE}([0-9A-F]{{2}})")
#: invisible marks
_INVISIBLE: Final = re.compile("[\u034f\ufe00-\ufe0f\U000e0100-\U000e01ef]")


def location_of(schema_name: str, name: str) -> str:
    """Return the location of a new table, below the directory of a sink."""
    return f"{encoded(schema_name)}/{encoded(name)}"


def beside(location: str, table_id: int) -> str:
    """Return the location of a table whose own location is taken by another: no name is encoded like this."""
    return f"{location}{ESCAPE}t{table_id}"


def encoded(name: str) -> str:
    """Encode ``name`` as one part of a path; different names give different parts."""
    part = name if _PLAIN.match(name) else "".join(char if _stays(char) else _escaped(char) for char in name)
    if unicodedata.normalize("NFC", part) != part:
        part = "".join(char if char.isascii() else _escaped(char) for char in part)
    if part.lower() in _RESERVED:
        part = _escaped(part[0]) + part[1:]
    if len(part.encode()) > BYTES_MAX:
        return min(part, _packed(name), key=lambda text: len(text.encode()))
    return part or ESCAPE


def decoded(part: str) -> str:
    """Return the name from which ``part`` was encoded."""
    if part == ESCAPE:
        return ""
    if part.startswith(_PACKED):
        return _unpacked(part)
    found = _ESCAPED.split(part)  # text and escaped bytes in turn
    pieces = (bytes.fromhex(piece) if at % 2 else piece.encode() for at, piece in enumerate(found))
    return b"".join(pieces).decode(errors="surrogatepass")


def _stays(char: str) -> bool:
    if char in "_-" or char.isalnum():
        return True
    return unicodedata.category(char) in ("Mn", "Mc") and not _INVISIBLE.match(char)


def _escaped(char: str) -> str:
    return "".join(f"{ESCAPE}{byte:02X}" for byte in char.encode(errors="surrogatepass"))


def _packed(name: str) -> str:
    number, digits = 1, ""
    for char in name:
        number = number * _CODE_POINTS + ord(char)
    while number:
        number, digit = divmod(number, 36)
        digits += _DIGITS[digit]
    return _PACKED + digits[::-1]


def _unpacked(part: str) -> str:
    number, chars = int(part.removeprefix(_PACKED), 36), ""
    while number > 1:
        number, code = divmod(number, _CODE_POINTS)
        chars += chr(code)
    return chars[::-1]

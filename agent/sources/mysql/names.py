"""Names in lower case, as the servers compare and fold them. Pure.

Both servers convert letter by letter, and know the cases of Unicode 3.0: ``Σ`` becomes ``σ`` wherever it is, and a
letter whose lower case is younger stays as it is.
"""

from functools import lru_cache
from typing import Final
from unicodedata import ucd_3_2_0

#: letters that Unicode 3.2 has, and that got a lower case behind 3.0
_UNPAIRED: Final = frozenset(
    {*"ȠϘϴҊӀӅӉӍԀԂԄԆԈԊԌԎℲↃ", *map(chr, range(0x10A0, 0x10C6)), *map(chr, range(0x13A0, 0x13F5))}
)


@lru_cache(maxsize=4096)
def lowered(name: str) -> str:
    """Return the name of a database, table or column in lower case."""
    return name.lower() if name.isascii() else "".join(map(_letter, name))


def _letter(letter: str) -> str:
    is_paired = ucd_3_2_0.category(letter) != "Cn" and letter not in _UNPAIRED
    return letter.lower()[:1] if is_paired else letter

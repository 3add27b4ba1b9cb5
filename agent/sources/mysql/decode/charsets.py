"""Character sets of MySQL and MariaDB: finds the character set of a collation number, and decodes its text.

Text is decoded as the server converts it to utf8mb4, so that a row of the stream equals the row of a dump. Python's
codecs do most of this; ``_PATCHES`` contains the bytes for which the server's tables differ, found by querying a server
for every byte. Bytes that the server cannot convert (it shows ``?``) become ``?``. ``multibyte`` has the sets of East
Asia.
"""

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Final

from agent.sources.mysql.decode import multibyte

BINARY: Final = "binary"
BINARY_COLLATION: Final = 63
#: character sets that are UTF-8 already
UTF8: Final = frozenset({"ascii", "utf8mb3", "utf8mb4"})
#: with all their bytes
VARIABLE_UTF8: Final = UTF8 - {"ascii"}
#: character sets in which no character is one byte
WIDE: Final = frozenset({"ucs2", "utf16", "utf16le", "utf32"})

_COLLATIONS: Final[Mapping[str, tuple[int, ...]]] = {
    "armscii8": (32, 64),
    "ascii": (11, 65),
    "big5": (1, 84),
    BINARY: (BINARY_COLLATION,),
    "cp1250": (26, 34, 44, 66, 99),
    "cp1251": (14, 23, 50, 51, 52),
    "cp1256": (57, 67),
    "cp1257": (29, 58, 59),
    "cp850": (4, 80),
    "cp852": (40, 81),
    "cp866": (36, 68),
    "cp932": (95, 96),
    "dec8": (3, 69),
    "eucjpms": (97, 98),
    "euckr": (19, 85),
    "gb18030": (248, 249, 250),
    "gb2312": (24, 86),
    "gbk": (28, 87),
    "geostd8": (92, 93),
    "greek": (25, 70),
    "hebrew": (16, 71),
    "hp8": (6, 72),
    "keybcs2": (37, 73),
    "koi8r": (7, 74),
    "koi8u": (22, 75),
    "latin1": (5, 8, 15, 31, 47, 48, 49, 94),
    "latin2": (2, 9, 21, 27, 77),
    "latin5": (30, 78),
    "latin7": (20, 41, 42, 79),
    "macce": (38, 43),
    "macroman": (39, 53),
    "sjis": (13, 88),
    "swe7": (10, 82),
    "tis620": (18, 89),
    "ucs2": (35, 90, *range(128, 160)),
    "ujis": (12, 91),
    "utf16": (54, 55, *range(101, 128)),
    "utf16le": (56, 62),
    "utf32": (60, 61, *range(160, 192)),
    "utf8mb3": (33, 76, 83, *range(192, 224)),
    "utf8mb4": (45, 46, *range(224, 248), *range(255, 512)),
}
_CHARSETS: Final = {number: name for name, numbers in _COLLATIONS.items() for number in numbers}
#: MariaDB's newer collations are numbered in blocks: first number, end, character set
_BLOCKS: Final = (
    (576, 608, "utf8mb3"),
    (608, 640, "utf8mb4"),
    (640, 672, "ucs2"),
    (672, 704, "utf16"),
    (736, 768, "utf32"),
    (2048, 2304, "utf8mb3"),
    (2304, 2560, "utf8mb4"),
    (2560, 2816, "ucs2"),
    (2816, 3072, "utf16"),
    (3072, 3328, "utf32"),
)
#: offset of MariaDB's "nopad" collations
_NOPAD, _NOPAD_END = 1024, 2048

#: bytes of the longest character, if not one
_WIDTHS: Final = {
    "big5": 2,
    "cp932": 2,
    "eucjpms": 3,
    "euckr": 2,
    "gb18030": 4,
    "gb2312": 2,
    "gbk": 2,
    "sjis": 2,
    "ucs2": 2,
    "ujis": 3,
    "utf16": 4,
    "utf16le": 4,
    "utf32": 4,
    "utf8mb3": 3,
    "utf8mb4": 4,
}

_UNICODE: Final = frozenset({"gb18030", "utf16", "utf16le", "utf32", "utf8mb4"})
#: without the characters beyond the Basic Multilingual Plane
_BASIC: Final = frozenset({"ucs2", "utf8mb3"})
_BASIC_MAX: Final = "\uffff"

_CODECS: Final = {
    "armscii8": "latin-1",
    "ascii": "ascii",
    "cp1250": "cp1250",
    "cp1251": "cp1251",
    "cp1256": "cp1256",
    "cp1257": "cp1257",
    "cp850": "cp850",
    "cp852": "cp852",
    "cp866": "cp866",
    "dec8": "latin-1",
    "gb18030": "gb18030",
    "geostd8": "cp1252",
    "greek": "iso8859-7",
    "hebrew": "iso8859-8",
    "hp8": "hp-roman8",
    "keybcs2": "cp437",
    "koi8r": "koi8-r",
    "koi8u": "koi8-u",
    "latin1": "cp1252",
    "latin2": "iso8859-2",
    "latin5": "iso8859-9",
    "latin7": "iso8859-13",
    "macce": "mac_latin2",
    "macroman": "mac_roman",
    "swe7": "ascii",
    "tis620": "tis-620",
    "ucs2": "utf-16-be",
    "utf16": "utf-16-be",
    "utf16le": "utf-16-le",
    "utf32": "utf-32-be",
    "utf8mb3": "utf-8",
    "utf8mb4": "utf-8",
}

_ARMENIAN = "❁§։)(»«—.՝,-՟…՜՛՞ԱաԲբԳգԴդԵեԶզԷէԸըԹթԺժԻիԼլԽխԾծԿկՀհՁձՂղՃճՄմՅյՆնՇշՈոՉչՊպՋջՌռՍսՎվՏտՐրՑցՒւՓփՔքՕօՖֆ’'"
_GEORGIAN = "აბგდევზჱთიკლმნჲოპჟრსტჳუფქღყშჩცძწჭხჴჯჰჵ???????????????????????№??"


def _run(first: int, characters: str) -> dict[int, str]:
    return {first + i: character for i, character in enumerate(characters)}


def _unknown(*numbers: int) -> dict[int, str]:
    return dict.fromkeys(numbers, "?")


_PATCHES: Final[Mapping[str, Mapping[int, str]]] = {
    "armscii8": _run(0xA1, _ARMENIAN),
    "cp1256": _unknown(0x8A, 0x8F, 0x98, 0x9A, 0x9F, 0xAA, 0xC0, 0xFF),
    "cp866": _run(0xFC, "ⁿ²"),
    "dec8": {
        **_unknown(0xA4, 0xA6, 0xAC, 0xAD, 0xAE, 0xAF, 0xB4, 0xB8, 0xBE, 0xD0, 0xDE, 0xF0, 0xFE, 0xFF),
        **{0xA8: "¤", 0xD7: "Œ", 0xDD: "Ÿ", 0xF7: "œ", 0xFD: "ÿ"},
    },
    "geostd8": {
        **_unknown(0x83, 0x88, 0x8A, 0x8C, 0x8E, 0x98, 0x99, 0x9A, 0x9C, 0x9E, 0x9F),
        **_run(0xC0, _GEORGIAN),
    },
    "greek": {**_run(0xA1, "ʽʼ"), **_unknown(0xA4, 0xA5, 0xAA)},
    "hebrew": {0xAF: "‾"},
    "keybcs2": {
        **{0x80: "Č", 0x83: "ď", 0x8F: "Á", 0x91: "ž", 0x92: "Ž", 0x95: "Ó", 0x96: "ů", 0x97: "Ú", 0x98: "ý"},
        **_run(0x85, "ĎŤčěĚĹÍľĺ"),
        **_run(0x9B, "ŠĽÝŘť"),
        **_run(0xA4, "ňŇŮÔšřŕŔ"),
    },
    "koi8u": {0x95: "•"},
    "latin1": {number: chr(number) for number in (0x81, 0x8D, 0x8F, 0x90, 0x9D)},
    "swe7": {
        **{0x40: "É", 0x60: "é", 0x7F: "?"},
        **_run(0x5B, "ÄÖÅÜ"),
        **_run(0x7B, "äöåü"),
    },
    "tis620": dict.fromkeys((0xA0, 0xDB, 0xDC, 0xDD, 0xDE, 0xFC, 0xFD, 0xFE, 0xFF), "\ufffd"),
}


def charset_of(collation: int) -> str:
    """Return the character set's name; empty for an unknown number."""
    if name := _CHARSETS.get(collation):
        return name
    for start, end, name in _BLOCKS:
        if start <= collation < end:
            return name
    return charset_of(collation - _NOPAD) if _NOPAD < collation < _NOPAD_END else ""


def collation_of(name: str) -> int:
    """Return the number of a collation, by its name or that of its character set; 0 if unknown."""
    words = name.lower().split("_")
    charset = {"utf8": "utf8mb3"}.get(words[0], words[0])
    return _COLLATIONS[charset][0] if charset in _COLLATIONS else 0


def bytes_per_character(charset: str) -> int:
    """Return the bytes of the longest character, by which the server multiplies a column's length in characters."""
    return _WIDTHS.get(charset, 1)


def is_readable(charset: str) -> bool:
    """Return whether ``to_text`` decodes it like the server."""
    return charset in _CODECS or multibyte.is_known(charset)


def is_single_byte(charset: str) -> bool:
    """Return whether every character is one byte, to be looked up in ``table``."""
    return charset in _CODECS and charset not in _WIDTHS


def has_gaps(charset: str) -> bool:
    """Return whether some of its codes may have no character of their own, and be shown as ``?`` or U+FFFD."""
    return is_single_byte(charset) or multibyte.is_known(charset)


@lru_cache(maxsize=64)
def table(charset: str) -> tuple[str, ...]:
    """Return the character of each byte, for single-byte character sets."""
    codec, patches = _CODECS[charset], _PATCHES.get(charset, MappingProxyType({}))
    decoded = (bytes([number]).decode(codec, "replace").replace("\ufffd", "?") for number in range(256))
    return tuple(patches.get(number, character) for number, character in enumerate(decoded))


def to_text(charset: str, data: bytes) -> str:
    """Decode one value. (Columns of single-byte character sets have a kernel.)

    :raises UnicodeDecodeError: the bytes are not valid in the character set.
    """
    if is_single_byte(charset):
        return "".join(table(charset)[number] for number in data)
    if multibyte.is_known(charset):
        return multibyte.to_text(charset, data)
    return data.decode(_CODECS.get(charset, "utf-8"))


def has(charset: str, text: str) -> bool:
    """Return whether the character set certainly has all characters of a text."""
    if text.isascii() and charset != "swe7":
        return True
    if multibyte.is_known(charset):
        return multibyte.characters(charset).issuperset(text)
    if is_single_byte(charset):
        return set(table(charset)).issuperset(text)
    return charset in _UNICODE or (charset in _BASIC and max(text) <= _BASIC_MAX)

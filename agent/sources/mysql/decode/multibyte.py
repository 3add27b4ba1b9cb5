"""Multi-byte character sets of East Asia: decodes their text by the servers' tables, which differ from Python's codecs.

Both servers have the same tables; ``_EXCEPTIONS`` and the ranges of users' own characters were found by asking one for
every code. A code without a character becomes ``?``, as in a SELECT. Bytes that are no code at all are refused: the
server stores none.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, product
from typing import Final

_Range = tuple[int, int]
#: codes of the set by the length of a code: the ranges of each byte
_Form = tuple[tuple[_Range, ...], ...]

_LOST: Final = "\ufffd"
_ASCII: Final = ((0, 0x7F),)
_KANA: Final = ((0xA1, 0xDF),)
_TRAILS: Final = ((0x40, 0x7E), (0x80, 0xFC))
_HIGH: Final = ((0xA1, 0xFE),)
_SHIFTED: Final = (_ASCII,), (_KANA,), (((0x81, 0x9F), (0xE0, 0xFC)), _TRAILS)
_EXTENDED_UNIX: Final = (_ASCII,), (((0x8E, 0x8E),), ((0xA0, 0xDF),)), (((0x8F, 0x8F),), _HIGH, _HIGH), (_HIGH, _HIGH)

#: where eucjpms has the characters that IBM added to cp932
_SELECTED_AT: Final = (0xF3, 0xF3)
_SELECTED_LEADS: Final = (0xFA, 0xFB, 0xFC)
#: of these the ones that have a code elsewhere, although the codec has none for them; and the reverse
_ELSEWHERE, _NOT_ELSEWHERE = "￢￤∵", "№"
_ROW_13: Final = 0xAD
#: codes of EUC from here on are users' own, in the private area of Unicode
_OWN, _OWN_FIRST, _OWN_SECOND = 0xF5, 0xE000, 0xE3AC
_ROW: Final = 94


def _at(text: str) -> Mapping[bytes, str]:
    """Return what ``text`` says: codes in hexadecimal, each followed by its character."""
    words = text.split()
    return {bytes.fromhex(code): character for code, character in zip(words[::2], words[1::2], strict=True)}


def _selected() -> Mapping[bytes, str]:
    """Return IBM's characters that are not in JIS X 0212, by their codes."""
    row, cell = _SELECTED_AT
    begin = row * _ROW + cell - 0xA1
    trails = [trail for first, last in _TRAILS for trail in range(first, last + 1)]
    letters = [bytes(code).decode("cp932", "replace") for code in product(_SELECTED_LEADS, trails)]
    wanted = [letter for letter in letters if letter in _NOT_ELSEWHERE or _is_lacking(letter)]
    return {bytes([0x8F, (begin + i) // _ROW, (begin + i) % _ROW + 0xA1]): letter for i, letter in enumerate(wanted)}


def _is_lacking(letter: str) -> bool:
    return _LOST not in letter and letter not in _ELSEWHERE and letter.encode("euc_jp", "replace") == b"?"


_BIG5: Final = {
    **_at("f9d6 碁 f9d7 銹 f9d8 裏 f9d9 墻 f9da 恒 f9db 粧 f9dc 嫺"),
    **dict.fromkeys(map(bytes.fromhex, ("a15a", "a1c3", "a1c5", "a1fe", "a240", "a2cc", "a2ce")), _LOST),
}
#: MySQL takes it for a code, and shows it as two question marks
_NO_KANA: Final = {b"\x8e\xa0": "??"}
_EUCJPMS: Final = {
    **_NO_KANA,
    **_at("8fa2b7 ～ 8fa2c3 ￤ a1c1 ～ a1c2 ∥ a1dd － a1f1 ￠ a1f2 ￡ a2cc ￢"),
    **_selected(),
}


@dataclass(frozen=True, slots=True)
class _Set:
    """``doubtful``: the characters of the codec for codes that have another one on the server."""

    codec: str
    forms: tuple[_Form, ...]
    exceptions: Mapping[bytes, str]
    doubtful: frozenset[str] = frozenset()
    has_own: bool = False
    has_row_13: bool = False


_SETS: Final[Mapping[str, _Set]] = {
    "big5": _Set(
        "big5", ((_ASCII,), (((0xA1, 0xF9),), ((0x40, 0x7E), (0xA1, 0xFE)))), _BIG5, frozenset("╴￣ˍ／＼十卅")
    ),
    "cp932": _Set("cp932", _SHIFTED, {}),
    "eucjpms": _Set("euc_jp", _EXTENDED_UNIX, _EUCJPMS, frozenset("~¦〜‖−¢£¬"), has_own=True, has_row_13=True),
    "euckr": _Set("cp949", ((_ASCII,), (((0x81, 0xFE),), ((0x41, 0x5A), (0x61, 0x7A), (0x81, 0xFE)))), {}),
    "gb2312": _Set("gb2312", ((_ASCII,), (((0xA1, 0xF7),), _HIGH)), {}),
    "gbk": _Set("gbk", ((_ASCII,), (((0x81, 0xFE),), ((0x40, 0x7E), (0x80, 0xFE)))), {}),
    "sjis": _Set("shift_jis", _SHIFTED, _at("815f \\"), frozenset("＼")),
    "ujis": _Set("euc_jp", _EXTENDED_UNIX, {**_NO_KANA, **_at("a1c0 \\")}, frozenset("＼"), has_own=True),
}


def is_known(charset: str) -> bool:
    return charset in _SETS


def to_text(charset: str, data: bytes) -> str:
    """Decode one value.

    :raises UnicodeDecodeError: the bytes are no codes of the character set.
    """
    known = _SETS[charset]
    try:
        text = data.decode(known.codec)
    except UnicodeDecodeError:
        return _by_code(charset, data)
    return text if known.doubtful.isdisjoint(text) else _by_code(charset, data)


@lru_cache(maxsize=16)
def characters(charset: str) -> frozenset[str]:
    """Return all characters of the set."""
    found = frozenset(_character(charset, code) for form in _SETS[charset].forms for code in _codes(form))
    return found - {_LOST, *_NO_KANA.values()}


def _codes(form: _Form) -> Iterator[bytes]:
    steps = [chain.from_iterable(range(first, last + 1) for first, last in ranges) for ranges in form]
    return map(bytes, product(*steps))


def _by_code(charset: str, data: bytes) -> str:
    found, at = [], 0
    pattern = _pattern(charset)
    while at < len(data):
        code = pattern.match(data, at)
        if code is None:
            raise UnicodeDecodeError(charset, data, at, at + 1, "no code of the character set")
        found.append(_character(charset, code[0]))
        at = code.end()
    return "".join(found)


@lru_cache(maxsize=16)
def _pattern(charset: str) -> re.Pattern[bytes]:
    return re.compile(b"|".join(b"".join(map(_class, form)) for form in _SETS[charset].forms), re.DOTALL)


def _class(ranges: tuple[_Range, ...]) -> bytes:
    return b"[" + b"".join(b"\\x%02x-\\x%02x" % one for one in ranges) + b"]"


@lru_cache(maxsize=1 << 16)
def _character(charset: str, code: bytes) -> str:
    known = _SETS[charset]
    if code in known.exceptions:
        return known.exceptions[code]
    if known.has_own and code[-2:-1] >= bytes([_OWN]):
        first = _OWN_SECOND if len(code) == 3 else _OWN_FIRST
        return chr(first + (code[-2] - _OWN) * _ROW + code[-1] - 0xA1)
    codec = known.codec
    if known.has_row_13 and len(code) == 2 and code[0] == _ROW_13:
        trail = code[1] - 0xA1 + 0x40
        code, codec = bytes([0x87, trail + (trail > 0x7E)]), "cp932"
    try:
        return code.decode(codec)
    except UnicodeDecodeError:
        return "?"

"""SQL tokens: words, names, texts, numbers and symbols of a statement, without comments and white space. Pure.

Both servers have the same syntax, except for two session settings: with ``ANSI_QUOTES``, double quotes enclose names;
with ``NO_BACKSLASH_ESCAPES``, backslashes are ordinary characters. The content of an executable comment
(``/*!50100 … */``, ``/*M! … */``) is part of the statement: a server that skipped it would have logged another comment.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

_SPACE: Final = re.compile(r"\s+|\0+")
_LINE: Final = re.compile(r"(?:--(?=[\s\x00-\x1f]|$)|\#)[^\n]*")
_COMMENT: Final = re.compile(r"/\*(?:(M?)!(\d{5,6})?)?")
_WORD: Final = re.compile(r"[0-9A-Za-z_$\u0080-\U0010ffff]+")
_NUMBER: Final = re.compile(r"(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?(?![0-9A-Za-z_$\u0080-\U0010ffff])")
_BYTES: Final = re.compile(r"[xXbB]'[0-9A-Fa-f]*'")
_ESCAPED: Final = {
    quote: re.compile(rf"{quote}(?:[^{quote}\\]|\\.|{quote}{quote})*{quote}", re.DOTALL) for quote in "'\""
}
_DOUBLED: Final = {quote: re.compile(rf"{quote}(?:[^{quote}]|{quote}{quote})*{quote}", re.DOTALL) for quote in "'\"`"}
_SYMBOL: Final = re.compile(r"<=>|->>|->|:=|<=|>=|<>|!=|\|\||&&|<<|>>|.", re.DOTALL)
_ESCAPE: Final = re.compile(r"\\(.)", re.DOTALL)
_LETTERS: Final = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a", "%": "\\%", "_": "\\_"}
#: version numbers of MySQL for which MariaDB ignores an executable comment
_NOT_MARIADB: Final = range(50_700, 100_000)


class TokenKind(Enum):
    WORD = auto()
    #: quoted
    NAME = auto()
    TEXT = auto()
    NUMBER = auto()
    SYMBOL = auto()


@dataclass(frozen=True, slots=True)
class Token:
    """``text``: in the notation of a session with default settings. ``begin``, ``end``: its place in the statement."""

    kind: TokenKind
    text: str
    begin: int
    end: int

    @property
    def word(self) -> str:
        """The word in upper case; empty if it is not a bare word."""
        return self.text.upper() if self.kind is TokenKind.WORD else ""

    @property
    def name(self) -> str:
        """The name; empty if it is not one."""
        if self.kind is TokenKind.NAME:
            return self.text[1:-1].replace("``", "`")
        return self.text if self.kind is TokenKind.WORD else ""

    @property
    def value(self) -> str:
        """The text or name without quotes and escapes; other tokens unchanged."""
        if self.kind is TokenKind.NAME:
            return self.name
        if self.kind is not TokenKind.TEXT or self.text[0] not in "'\"":
            return self.text
        inside = self.text[1:-1].replace(self.text[0] * 2, self.text[0])
        return _ESCAPE.sub(lambda found: _LETTERS.get(found[1], found[1]), inside)


def tokens(
    statement: str,
    *,
    is_mariadb: bool | None = None,
    has_quoted_names: bool = False,
    has_plain_backslashes: bool = False,
) -> Iterator[Token]:
    """Return the tokens in order. ``is_mariadb``: the server that logged the statement; None if unknown, which includes
    all executable comments."""
    at, behind_dot = 0, False
    while at < len(statement):
        if found := _SPACE.match(statement, at) or _LINE.match(statement, at):
            at = found.end()
        elif found := _COMMENT.match(statement, at):
            at = found.end() if _is_executed(found, is_mariadb) else _behind_comment(statement, found.end())
        elif statement.startswith("*/", at):  # an executable comment ends
            at += 2
        else:
            token = _token(statement, at, behind_dot, has_quoted_names, has_plain_backslashes)
            behind_dot = token.text == "."
            at = token.end
            yield token


def spelt(tokens_: Sequence[Token]) -> str:
    """Join tokens to a text, with a space wherever they were separated."""
    pieces: list[str] = []
    end = tokens_[0].begin if tokens_ else 0
    for token in tokens_:
        pieces += [" " if end < token.begin else "", token.text]
        end = token.end
    return "".join(pieces)


def _is_executed(comment: re.Match[str], is_mariadb: bool | None) -> bool:
    letter, version = comment.groups()
    if letter is None:
        return False
    if is_mariadb is None:
        return True
    return not (is_mariadb and not letter and int(version or 0) in _NOT_MARIADB) and (is_mariadb or not letter)


def _behind_comment(statement: str, at: int) -> int:
    end = statement.find("*/", at)
    return len(statement) if end < 0 else end + 2


def _token(statement: str, at: int, behind_dot: bool, has_quoted_names: bool, has_plain_backslashes: bool) -> Token:
    letter = statement[at]
    if letter in "'\"`":
        return _quoted(statement, at, has_quoted_names, has_plain_backslashes)
    if found := _BYTES.match(statement, at):
        return Token(TokenKind.TEXT, found[0], at, found.end())
    if letter in "nN" and statement[at + 1 : at + 2] == "'":  # a text in the national character set
        text = _quoted(statement, at + 1, has_quoted_names, has_plain_backslashes)
        return Token(TokenKind.TEXT, text.text, at, text.end)
    is_number_next = letter.isdigit() or (letter == "." and not _is_in_name(statement, at))
    if not behind_dot and is_number_next and (found := _NUMBER.match(statement, at)):
        return Token(TokenKind.NUMBER, found[0], at, found.end())
    if found := _WORD.match(statement, at):
        return Token(TokenKind.WORD, found[0], at, found.end())
    found = _SYMBOL.match(statement, at)
    assert found is not None, "any character is a symbol"
    return Token(TokenKind.SYMBOL, found[0], at, found.end())


def _is_in_name(statement: str, at: int) -> bool:
    """Return whether the dot at this place directly follows a name."""
    return at > 0 and (statement[at - 1] == "`" or _WORD.match(statement, at - 1) is not None)


def _quoted(statement: str, at: int, has_quoted_names: bool, has_plain_backslashes: bool) -> Token:
    quote = statement[at]
    is_name = quote == "`" or (quote == '"' and has_quoted_names)
    pattern = _DOUBLED if is_name or has_plain_backslashes else _ESCAPED
    found = pattern[quote].match(statement, at)
    if found is None:  # it is not closed
        return Token(TokenKind.SYMBOL, quote, at, at + 1)
    text = found[0]
    if is_name and quote == '"':
        text = "`" + text[1:-1].replace('""', '"').replace("`", "``") + "`"
    elif has_plain_backslashes and not is_name:
        text = text.replace("\\", "\\\\")
    return Token(TokenKind.NAME if is_name else TokenKind.TEXT, text, at, found.end())

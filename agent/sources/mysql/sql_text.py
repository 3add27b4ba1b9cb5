"""SQL text taken apart without being understood: comments, quotes, parentheses, commas. Pure.

Comments may stand between any two words of a statement in the binlog, as tools and people put them there. What stands
in a comment for some versions only (``/*!50100 … */``) is part of the statement: a server that did not run it would not
have written what it ran.
"""

import re
from typing import Final

_QUOTES: Final = r"""'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*"|`(?:[^`]|``)*`"""
_SKIPPED: Final = re.compile(rf"({_QUOTES})|/\*(?:(M?)!(\d*))?(.*?)\*/|(?:--(?=\s|$)|\#)[^\n]*", re.DOTALL)
_PIECE: Final = re.compile(rf"({_QUOTES})|[(),]|[^'\"`(),]+|.", re.DOTALL)
#: versions of MySQL by which MariaDB does not take itself to be meant
_NOT_MARIADB: Final = range(50_700, 100_000)


def plain(statement: str, *, is_mariadb: bool | None = None) -> str:
    """Without comments, and with what stands in those for some versions only; all of these where it is not known
    whose statement it is."""

    def kept(found: re.Match[str]) -> str:
        quoted, letter, version, inside = found.groups()
        if quoted is not None:
            return str(quoted)
        if version is None:
            return " "
        is_others = is_mariadb is not None and (
            (letter == "M" and not is_mariadb) or (is_mariadb and not letter and int(version or 0) in _NOT_MARIADB)
        )
        return " " if is_others else f" {plain(inside, is_mariadb=is_mariadb)} "

    return _SKIPPED.sub(kept, statement).strip()


def masked(text: str) -> str:
    """As long as ``text``, with nothing to be read in what is quoted or in parentheses."""
    depth, pieces = 0, []
    for found in _PIECE.finditer(text):
        depth += (found[0] == "(") - (found[0] == ")")
        is_open = depth == 0 and not found[1]
        pieces.append(found[0] if is_open else "\0" * len(found[0]))
    return "".join(pieces)


def parts(text: str) -> list[str]:
    """Split at commas, except in quotes and parentheses."""
    cuts = [at for at, letter in enumerate(masked(text)) if letter == ","]
    return [text[begin + 1 : end].strip() for begin, end in zip([-1, *cuts], [*cuts, len(text)], strict=True)]

"""SQL text: removes what does not belong to the statement (comments, prefixes, notations of one session). Pure.

MariaDB logs ``SET STATEMENT name = value, … FOR <statement>`` together with the statement. Only the statement is used;
relevant settings are in the event's session. One is not: the server has read the statement in its session's SQL mode,
and logs the one that the prefix sets. So it is with a statement that was prepared in another SQL mode than it is
executed in.
"""

import itertools
from collections.abc import Sequence
from typing import Final

from agent.sources.mysql.ddl.parser.cursor import LOST
from agent.sources.mysql.ddl.parser.tokens import Token, TokenKind, spelt, tokens

_PREFIX: Final = ("SET", "STATEMENT")
_DEFINING: Final = ("CREATE", "ALTER", "DROP", "RENAME", "TRUNCATE")
#: what comes before names, and before no text
_BEFORE_NAMES: Final = frozenset(
    {
        *("TABLE", "TABLES", "DATABASE", "SCHEMA", "EXISTS", "INDEX", "KEY", "COLUMN", "CONSTRAINT", "TO", "ON", "ADD"),
        *("DROP", "MODIFY", "CHANGE", "ALTER", "RENAME", "AFTER", "REFERENCES", "TRUNCATE", "."),
    }
)


def plain(statement: str, *, is_mariadb: bool | None = None) -> str:
    """Return the statement without comments and ``SET STATEMENT … FOR``, but with executable comments (all of them if
    the server is unknown)."""
    return spelt(meant(statement, is_mariadb=is_mariadb))


def meant(statement: str, *, is_mariadb: bool | None = None) -> list[Token]:
    """Return the tokens of ``plain``, without trailing semicolons."""
    found = list(tokens(statement, is_mariadb=is_mariadb))
    while found and found[-1].text == ";":
        found.pop()
    while tuple(token.word for token in found[:2]) == _PREFIX:
        begin = _behind_prefix(found)
        if begin is None:
            return found
        found = found[begin:]
    return found


def respelt(statement: str, *, has_quoted_names: bool, has_plain_backslashes: bool) -> str:
    """Return the statement in the notation of a session without these settings; comments are kept."""
    pieces, at = [], 0
    for token in tokens(statement, has_quoted_names=has_quoted_names, has_plain_backslashes=has_plain_backslashes):
        pieces += [statement[at : token.begin], token.text]
        at = token.end
    return "".join([*pieces, statement[at:]])


def unquoted(statement: str, *, has_quoted_names: bool, has_plain_backslashes: bool) -> str:
    """Return the statement of a session with these settings in the notation of one without them.

    The server has read it in another SQL mode than the log has if something in double quotes is at the place of a name,
    and may have behind ``SET STATEMENT sql_mode = …``, where a text with a backslash is lost.
    """
    if _sets_mode(statement):
        statement = statement.replace("\\", LOST)
        has_quoted_names, has_plain_backslashes = False, True
    has_quoted_names = has_quoted_names or ('"' in statement and _quotes_names(meant(statement)))
    if not (has_quoted_names or has_plain_backslashes):
        return statement
    return respelt(statement, has_quoted_names=has_quoted_names, has_plain_backslashes=has_plain_backslashes)


def _sets_mode(statement: str) -> bool:
    text = statement.lower()
    if "sql_mode" not in text or "statement" not in text:
        return False
    found = list(tokens(statement))
    if tuple(token.word for token in found[:2]) != _PREFIX:
        return False
    return any(token.name.lower() == "sql_mode" for token in found[: _behind_prefix(found)])


def _quotes_names(found: Sequence[Token]) -> bool:
    """Return whether something in double quotes is at the place of a name in a definition."""
    return (
        bool(found)
        and found[0].word in _DEFINING
        and any(
            token.kind is TokenKind.TEXT and token.text[0] == '"' and (before.word or before.text) in _BEFORE_NAMES
            for before, token in itertools.pairwise(found)
        )
    )


def _behind_prefix(found: Sequence[Token]) -> int | None:
    """Return the index after the FOR that ends the values; one in parentheses belongs to a value."""
    depth = 0
    for at, token in enumerate(found):
        depth += (token.text == "(") - (token.text == ")")
        is_bare = token.word == "FOR" and found[at - 1].text not in (".", "@")
        if depth == 0 and is_bare:
            return at + 1
    return None

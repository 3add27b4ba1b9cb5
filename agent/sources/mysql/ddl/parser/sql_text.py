"""SQL text: removes what does not belong to the statement (comments, prefixes, notations of one session). Pure.

MariaDB logs ``SET STATEMENT name = value, … FOR <statement>`` together with the statement. Only the statement is used;
relevant settings are in the event's session.
"""

from typing import Final

from agent.sources.mysql.ddl.parser.tokens import Token, spelt, tokens

_PREFIX: Final = ("SET", "STATEMENT")


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


def _behind_prefix(found: list[Token]) -> int | None:
    """Return the index after the FOR that ends the values; one in parentheses belongs to a value."""
    depth = 0
    for at, token in enumerate(found):
        depth += (token.text == "(") - (token.text == ")")
        is_bare = token.word == "FOR" and found[at - 1].text not in (".", "@")
        if depth == 0 and is_bare:
            return at + 1
    return None

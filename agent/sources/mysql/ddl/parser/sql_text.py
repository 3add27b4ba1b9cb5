"""SQL text: strips what is not part of the statement (comments, prefixes, spellings of one session). Pure.

MariaDB logs ``SET STATEMENT name = value, … FOR <statement>`` with the statement. To us it is the statement alone; what
it sets is in the event's session where it matters.
"""

from typing import Final

from agent.sources.mysql.ddl.parser.tokens import Token, spelt, tokens

_PREFIX: Final = ("SET", "STATEMENT")


def plain(statement: str, *, is_mariadb: bool | None = None) -> str:
    """Without comments, without ``SET STATEMENT … FOR``, and with what is in executable comments; all of these
    where it is not known whose statement it is."""
    return spelt(meant(statement, is_mariadb=is_mariadb))


def meant(statement: str, *, is_mariadb: bool | None = None) -> list[Token]:
    """The tokens of ``plain``, without semicolons at the end."""
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
    """As a session without these settings spells it; comments stay."""
    pieces, at = [], 0
    for token in tokens(statement, has_quoted_names=has_quoted_names, has_plain_backslashes=has_plain_backslashes):
        pieces += [statement[at : token.begin], token.text]
        at = token.end
    return "".join([*pieces, statement[at:]])


def _behind_prefix(found: list[Token]) -> int | None:
    """Behind the FOR that ends the values: one in parentheses belongs to a value."""
    depth = 0
    for at, token in enumerate(found):
        depth += (token.text == "(") - (token.text == ")")
        is_bare = token.word == "FOR" and found[at - 1].text not in (".", "@")
        if depth == 0 and is_bare:
            return at + 1
    return None

"""Written tables: finds the tables whose rows a change that was logged as a statement may have changed.

Such a change reaches more tables than it names: by a view, by triggers, by a stored function. The server tells which of
the names are views or have triggers; any function that no server has by itself may be a stored one.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final

import structlog

from agent.errors import cause_of, is_of_table
from agent.sources.mysql.ddl.parser import sql_text
from agent.sources.mysql.ddl.parser.cursor import Name
from agent.sources.mysql.ddl.parser.tokens import Token, TokenKind

#: verbs of statements that are logged because they call a function that changes rows
_CALLING: Final = frozenset({"SELECT", "DO", "CALL"})
#: words that may stand before a parenthesis, besides functions of the server
_WORDS: Final = frozenset(
    {
        *("ALL", "AND", "ANY", "AS", "BETWEEN", "BY", "CASE", "DISTINCT", "ELSE", "EXCEPT", "EXISTS", "FIELDS", "FROM"),
        *("HAVING", "IN", "INDEX", "INTERSECT", "INTERVAL", "INTO", "IS", "JOIN", "KEY", "LIKE", "LIMIT", "NOT", "ON"),
        *("OR", "OVER", "PARTITION", "RETURNING", "SELECT", "SET", "SOME", "THEN", "UNION", "USING", "VALUE", "VALUES"),
        *("WHEN", "WHERE", "WITH", "XOR"),
    }
)
#: functions of both servers that such statements often have; any other may be a stored one
_FUNCTIONS: Final = frozenset(
    {
        *("ABS", "ADDDATE", "ADDTIME", "AES_DECRYPT", "AES_ENCRYPT", "AVG", "BIN", "BIT_AND", "BIT_COUNT", "BIT_OR"),
        *("BIT_XOR", "CAST", "CEIL", "CEILING", "CHAR", "CHAR_LENGTH", "COALESCE", "CONCAT", "CONCAT_WS"),
        *("CONNECTION_ID", "CONV", "CONVERT", "COUNT", "CRC32", "CURDATE", "CURRENT_DATE", "CURRENT_TIME"),
        *("CURRENT_TIMESTAMP", "CURRENT_USER", "CURTIME", "DATABASE", "DATE", "DATE_ADD", "DATE_FORMAT", "DATE_SUB"),
        *("DATEDIFF", "DAY", "DECIMAL", "DEFAULT", "ELT", "FIELD", "FIND_IN_SET", "FLOOR", "FORMAT", "FROM_UNIXTIME"),
        *("GREATEST", "GROUP_CONCAT", "HEX", "HOUR", "IF", "IFNULL", "INET6_ATON", "INET_ATON", "INSERT", "INSTR"),
        *(
            "ISNULL",
            "JSON_ARRAY",
            "JSON_EXTRACT",
            "JSON_OBJECT",
            "JSON_SET",
            "LAST_INSERT_ID",
            "LCASE",
            "LEAST",
            "LEFT",
        ),
        *("LENGTH", "LOCALTIME", "LOCATE", "LOWER", "LPAD", "LTRIM", "MAKEDATE", "MAX", "MD5", "MIN", "MINUTE", "MOD"),
        *("MONTH", "NAME_CONST", "NOW", "NULLIF", "POW", "POWER", "QUOTE", "RAND", "REGEXP_REPLACE", "REPEAT"),
        *("REPLACE", "REVERSE", "RIGHT", "ROUND", "RPAD", "RTRIM", "SEC_TO_TIME", "SECOND", "SHA1", "SHA2", "SIGN"),
        *("SLEEP", "STR_TO_DATE", "SUBDATE", "SUBSTR", "SUBSTRING", "SUBSTRING_INDEX", "SUM", "SYSDATE", "TIME"),
        *("TIMEDIFF", "TIMESTAMP", "TIMESTAMPADD", "TIMESTAMPDIFF", "TO_DAYS", "TRIM", "TRUNCATE", "UCASE", "UNHEX"),
        *("UNIX_TIMESTAMP", "UPPER", "USER", "UTC_DATE", "UTC_TIME", "UTC_TIMESTAMP", "UUID", "VARCHAR", "VERSION"),
        *("WEEK", "YEAR"),
    }
)

_log = structlog.get_logger()

#: returns whether a change of one of these names may change other tables
Reaches = Callable[[Sequence[Name]], bool]


def written(
    statement: str, database: str, known: Collection[Name], *, reaches: Reaches, fold: Callable[[Name], Name]
) -> list[Name]:
    """Return those of ``known`` whose rows ``statement`` may have changed: all, if it cannot be interpreted. ``fold``:
    converts names to the server's case."""
    try:
        return _written(sql_text.meant(statement), database, known, reaches, fold)
    except Exception as error:
        if not is_of_table(error):
            raise
        _log.error("a statement cannot be interpreted, and may have changed any table", cause=cause_of(error))
        return sorted(known)


def _written(
    tokens: Sequence[Token],
    database: str,
    known: Collection[Name],
    reaches: Reaches,
    fold: Callable[[Name], Name],
) -> list[Name]:
    if tokens and tokens[0].word in _CALLING:
        return sorted(known)
    named = {fold(name) for name in _names(tokens, database)}
    schemas = {schema for schema, _ in known}
    concerned = sorted(name for name in named if name[0] in schemas)
    if not concerned:
        return []
    if reaches(concerned) or _has_unknown_call(tokens, {name for _, name in named & {*known}}):
        return sorted(known)
    return sorted(named & {*known})


def _names(tokens: Sequence[Token], database: str) -> Iterable[Name]:
    for before, token in zip([None, *tokens], tokens, strict=False):
        if token.name and (before is None or before.text != "."):
            yield database, token.name
    for first, dot, second in zip(tokens, tokens[1:], tokens[2:], strict=False):
        if dot.text == ".":
            yield first.name, second.name


def _has_unknown_call(tokens: Sequence[Token], tables: Collection[str]) -> bool:
    """Return whether a function is called that may be a stored one."""
    for before, token, behind in zip([None, *tokens], tokens, tokens[1:], strict=False):
        is_list = before is not None and (before.word in ("INTO", "AS") or token.name in tables)
        is_known = token.kind is TokenKind.WORD and token.word in _FUNCTIONS | _WORDS
        if behind.text == "(" and token.name and not is_list and not is_known:
            return True
    return False

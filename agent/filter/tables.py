"""Table rules: select the tables to replicate. Pure.

A rule is ``schema.table``; each part is a wildcard pattern (``*``, ``?``, ``[a-z]``, ``[!a-z]``), a ``/regular
expression/`` over the whole part, or a literal name in double quotes. ``/.../`` alone is matched against
``schema.table``. A leading ``!`` excludes. The last matching rule decides; a table without a matching rule is not
replicated. Names are case-sensitive, as in PostgreSQL. Each source excludes its system schemas.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fnmatch import translate

from agent.errors import SourceConfigError
from agent.filter import patterns

_PART = r"""/(?:[^/\\]|\\.)*/|"(?:[^"]|"")*"|[^."/]+"""
#: of a part with wildcards; translating it takes time in proportion to the square
_WILDCARDS_LENGTH_MAX = 256
_RULE = re.compile(rf"^(!?)\s*(?:(?P<schema>{_PART})\.(?P<table>{_PART})|(?P<whole>/(?:[^/\\]|\\.)*/))$")


#: whether a part of a rule matches a whole name
Matches = Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class TableRule:
    """One compiled rule. ``whole``, if set, is matched against ``schema.table``."""

    excludes: bool
    schema: Matches | None
    table: Matches | None
    whole: Matches | None = None

    def matches(self, schema: str, table: str) -> bool:
        if self.whole is not None:
            return self.whole(f"{schema}.{table}")
        assert self.schema is not None
        assert self.table is not None
        return self.schema(schema) and self.table(table)


class TableFilter:
    """The rules of one changefeed."""

    def __init__(self, rules: Iterable[str]) -> None:
        """:raises SourceConfigError: a rule cannot be parsed."""
        self.rules = tuple(parse_rule(rule) for rule in rules)

    def wants(self, schema: str, table: str) -> bool:
        decisive = next((rule for rule in reversed(self.rules) if rule.matches(schema, table)), None)
        return decisive is not None and not decisive.excludes


def parse_rule(text: str) -> TableRule:
    """:raises SourceConfigError: the text is not a rule; the error explains the syntax."""
    match = _RULE.match(text.strip())
    if match is None:
        raise SourceConfigError(
            f'filter rule {text!r} cannot be read; write schema.table with *, ?, [a-z], /regex/ or "name", ! to exclude'
        )
    excludes = match.group(1) == "!"
    if whole := match.group("whole"):
        return TableRule(excludes, None, None, _compile(whole, rule=text))
    return TableRule(excludes, _compile(match.group("schema"), rule=text), _compile(match.group("table"), rule=text))


def _compile(part: str, *, rule: str) -> Matches:
    if part.startswith("/"):
        return patterns.for_tables(part[1:-1].replace(r"\/", "/")).matches
    if part.startswith('"'):
        return part[1:-1].replace('""', '"').__eq__
    if len(part) > _WILDCARDS_LENGTH_MAX:
        raise SourceConfigError(
            f"filter rule {rule[:64]!r}… has a part of {len(part)} characters; at most {_WILDCARDS_LENGTH_MAX} are "
            "read, or any number in double quotes"
        )
    try:
        wildcards = re.compile(translate(part.strip()))  # which takes linear time
    except re.error as error:
        raise SourceConfigError(f"filter rule {rule[:200]!r} has a broken range of characters ({error})") from error
    return lambda name: wildcards.fullmatch(name) is not None

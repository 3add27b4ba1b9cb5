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
_WILDCARDS = frozenset("*?[")
_RULE = re.compile(rf"^(!?)\s*(?:(?P<schema>{_PART})\.(?P<table>{_PART})|(?P<whole>/(?:[^/\\]|\\.)*/))$")


#: whether a part of a rule matches a whole name
Matches = Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class TableRule:
    """One compiled rule. ``whole``, if set, is matched against ``schema.table``. ``name``: schema and table of a rule
    that names one table."""

    excludes: bool
    schema: Matches | None
    table: Matches | None
    whole: Matches | None = None
    name: tuple[str, str] | None = None

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
        numbered = list(enumerate(self.rules))
        # there may be as many names as tables: each table is looked up among them, and matched against the others
        self._named = {rule.name: (number, rule) for number, rule in numbered if rule.name is not None}
        self._patterns = [(number, rule) for number, rule in reversed(numbered) if rule.name is None]

    def wants(self, schema: str, table: str) -> bool:
        last, decisive = self._named.get((schema, table), (-1, None))
        later = (rule for number, rule in self._patterns if number > last and rule.matches(schema, table))
        decisive = next(later, decisive)
        return decisive is not None and not decisive.excludes


def rule_of(schema: str, table: str) -> str:
    """Return the rule that names this one table."""
    return ".".join('"' + part.replace('"', '""') + '"' for part in (schema, table))


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
    schema, table = match.group("schema"), match.group("table")
    name = _literal(schema), _literal(table)
    return TableRule(
        excludes,
        _compile(schema, rule=text),
        _compile(table, rule=text),
        name=None if name[0] is None or name[1] is None else (name[0], name[1]),
    )


def _literal(part: str) -> str | None:
    """Return the one name that a part matches; None if it may match several."""
    if part.startswith('"'):
        return part[1:-1].replace('""', '"')
    is_pattern = part.startswith("/") or not _WILDCARDS.isdisjoint(part)
    return None if is_pattern else part.strip()


def _compile(part: str, *, rule: str) -> Matches:
    if part.startswith("/"):
        return patterns.for_tables(part[1:-1].replace(r"\/", "/")).matches
    if part.startswith('"'):
        return str(_literal(part)).__eq__
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

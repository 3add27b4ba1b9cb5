"""Computed columns: finds the generated columns whose values in existing rows a statement may have changed. Pure.

The server recomputes a generated column when its expression or the definition of a column in the expression changes;
the log has no row events for this.
"""

from collections.abc import Callable, Mapping

from agent.rows.schema import Column, TableSchema
from agent.sources.mysql.ddl.parser.edits import Altered
from agent.sources.mysql.ddl.parser.tokens import tokens
from agent.sources.mysql.decode.charsets import UTF8, charset_of
from agent.sources.mysql.names import lowered
from agent.sources.mysql.retyping.families import Family, family_of
from agent.sources.mysql.retyping.numbers import bounds
from agent.sources.mysql.retyping.retyping import conversion
from agent.sources.mysql.retyping.terms import RetypeTerms

#: families in which a value stays the same in every expression when its type becomes larger
_PLAIN = frozenset({Family.WHOLE, Family.TEXT, Family.BYTES, Family.MEMBERS})
_ZEROFILL = "zerofill"
_REASON = "the server has computed the generated column {} again, in rows that no event names"


def recomputed(
    before: TableSchema, edit: Altered, terms: RetypeTerms, computed: Callable[[], Mapping[str, str]]
) -> str:
    """Return why values of generated columns in existing rows are not known; empty if they are. ``computed``: the
    expressions of generated columns, by name in lower case; only asked for if it matters."""
    found = edit.recomputed
    if not found and (changed := _changed(before, edit, terms)):
        expressions = computed()
        there = [column.name for column in edit.schema.columns if column.name not in edit.added]
        found = tuple(name for name in there if _names(expressions.get(lowered(name), "")) & changed)
    return _REASON.format(", ".join(found)) if found else ""


def _names(expression: str) -> frozenset[str]:
    return frozenset(lowered(token.name) for token in tokens(expression) if token.name)


def _changed(before: TableSchema, edit: Altered, terms: RetypeTerms) -> frozenset[str]:
    """Return the columns whose new definition may give an expression another value, in lower case."""
    old = {column.name: column for column in before.columns}
    found = set()
    for column in edit.schema.columns:
        origin = edit.renames.get(column.name, column.name)
        is_filled = column.name in edit.required and not terms.is_strict
        if (
            column.name not in edit.added
            and origin in old
            and (is_filled or not _is_neutral(old[origin], column, terms))
        ):
            found |= {lowered(column.name), lowered(origin)}
    return frozenset(found)


def _is_neutral(before: Column, after: Column, terms: RetypeTerms) -> bool:
    one, other = (column.type_name.split() for column in (before, after))
    if (_ZEROFILL in one) != (_ZEROFILL in other):
        return False
    if (before.type_id, before.modifier, before.members) == (after.type_id, after.modifier, after.members):
        return before.is_unsigned == after.is_unsigned and _is_alike(before, after)
    family = family_of(after)
    if family is not family_of(before) or family not in _PLAIN or _ZEROFILL in other or not _is_alike(before, after):
        return False
    if family is Family.WHOLE:
        (low, high), (new_low, new_high) = bounds(before), bounds(after)
        return new_low <= low and high <= new_high
    return conversion(before, after, terms) is None


def _is_alike(before: Column, after: Column) -> bool:
    """Return whether texts have the same bytes."""
    charsets = {charset_of(column.collation) for column in (before, after)}
    return len(charsets) == 1 or charsets <= UTF8

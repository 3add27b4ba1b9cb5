"""Event filters and column selectors: decide which changes of a wanted table pass, and with which columns.

Rules come from the changefeed's config (``FilterConfig``). All event filters whose matcher names a table apply to it;
of the column selectors the first one that does. The names of events are those of TiCDC's event filters.

What an event filter leaves out is as if it had never happened: a row whose delete is ignored stays in the sink. An
update is ignored if its old or its new row matches. Where the log does not say what a column held (a value that an
update left out, a before image that has the key only) the expression sees NULL. Rows of the first snapshot count as
inserts for value expressions; the names of events are about the stream only.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import lru_cache

import numpy as np
import pyarrow as pa

from agent.errors import FilterError
from agent.filter import expressions
from agent.filter.expressions import Expression, Mask
from agent.filter.tables import TableFilter
from agent.rows.changes import DELETE, INSERT, TRUNCATE, UPDATE, Changes
from agent.rows.schema import TableSchema
from reactor.records.changefeed import ColumnSelector, EventFilter, FilterConfig

_ROW_EVENTS = {"insert": INSERT, "update": UPDATE, "delete": DELETE}
_TRUNCATE = "truncate table"
_DDL_EVENTS = frozenset(
    {
        *("create database", "drop database", "create table", "drop table", "rename table", "alter table"),
        *("add column", "drop column", "modify column", "rename column", "add index", "drop index", _TRUNCATE),
    }
)
_GROUPS = {"all dml": frozenset(_ROW_EVENTS), "all ddl": _DDL_EVENTS}


@dataclass(frozen=True, slots=True)
class TableRules:
    """What applies to one table. ``statements``: patterns of statements that are ignored."""

    events: frozenset[str] = frozenset()
    statements: tuple["re.Pattern[str]", ...] = ()
    inserts: tuple[Expression, ...] = ()
    updates_new: tuple[Expression, ...] = ()
    updates_old: tuple[Expression, ...] = ()
    deletes: tuple[Expression, ...] = ()
    columns: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self != TableRules()

    def apply(self, changes: Changes) -> Changes:
        """Without what is ignored, and without the columns that are not selected."""
        ignored = self._ignored(changes)
        kept = changes if not ignored.any() else changes.where(~ignored)
        return self._select(kept)

    def snapshot(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The same for rows as they were."""
        ignored = _any(self.inserts, rows)
        kept = rows if not ignored.any() else rows.filter(pa.array(~ignored))
        return kept.select([name for name in kept.schema.names if self._wants(name)]) if self.columns else kept

    def ignores_ddl(self, events: Iterable[str], statement: str) -> bool:
        """``events``: what the statement does, in the words of ``ignore_event``."""
        return bool(self.events & set(events)) or any(pattern.search(statement) for pattern in self.statements)

    def select(self, schema: TableSchema) -> TableSchema:
        """The table with the selected columns only."""
        if not self.columns:
            return schema
        return replace(schema, columns=tuple(item for item in schema.columns if self._wants(item.name)))

    @property
    def leaves_rows(self) -> bool:
        """Whether a row may stay that the source has no longer: its key may be inserted again."""
        return bool(
            self.events & {"update", "delete", _TRUNCATE} or self.updates_new or self.updates_old or self.deletes
        )

    def expressions(self) -> tuple[Expression, ...]:
        return (*self.inserts, *self.updates_new, *self.updates_old, *self.deletes)

    def _ignored(self, changes: Changes) -> Mask:
        by_name = [operation for name, operation in _ROW_EVENTS.items() if name in self.events]
        by_name += [TRUNCATE] if _TRUNCATE in self.events else []
        ignored: Mask = np.isin(changes.op, by_name)
        after, before = changes.after, changes.before
        ignored |= (changes.op == INSERT) & _any(self.inserts, after)
        ignored |= (changes.op == UPDATE) & _any(self.updates_new, after)
        if before is not None:
            ignored |= (changes.op == UPDATE) & _any(self.updates_old, before)
            ignored |= (changes.op == DELETE) & _any(self.deletes, before)
        return ignored

    def _select(self, changes: Changes) -> Changes:
        names = [name for name in changes.after.schema.names if self._wants(name)]
        if not self.columns or len(names) == changes.after.num_columns:
            return changes
        return replace(
            changes,
            schema=self.select(changes.schema),
            after=changes.after.select(names),
            before=None if changes.before is None else changes.before.select(names),
            unchanged={name: mask for name, mask in changes.unchanged.items() if name in names},
        )

    def _wants(self, column: str) -> bool:
        """The last pattern that matches decides; before the first, nothing is wanted."""
        decisive = next((p for p in reversed(self.columns) if fnmatchcase(column, p.removeprefix("!"))), "!")
        return not decisive.startswith("!")


@lru_cache(maxsize=4096)  # conditions take half a millisecond to read, and every flush of every table asks
def rules_for(config: FilterConfig, schema_name: str, table: str) -> TableRules:
    """:raises FilterError: a rule that cannot be read."""
    rules = TableRules()
    for item in config.event_filters:
        if TableFilter(item.matcher).wants(schema_name, table):
            rules = _with_filter(rules, item)
    return replace(rules, columns=_selected(config.column_selectors, schema_name, table))


def filter_snapshot(
    config: FilterConfig, schema: TableSchema, batches: Iterable[pa.RecordBatch]
) -> tuple[TableSchema, Iterator[pa.RecordBatch]]:
    """A table as it was: what of its columns and rows is passed on.

    :raises FilterError: a rule cannot be read, or (while the batches are taken) does not fit the table.
    """
    rules = rules_for(config, schema.schema_name, schema.name)
    return rules.select(schema), map(rules.snapshot, batches) if rules else iter(batches)


def check_words(config: FilterConfig) -> None:
    """Before anybody is asked for tables: every rule can be read, whatever table it is for.

    :raises FilterError: a condition or the name of an event cannot.
    :raises SourceConfigError: a matcher cannot.
    """
    for item in config.event_filters:
        TableFilter(item.matcher)
        _with_filter(TableRules(), item)
    for selector in config.column_selectors:
        TableFilter(selector.matcher)


def check(config: FilterConfig, schema: TableSchema, *, key: Sequence[str]) -> None:
    """Before a changefeed is created: every expression reads columns that are there, every selector keeps the key.

    :raises FilterError: it does not.
    """
    rules = rules_for(config, schema.schema_name, schema.name)
    known = {column.name.casefold() for column in schema.columns}
    for expression in rules.expressions():
        if missing := [name for name in expression.columns if name.casefold() not in known]:
            raise FilterError(f"the expression {expression.text!r} reads {missing[0]}, which {_name(schema)} lacks")
    selected = {column.name for column in rules.select(schema).columns}
    if lost := [name for name in key if name not in selected]:
        raise FilterError(f"the column selector of {_name(schema)} leaves out {lost[0]}, a column of its key; add it")
    if not selected:
        raise FilterError(f'the column selector of {_name(schema)} leaves no column; begin it with "*"')


def _name(schema: TableSchema) -> str:
    return schema.qualified_name


def _any(wanted: Sequence[Expression], rows: pa.RecordBatch) -> Mask:
    found: Mask = np.zeros(rows.num_rows, np.bool_)
    for expression in wanted:
        found |= expression.matches(rows)
    return found


def _with_filter(rules: TableRules, item: EventFilter) -> TableRules:
    return replace(
        rules,
        events=rules.events | _events(item),
        statements=(*rules.statements, *map(_compiled, item.ignore_sql)),
        inserts=_with(rules.inserts, item.ignore_insert_value_expr),
        updates_new=_with(rules.updates_new, item.ignore_update_new_value_expr),
        updates_old=_with(rules.updates_old, item.ignore_update_old_value_expr),
        deletes=_with(rules.deletes, item.ignore_delete_value_expr),
    )


def _with(known: tuple[Expression, ...], text: str) -> tuple[Expression, ...]:
    return (*known, expressions.parse(text)) if text else known


def _events(item: EventFilter) -> set[str]:
    found: set[str] = set()
    for name in item.ignore_event:
        wanted = " ".join(name.lower().split())
        group = _GROUPS.get(wanted, frozenset({wanted}))
        if not group <= _DDL_EVENTS | set(_ROW_EVENTS):
            known = ", ".join(sorted([*_GROUPS, *_DDL_EVENTS, *_ROW_EVENTS]))
            raise FilterError(f"ignore-event {name!r} is not known; known are {known}")
        found |= group
    return found


def _compiled(pattern: str) -> "re.Pattern[str]":
    try:
        return re.compile(pattern, re.IGNORECASE)
    except re.error as error:
        raise FilterError(f"ignore-sql {pattern!r} is no regular expression ({error}); correct it") from None


def _selected(selectors: Sequence[ColumnSelector], schema_name: str, table: str) -> tuple[str, ...]:
    return next((item.columns for item in selectors if TableFilter(item.matcher).wants(schema_name, table)), ())

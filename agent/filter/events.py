"""Event filters and column selectors: decide which changes of a replicated table pass, and with which columns.

The rules are part of the changefeed's config (``FilterConfig``). A table uses all event filters whose matcher names it,
and the first such column selector. Event names are those of TiCDC's event filters.

An ignored event is treated as if it had never happened: a row whose delete is ignored stays in the sink. An update is
ignored if its old or its new row matches. If the log does not contain a column's value (an update left it out, or the
before image has only the key), expressions see NULL. Rows of the first snapshot count as inserts for value expressions;
event names apply to the stream only.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import lru_cache

import numpy as np
import pyarrow as pa

from agent.errors import FilterError
from agent.filter import expressions
from agent.filter.expressions import Expression, Mask
from agent.filter.patterns import Pattern, for_statements
from agent.filter.tables import TableFilter
from agent.rows.changes import DELETE, INSERT, TRUNCATE, UPDATE, Changes
from agent.rows.schema import TableSchema
from reactor.records.changefeed import (
    DROP_PARTITION,
    TRUNCATE_PARTITION,
    ColumnSelector,
    EventFilter,
    FilterConfig,
    event_name,
)

_ROW_EVENTS = {"insert": INSERT, "update": UPDATE, "delete": DELETE}
_TRUNCATE = "truncate table"
_DDL_EVENTS = frozenset(
    {
        *("create database", "drop database", "create table", "drop table", "rename table", "alter table"),
        *("add column", "drop column", "modify column", "rename column", "add index", "drop index", _TRUNCATE),
        *(DROP_PARTITION, TRUNCATE_PARTITION),
    }
)
_LEAVE_ROWS = frozenset({"update", "delete", _TRUNCATE, DROP_PARTITION, TRUNCATE_PARTITION})
_GROUPS = {"all dml": frozenset(_ROW_EVENTS), "all ddl": _DDL_EVENTS}


@dataclass(frozen=True, slots=True)
class TableRules:
    """The rules of one table. ``statements``: patterns of the statements to ignore."""

    events: frozenset[str] = frozenset()
    statements: tuple[Pattern, ...] = ()
    inserts: tuple[Expression, ...] = ()
    updates_new: tuple[Expression, ...] = ()
    updates_old: tuple[Expression, ...] = ()
    deletes: tuple[Expression, ...] = ()
    columns: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self != TableRules()

    def apply(self, changes: Changes) -> Changes:
        """Return the changes that are not ignored, with the selected columns."""
        ignored = self._ignored(changes)
        kept = changes if not ignored.any() else changes.where(~ignored)
        return self._select(kept)

    def snapshot(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the snapshot rows that are not ignored, with the selected columns."""
        ignored = _any(self.inserts, rows)
        kept = rows if not ignored.any() else rows.filter(pa.array(~ignored))
        return kept.select([name for name in kept.schema.names if self.selects(name)]) if self.columns else kept

    def ignores_ddl(self, events: Iterable[str], statement: str) -> bool:
        """Return whether to ignore a statement. ``events``: what it does, as event names of ``ignore_event``."""
        return bool(self.events & set(events)) or any(pattern.is_in(statement) for pattern in self.statements)

    def select(self, schema: TableSchema) -> TableSchema:
        """Return the schema with the selected columns only."""
        if not self.columns:
            return schema
        return replace(schema, columns=tuple(item for item in schema.columns if self.selects(item.name)))

    @property
    def leaves_rows(self) -> bool:
        """Whether the sink may keep rows that the source has deleted, so that an insert may meet its own key."""
        return bool(self.events & _LEAVE_ROWS or self.updates_new or self.updates_old or self.deletes)

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
        names = [name for name in changes.after.schema.names if self.selects(name)]
        if not self.columns or len(names) == changes.after.num_columns:
            return changes
        return replace(
            changes,
            schema=self.select(changes.schema),
            after=changes.after.select(names),
            before=None if changes.before is None else changes.before.select(names),
            unchanged={name: mask for name, mask in changes.unchanged.items() if name in names},
        )

    def selects(self, column: str) -> bool:
        """Return whether the column is selected: the last matching pattern decides; without a match it is not."""
        if not self.columns:
            return True
        decisive = next((p for p in reversed(self.columns) if fnmatchcase(column, p.removeprefix("!"))), "!")
        return not decisive.startswith("!")


@lru_cache(maxsize=4096)  # parsing conditions takes half a millisecond, and every flush of every table needs them
def rules_for(config: FilterConfig, schema_name: str, table: str) -> TableRules:
    """Return the rules that apply to a table.

    :raises FilterError: a rule cannot be parsed.
    """
    rules = TableRules()
    for item in config.event_filters:
        if TableFilter(item.matcher).wants(schema_name, table):
            rules = _with_filter(rules, item)
    return replace(rules, columns=_selected(config.column_selectors, schema_name, table))


def selected_otherwise(
    before: FilterConfig, after: FilterConfig, tables: Iterable[tuple[str, str]]
) -> list[tuple[str, str]]:
    """Return the tables, by schema and name, whose rows or columns the two filters select differently."""
    if not after.selects_otherwise(before):
        return []
    matchers: dict[tuple[str, ...], TableFilter] = {}

    def rules(config: FilterConfig, table: tuple[str, str]) -> tuple[object, ...]:
        names = {one.matcher for one in config.event_filters} | {one.matcher for one in config.column_selectors}
        matchers.update({name: TableFilter(name) for name in names - matchers.keys()})
        applied = [item.with_(matcher=()) for item in config.event_filters if matchers[item.matcher].wants(*table)]
        columns = (item.columns for item in config.column_selectors if matchers[item.matcher].wants(*table))
        return applied, next(columns, ())

    return [table for table in tables if rules(before, table) != rules(after, table)]


def filter_snapshot(
    config: FilterConfig, schema: TableSchema, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Filter the rows and columns of a table's snapshot.

    :raises FilterError: a rule cannot be parsed, or (during iteration) does not fit the table.
    """
    rules = rules_for(config, schema.schema_name, schema.name)
    return map(rules.snapshot, batches) if rules else iter(batches)


def check_words(config: FilterConfig) -> None:
    """Check that every rule can be parsed, whatever tables exist.

    :raises FilterError: a condition or an event name is invalid.
    :raises SourceConfigError: a matcher is invalid.
    """
    for item in config.event_filters:
        TableFilter(item.matcher)
        _with_filter(TableRules(), item)
    for selector in config.column_selectors:
        TableFilter(selector.matcher)


def check(config: FilterConfig, schema: TableSchema, columns: pa.Schema, *, key: Sequence[str]) -> None:
    """Before a changefeed is created: check that expressions fit the table's columns and selectors keep the key.

    :raises FilterError: one does not.
    """
    rules = rules_for(config, schema.schema_name, schema.name)
    known = {column.name.casefold() for column in schema.columns}
    no_rows = pa.RecordBatch.from_pylist([], schema=columns)
    for expression in rules.expressions():
        if missing := [name for name in expression.columns if name.casefold() not in known]:
            raise FilterError(f"the expression {expression.text!r} reads {missing[0]}, which {_name(schema)} lacks")
        expression.matches(no_rows)
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
        statements=(*rules.statements, *map(for_statements, item.ignore_sql)),
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
        wanted = event_name(name)
        group = _GROUPS.get(wanted, frozenset({wanted}))
        if not group <= _DDL_EVENTS | set(_ROW_EVENTS):
            known = ", ".join(sorted([*_GROUPS, *_DDL_EVENTS, *_ROW_EVENTS]))
            raise FilterError(f"ignore-event {name!r} is not known; known are {known}")
        found |= group
    return found


def _selected(selectors: Sequence[ColumnSelector], schema_name: str, table: str) -> tuple[str, ...]:
    return next((item.columns for item in selectors if TableFilter(item.matcher).wants(schema_name, table)), ())

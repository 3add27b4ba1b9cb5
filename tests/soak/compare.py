"""Comparison of a soak: both ends as multisets of canonical rows, read by delta-rs and the server's own client.

Independent of ``diff``. ``place`` is a table's directory. A changelog is folded by the table's key: the last change of
each key counts.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from agent.sinks.delta.alter.dropping import dropped_ts
from agent.sinks.delta.table.place import former_keys
from tests.soak.source import Row, Source, Table

_SHOWN = 3


def upserted(source: Source, table: Table, place: Path) -> str:
    """Return the difference in one line; empty if equal."""
    stored = _open(source, table, place)
    return stored if isinstance(stored, str) else _difference(source, table, stored.to_pyarrow_table().to_pylist())


def changelog(source: Source, table: Table, place: Path) -> str:
    """Return the difference in one line; empty if equal."""
    stored = _open(source, table, place)
    if isinstance(stored, str):
        return stored
    names = tuple(column.name for column in table.columns)
    former = [(one.until_ts, one.columns or names) for one in former_keys(stored).keys]
    return _difference(source, table, folded(stored.to_pyarrow_table().to_pylist(), table.key, former))


def _open(source: Source, table: Table, place: Path) -> DeltaTable | str:
    delta = DeltaTable(place) if DeltaTable.is_deltatable(str(place)) else None
    if delta is None or dropped_ts(delta) is not None:
        # PostgreSQL's stream declares a table with its first row
        return f"{table.name}: the sink has no such table" if any(source.rows(table)) else ""
    missing = {column.name for column in table.columns} - {field.name for field in delta.schema().fields}
    return f"{table.name}: the sink lacks columns {sorted(missing)}" if missing else delta


def _difference(source: Source, table: Table, stored: list[dict[str, Any]]) -> str:
    there = Counter(source.rows(table))
    here = Counter(_row(source, table, row) for row in stored)
    if there == here:
        return ""
    missing, extra = list((there - here).elements()), list((here - there).elements())
    names = [column.name for column in table.columns]
    return (
        f"{table.name} {names} key {table.key}: source {there.total()} rows, sink {here.total()}; "
        f"only at the source ({len(missing)}): {missing[:_SHOWN]}; only at the sink ({len(extra)}): {extra[:_SHOWN]}"
    )


def _row(source: Source, table: Table, stored: dict[str, Any]) -> Row:
    return tuple(source.canonical(column, stored[column.name]) for column in table.columns)


def folded(
    changes: list[dict[str, Any]], key: tuple[str, ...], former: Sequence[tuple[int, tuple[str, ...]]] = ()
) -> list[dict[str, Any]]:
    """Return the rows that a changelog leaves. ``former``: earlier keys, each with the Ts below which it counted."""
    rows: dict[Row, dict[str, Any]] = {}
    gone: dict[tuple[int, int], dict[str, Any]] = {}
    last, keys = key, sorted(former)
    key = keys[0][1] if keys else last
    for change in sorted(changes, key=_order):
        while keys and change["_commit_version"] >= keys[0][0]:
            keys.pop(0)
            key = keys[0][1] if keys else last
            rows = {tuple(row.get(name) for name in key): row for row in rows.values()}
        if change["_change_type"] == "truncate":
            rows.clear()
            continue
        at, place = tuple(change.get(name) for name in key), _order(change)[:2]
        if not _is_after(change):
            gone[place] = rows.pop(at, {})
        else:
            # a key that moves is two changes at one place of the log
            before = gone.get(place) or rows.get(at, {})
            rows[at] = change | {name: before.get(name) for name in change.get("_unchanged") or ()}
    return list(rows.values())


def _order(change: dict[str, Any]) -> tuple[int, int, bool]:
    return change["_commit_version"], change["_commit_seq"], _is_after(change)


def _is_after(change: dict[str, Any]) -> bool:
    return change["_change_type"] in ("insert", "update_postimage")

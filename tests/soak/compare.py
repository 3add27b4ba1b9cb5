"""Comparison of a soak: both ends as multisets of canonical rows, read by the format's and the server's own client.

Independent of ``diff``.
"""

from collections import Counter
from pathlib import Path
from typing import Any

from tests.soak.sinks import Sink
from tests.soak.source import Row, Source, Table

_SHOWN = 3


def difference(source: Source, table: Table, sink: Sink, lake: Path, location: str) -> str:
    """Return the difference in one line; empty if equal. ``location``: of the table below ``lake``, the sink's
    directory."""
    stored = sink.stored(lake, location)
    if stored is None:
        # PostgreSQL's stream declares a table with its first row
        return f"{table.name}: the sink has no such table" if any(source.rows(table)) else ""
    if missing := {column.name for column in table.columns} - stored.columns:
        return f"{table.name}: the sink lacks columns {sorted(missing)}"
    return sink.broken_rule(table, stored) or _of_rows(source, table, sink.rows(table, stored))


def _of_rows(source: Source, table: Table, stored: list[dict[str, Any]]) -> str:
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

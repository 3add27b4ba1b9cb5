"""A Delta table's change feed, played back: what its readers make of it, version by version."""

from collections import Counter
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from agent.sinks.common.forms import plain_type
from agent.sinks.delta.table.place import arrow_schema

_OLD, _NEW = ("delete", "update_preimage"), ("insert", "update_postimage")


def assert_plays_back(location: str, key: tuple[str, ...]) -> list[tuple[int, str, tuple[Any, ...]]]:
    """The feed takes away what was there, and leaves what the table has, at each version; return its changes. ``key``:
    of its rows, which no version deletes and inserts.

    delta-rs refuses ranges in which the table's partitions change (seen with 1.6.6), and some in which types do: it is
    read from there on.
    """
    newest = DeltaTable(location)
    columns, start = arrow_schema(newest), newest.version()
    tables = {version: DeltaTable(location, version=version) for version in range(start + 1)}
    while start and _is_read_alike(tables[start - 1], newest):
        start -= 1
    found = pa.table(newest.load_cdf(starting_version=start).read_all())
    found = found.select([*columns.names, "_change_type", "_commit_version"])
    changes = [(row.pop("_commit_version"), row.pop("_change_type"), row) for row in found.to_pylist()]
    altered = max(v for v in tables if not v or not arrow_schema(tables[v]).equals(arrow_schema(tables[v - 1])))
    held = Counter(_rows(tables[start], columns) if start else ())
    for version in range(start + 1 if start else 0, newest.version() + 1):
        now = [(kind, row) for at, kind, row in changes if at == version]
        for kind, row in now:
            if kind in _OLD:
                held[repr(row)] -= 1
        assert not -held, f"version {version} takes away what was not there: {-held}"
        for kind, row in now:
            if kind in _NEW:
                held[repr(row)] += 1
        assert +held == Counter(_rows(tables[version], columns)), f"version {version}"
        if key and version > altered:
            _assert_one_change_of_each_key(now, key, version)
    return sorted(((at, kind, tuple(row.values())) for at, kind, row in changes), key=repr)


def _is_read_alike(table: DeltaTable, newest: DeltaTable) -> bool:
    types = {item.name: plain_type(item.type) for item in arrow_schema(newest)}
    is_same = all(types.get(item.name, item.type) == plain_type(item.type) for item in arrow_schema(table))
    return is_same and table.metadata().partition_columns == newest.metadata().partition_columns


def _rows(table: DeltaTable, columns: pa.Schema) -> list[str]:
    """As a reader sees them who knows the table with ``columns``."""
    batches = pa.RecordBatchReader.from_stream(table.scan(columns=arrow_schema(table).names))
    rows = [row for batch in batches for row in batch.to_pylist()]
    types = {item.name: plain_type(item.type) for item in arrow_schema(table)}
    names = {item.name for item in columns if types.get(item.name) == plain_type(item.type)}
    return [repr({name: row[name] if name in names else None for name in columns.names}) for row in rows]


def _assert_one_change_of_each_key(now: list[tuple[str, dict[str, Any]]], key: tuple[str, ...], version: int) -> None:
    for kinds in (_OLD, _NEW):
        keys = Counter(tuple(row[name] for name in key) for kind, row in now if kind in kinds)
        assert max(keys.values(), default=1) == 1, f"version {version} has a key twice: {keys.most_common(3)}"
    of_kind = {
        kind: {tuple(row[name] for name in key) for other, row in now if other == kind} for kind in (*_OLD, *_NEW)
    }
    assert of_kind["update_preimage"] == of_kind["update_postimage"], f"version {version}"
    assert not of_kind["delete"] & of_kind["insert"], f"version {version}"

"""Sinks of a soak: the kinds of tables that changefeeds write, and which rows of each equal the source's."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from deltalake import DeltaTable
from pyiceberg.exceptions import NoSuchTableError

from reactor.records.changefeed import SinkMode
from tests.acceptance import families
from tests.soak.source import Row, Table


@dataclass(frozen=True, slots=True)
class Sink:
    """``options``: of the URI."""

    name: str
    mode: SinkMode = SinkMode.UPSERT
    format: str = "delta"
    options: str = ""

    def uri(self, lake: Path) -> str:
        return f"{self.format}+file://{lake}{self.options}"

    def stored(self, lake: Path, location: str) -> families.Stored | None:
        """Open a table by its format's own reader; None if there is none, or one that was dropped at the source."""
        try:
            if self.format == "delta" and not DeltaTable.is_deltatable(str(lake / location)):
                return None
            found = families.stored(lake, location, self.format)
        except NoSuchTableError:
            return None
        return None if found.is_dropped else found

    def rows(self, table: Table, stored: families.Stored) -> list[dict[str, Any]]:
        """Return the rows that the source has, if the sink is right."""
        rows = stored.rows()
        match self.mode:
            case SinkMode.CHANGELOG:
                names = tuple(column.name for column in table.columns)
                former = [(one.until_ts, one.columns or names) for one in stored.former_keys.keys]
                return folded(rows, table.key, former)
            case SinkMode.HISTORY:
                return [row for row in rows if row["_is_current"]]
        return [row for row in rows if not row.get("_weir_deleted")]

    def broken_rule(self, table: Table, stored: families.Stored) -> str:
        """Return what cannot be, whatever the source has; empty if there is nothing."""
        return _broken_history(table, stored) if self.mode is SinkMode.HISTORY else ""


_KNOWN = (
    Sink("upsert"),
    Sink("changelog", SinkMode.CHANGELOG),
    Sink("vectors", options="?deletion_vectors=true"),
    Sink("mapped", options="?column_mapping=name&deletion_vectors=true"),
    Sink("soft", options="?soft_delete=true&synced_at=true"),
    Sink("change-feed", options="?change_data_feed=true"),
    Sink("history", SinkMode.HISTORY),
    Sink("iceberg", format="iceberg"),
    Sink("iceberg-soft", format="iceberg", options="?format_version=3&soft_delete=true"),
    Sink("iceberg-changelog", SinkMode.CHANGELOG, format="iceberg"),
    Sink("iceberg-history", SinkMode.HISTORY, format="iceberg"),
)
SINKS: Mapping[str, Sink] = {sink.name: sink for sink in _KNOWN}
#: what is written where nothing else is asked for
USUAL_SINKS = ("upsert", "changelog")


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


def _broken_history(table: Table, stored: families.Stored) -> str:
    """A row's versions follow each other. Earlier keys name other rows, so a table that had some is not looked at."""
    if stored.former_keys.keys:
        return ""
    versions: dict[Row, list[tuple[int, int | None]]] = defaultdict(list)
    for row in stored.rows():
        begin, end = row["_valid_from"], row["_valid_to"]
        if row["_is_current"] is not (end is None) or (end is not None and end <= begin):
            return f"{table.name}: a version from {begin} to {end} is current: {row['_is_current']}"
        versions[tuple(row[name] for name in table.key)].append((begin, end))
    for key, spans in versions.items():
        for (_, end), (begin, _) in pairwise(sorted(spans, key=lambda span: span[0])):
            if end is None or end > begin:
                return f"{table.name}: versions of {key} overlap: one ends at {end}, the next begins at {begin}"
    return ""

"""Read range of a soak: what a reader of changes got without a gap, and how it differs from the changelog table."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from reactor.ids import MAX_TS

#: of rows that a copy or a repair adds to a changelog (docs/one-table-is-wrong.md); the log has none of them
_COPY_SEQ = 1 << 62
_SHOWN = 3


@dataclass(slots=True)
class ReadRange:
    """What was read without a gap: all changes in ``(begin, reached]``. ``has_values``: all rows of one schema have the
    values of the changelog, too."""

    begin: int
    reached: int
    rows: list[pa.Table] = field(default_factory=list)
    has_values: bool = True

    def forget_behind(self, ts: int) -> None:
        self.reached = ts
        self.rows = [rows.filter(pc.less_equal(rows["_commit_version"], ts)) for rows in self.rows]


def difference(one: ReadRange, stored: Sequence[dict[str, Any]], ts: int) -> str:
    """Return in one line what is only in one of both, up to ``ts``; empty if they are equal."""
    rows = [(number, row) for number, table in enumerate(one.rows) for row in table.to_pylist()]
    is_left_out = _left_out(stored)
    there = Counter(
        _place(row)
        for row in stored
        if one.begin < row["_commit_version"] <= min(one.reached, ts) and not is_left_out(row)
    )
    here = Counter(_place(row) for _, row in rows if row["_commit_version"] <= ts and not is_left_out(row))
    if here != there:
        return (
            f"{here.total()} changes, the changelog {there.total()}; only the reader has "
            f"{_first(here - there)}, only the changelog {_first(there - here)}"
        )
    return _other_values(one, stored, is_left_out) if one.has_values else ""


def _first(places: Counter[tuple[int, int, str]]) -> list[tuple[int, int, str]]:
    return sorted(places.elements())[:_SHOWN]


def _place(row: dict[str, Any]) -> tuple[int, int, str]:
    return row["_commit_version"], row["_commit_seq"], row["_change_type"]


def _left_out(stored: Sequence[dict[str, Any]]) -> Callable[[dict[str, Any]], bool]:
    """Return whether a change is not to be compared: those that a copy has taken the place of are not in the changelog,
    which may begin with the copy, and the log does not have the copy's rows."""
    copies = sorted(
        {
            row["_commit_version"]
            for row in stored
            if row["_change_type"] == "truncate" and not 0 <= row["_commit_seq"] < _COPY_SEQ
        }
    )
    versions = sorted({row["_commit_version"] for row in stored})
    spans = [(0, versions[0] if versions else MAX_TS)]
    for copy in copies:
        before = [version for version in versions if version < copy]
        spans.append((before[-1] if before else 0, copy))
    return lambda row: any(low < row["_commit_version"] <= high for low, high in spans)


def _other_values(
    one: ReadRange, stored: Sequence[dict[str, Any]], is_left_out: Callable[[dict[str, Any]], bool]
) -> str:
    """Compare the values of changes behind the last schema change: earlier ones may have other columns by now."""
    found = list(_last_ones(one.rows))
    names = found[0].schema.names if found else []
    rows = [row for table in found for row in table.to_pylist() if not is_left_out(row)]
    by_place: dict[tuple[int, int, str], list[dict[str, Any]]] = {}
    for row in stored:
        by_place.setdefault(_place(row), []).append(row)
    for row in rows:
        candidates = by_place.get(_place(row), [])
        if not candidates or not set(names) <= set(candidates[0]):
            continue
        if not any(all(_same(row[name], candidate[name]) for name in names) for candidate in candidates):
            return f"at {_place(row)} the reader has {row}, the changelog {candidates[:_SHOWN]}"
    return ""


def _last_ones(tables: Sequence[pa.Table]) -> Iterator[pa.Table]:
    for table in reversed(tables):
        if table.schema != tables[-1].schema:
            return
        yield table


def _same(one: Any, other: Any) -> bool:
    return one == other or (one is not None and other is not None and str(one) == str(other))

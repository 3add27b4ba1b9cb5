"""Changes written down as rows, for tests of what comes after decoding."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa

from agent.rows.changes import BEFORE_NONE, DELETE, INSERT, TRUNCATE, UPDATE, Changes
from agent.rows.schema import Column, TableSchema

#: Stands in an after image for a large value that the update left out.
UNCHANGED = object()

ARROW = pa.schema([("id", pa.int64()), ("name", pa.string()), ("big", pa.string())])


@dataclass(frozen=True)
class Change:
    """One change; images are tuples in column order, None where there is no such image."""

    op: int
    after: tuple[Any, ...] | None = None
    before: tuple[Any, ...] | None = None
    before_kind: int = BEFORE_NONE
    commit_ts: int = 1


def insert(*row: Any, ts: int = 1) -> Change:
    return Change(INSERT, after=row, commit_ts=ts)


def update(*row: Any, before: tuple[Any, ...] | None = None, before_kind: int = BEFORE_NONE, ts: int = 1) -> Change:
    return Change(UPDATE, after=row, before=before, before_kind=before_kind, commit_ts=ts)


def delete(*row: Any, before_kind: int = 1, ts: int = 1) -> Change:
    return Change(DELETE, before=row, before_kind=before_kind, commit_ts=ts)


def truncate(*, ts: int = 1) -> Change:
    return Change(TRUNCATE, commit_ts=ts)


def table_schema(arrow: pa.Schema = ARROW, *, key: Sequence[str] = ("id",), name: str = "t") -> TableSchema:
    columns = tuple(Column(item.name, 0, -1, str(item.type), item.name in key) for item in arrow)
    return TableSchema(16384, "public", name, columns)


def changes(
    rows: Sequence[Change], *, arrow: pa.Schema = ARROW, key: Sequence[str] = ("id",), commit_time: float = 0.0
) -> Changes:
    """``Changes`` as the decoder would make them."""
    has_before = any(row.before is not None for row in rows)
    unchanged = {
        item.name: np.array([row.after is not None and row.after[at] is UNCHANGED for row in rows], np.bool_)
        for at, item in enumerate(arrow)
    }
    return Changes(
        schema=table_schema(arrow, key=key),
        op=np.array([row.op for row in rows], np.int8),
        commit_ts=np.array([row.commit_ts for row in rows], np.int64),
        seq=np.arange(len(rows), dtype=np.int64),
        after=_batch([row.after for row in rows], arrow),
        before=_batch([row.before for row in rows], arrow) if has_before else None,
        before_kind=np.array([row.before_kind for row in rows], np.int8),
        unchanged={name: mask for name, mask in unchanged.items() if mask.any()},
        commit_time=commit_time,
    )


def _batch(images: Sequence[tuple[Any, ...] | None], arrow: pa.Schema) -> pa.RecordBatch:
    def value(image: tuple[Any, ...] | None, at: int) -> Any:
        return None if image is None or image[at] is UNCHANGED else image[at]

    columns = [pa.array([value(image, at) for image in images], item.type) for at, item in enumerate(arrow)]
    return pa.RecordBatch.from_arrays(columns, schema=arrow)


def random_turn(
    chance: Random, rows: dict[int, tuple[Any, ...]], turn: int, row: Callable[[Random, int], tuple[Any, ...]]
) -> list[Change]:
    """Change ``rows``, by key, and return the changes of one turn, which lie in ``turn * 10 + (100, 110]``: six rows
    get other values, one of the first hundred is gone, and one is new. ``row`` makes the values of a key, with it."""
    ts, some = turn * 10 + 100, []
    for key in chance.sample(sorted(rows), 6):
        rows[key] = row(chance, key)
        some.append(update(*rows[key], ts=ts + 1))
    gone = chance.choice([key for key in rows if key < 100])
    some.append(delete(gone, *[None] * (len(rows.pop(gone)) - 1), ts=ts + 2))
    rows[100 + turn] = row(chance, 100 + turn)
    some.append(insert(*rows[100 + turn], ts=ts + 3))
    return some

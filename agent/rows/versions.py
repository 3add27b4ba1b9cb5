"""Versions: what a range of row changes adds to a table that keeps each row's history (SCD type 2).

Each transaction that changes a row ends the version that the row had, and begins one with its values; what one
transaction does to a row is one change. A version lasts from the Ts at which it began up to, and without, the one at
which it ended. A row that gets another key ends under the old one and begins under the new one; TRUNCATE ends all rows.

A value that an update left out is the one of the version before, as for upserted tables (``agent.rows.fold``).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from agent.rows.changes import INSERT, TRUNCATE, Changes
from agent.rows.fold import Events, NetChanges, padded, resolve
from agent.rows.unify import Rows
from reactor.ids import MAX_TS

#: the end of a version that lasts
OPEN: Final = int(MAX_TS)


@dataclass(frozen=True, slots=True, eq=False)
class Moments:
    """Positions, and the commit times of their transactions (Unix seconds; 0: not known)."""

    ts: npt.NDArray[np.int64]
    time: npt.NDArray[np.float64]

    def take(self, at: npt.NDArray[np.int64]) -> "Moments":
        return Moments(self.ts[at], self.time[at])

    @classmethod
    def joined(cls, parts: "Sequence[Moments]") -> "Moments":
        return cls(np.concatenate([part.ts for part in parts]), np.concatenate([part.time for part in parts]))

    @classmethod
    def same(cls, ts: int, time: float, count: int) -> "Moments":
        return cls(np.full(count, ts, np.int64), np.full(count, time, np.float64))


@dataclass(frozen=True, slots=True, eq=False)
class Versions:
    """``net``: ``upserts`` are versions, several of one key perhaps; ``deletes`` the keys whose version in the table
    ends. ``begins`` and ``ends``: of the versions; ``ends_stored``: of those in the table. ``cut``: all other rows of
    the table end there (a TRUNCATE), or None."""

    net: NetChanges
    begins: Moments
    ends: Moments
    ends_stored: Moments
    cut: Moments | None = None


def versions(parts: Sequence[Changes], *, key: Sequence[str]) -> Versions:
    """Return the versions of a range; ``parts``: its changes in log order.

    :raises TableHeldError: a column changed its type within the range, and its values cannot be converted.
    """
    found, cuts = list[Versions](), list[Moments]()
    for segment, cut in _segments(parts):
        if segment:
            found.append(_of_segment(segment, key, ends=cut, is_first=not cuts))
        if cut is not None:
            cuts.append(cut)
    cut = cuts[0] if cuts else None
    if not found:
        none = Moments.same(0, 0.0, 0)
        empty = NetChanges(pa.table({}), pa.table({}), is_truncated=bool(cuts), is_insert_only=True)
        return Versions(empty, none, none, none, cut)
    return _joined(found, cut)


def _segments(parts: Sequence[Changes]) -> "list[tuple[list[Changes], Moments | None]]":
    """Divide changes at each TRUNCATE, which ends what is before it."""
    found: list[tuple[list[Changes], Moments | None]] = []
    segment = list[Changes]()
    for part in parts:
        (cuts,) = np.nonzero(part.op == TRUNCATE)
        begin = 0
        for at in (*cuts.tolist(), len(part)):
            if at > begin:
                segment.append(part if at - begin == len(part) else part.take(np.arange(begin, at)))
            if at < len(part):
                found.append((segment, _moments(part).take(np.array([at]))))
                segment = []
            begin = at + 1
    return [*found, (segment, None)]


def _moments(part: Changes) -> Moments:
    times = part.commit_times
    return Moments(part.commit_ts, np.full(len(part), part.commit_time) if times is None else times)


def _of_segment(parts: Sequence[Changes], key: Sequence[str], *, ends: Moments | None, is_first: bool) -> Versions:
    rows, moments = Rows.of_parts(parts, key), Moments.joined([_moments(part) for part in parts])
    events = Events.of(rows, key)
    order = events.order
    code, ts = events.code[order], moments.ts[events.row[order]]
    is_last = np.append((code[1:] != code[:-1]) | (ts[1:] != ts[:-1]), True)
    steps, code = order[is_last], code[is_last]  # one for each key and transaction
    goes_on = np.append(code[1:] == code[:-1], False)
    after = moments.take(events.row[steps[np.where(goes_on, np.arange(len(steps)) + 1, 0)]])
    last = Moments.same(OPEN, 0.0, 1) if ends is None else ends
    until = Moments(np.where(goes_on, after.ts, last.ts[0]), np.where(goes_on, after.time, last.time[0]))
    begins = moments.take(events.row[steps])
    # what a transaction writes and truncates has no version
    (lasting,) = np.nonzero(~events.is_delete[steps] & (until.ts > begins.ts))
    final = resolve(rows, events, steps[lasting])
    (first,) = np.nonzero(np.append(True, code[1:] != code[:-1]))
    first_op = rows.op[events.row[events.first_of_key()]]
    net = NetChanges(
        upserts=final.rows,
        deletes=events.keys.take(events.key_at[steps[first]]) if is_first else events.keys.slice(0, 0),
        kept=final.kept if is_first else {},
        origin=final.origin if is_first else None,
        needed=final.needed,
        lost=final.lost if is_first else final.needed,
        is_insert_only=bool((first_op == INSERT).all()),
    )
    stored = begins.take(first) if is_first else Moments.same(0, 0.0, 0)
    return Versions(net, begins.take(lasting), until.take(lasting), stored)


def _joined(found: Sequence[Versions], cut: Moments | None) -> Versions:
    nets, counts = [each.net for each in found], [each.net.upserts.num_rows for each in found]
    schema = _widest(nets)
    upserts = pa.concat_tables([_shaped(net.upserts, schema) for net in nets])
    # only the first has what the table has: nothing is before a TRUNCATE for those behind it
    first = nets[0]
    net = replace(
        first,
        upserts=upserts,
        kept={name: padded([mask, *[None] * (len(nets) - 1)], counts) for name, mask in first.kept.items()},
        origin=None if first.origin is None else _origins(first.origin, nets[1:]),
        needed=_masks([net.needed for net in nets], counts),
        lost=_masks([net.lost for net in nets], counts),
        is_truncated=cut is not None,
        is_insert_only=all(net.is_insert_only for net in nets),
    )
    begins, ends = Moments.joined([each.begins for each in found]), Moments.joined([each.ends for each in found])
    return Versions(net, begins, ends, found[0].ends_stored, cut)


def _masks(masks: "Sequence[npt.NDArray[np.bool_] | None]", counts: Sequence[int]) -> "npt.NDArray[np.bool_] | None":
    return None if all(mask is None for mask in masks) else padded(masks, counts)


def _origins(first: pa.Table, others: Sequence[NetChanges]) -> pa.Table:
    own = [net.upserts.select(first.schema.names).cast(first.schema) for net in others]
    return pa.concat_tables([first, *own])


def _widest(nets: Sequence[NetChanges]) -> pa.Schema:
    fields: dict[str, pa.Field] = {}
    for net in reversed(nets):
        for item in net.upserts.schema:
            fields.setdefault(item.name, item)
    return pa.schema(list(fields.values()))


def _shaped(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    columns = [
        rows.column(item.name).cast(item.type) if item.name in rows.schema.names else pa.nulls(len(rows), item.type)
        for item in schema
    ]
    return pa.table(columns, schema=schema)

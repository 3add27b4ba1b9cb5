"""History: tables that keep every version of a row (SCD type 2).

A history table has five columns beside the source's:

=====================  ==============================================================================================
``_valid_from``        the Ts from which the row had these values
``_valid_to``          the Ts from which it had others, or was gone; NULL: it still has them
``_valid_from_time``   the commit times of these; NULL where the log does not know them, as in the first snapshot
``_valid_to_time``
``_is_current``        whether the source has the row like that
=====================  ==============================================================================================

The current version of a row that changes is ended: deleted where it lies, and written again with its end, beside the
new versions (``agent.rows.versions``). Ended versions lie in files of their own, which no search for current rows
reads: so a flush costs in proportion to what changes, however long the history is.
"""

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from agent.errors import TableHeldError
from agent.rows.changes import Changes
from agent.rows.versions import OPEN, Moments, Versions
from agent.sinks.common.forms import Forms
from reactor.ids import Ts

VALID_FROM: Final = "_valid_from"
VALID_TO: Final = "_valid_to"
IS_CURRENT: Final = "_is_current"
_FROM_TIME, _TO_TIME = "_valid_from_time", "_valid_to_time"
_MOMENT: Final = pa.timestamp("us", "UTC")
FIELDS: Final = (
    pa.field(VALID_FROM, pa.int64()),
    pa.field(VALID_TO, pa.int64()),
    pa.field(_FROM_TIME, _MOMENT),
    pa.field(_TO_TIME, _MOMENT),
    pa.field(IS_CURRENT, pa.bool_()),
)
NAMES: Final = frozenset(item.name for item in FIELDS)

Indexes = npt.NDArray[np.int64]


def refuse_taken(names: list[str]) -> None:
    """:raises TableHeldError: a source column has the name of one of ours."""
    for name in names:
        if name.lower() in NAMES:
            raise TableHeldError(
                f"source column {name} has the name of a column of history tables; rename it, or leave it out by a "
                "column selector"
            )


def snapshot_rows(stored: pa.Table, ts: Ts) -> pa.Table:
    """Return rows of a snapshot at ``ts`` as current versions."""
    count = stored.num_rows
    return _with(stored, Moments.same(int(ts), 0.0, count), Moments.same(OPEN, 0.0, count))


def version_rows(found: Versions, forms: Forms) -> pa.Table:
    """Return the versions of a flush as they are stored."""
    return _with(forms.table(found.net.upserts), found.begins, found.ends)


def appended_rows(part: Changes, forms: Forms) -> pa.Table:
    """Return rows of a table without a key, all inserted."""
    times = np.full(len(part), part.commit_time) if part.commit_times is None else part.commit_times
    begins = Moments(part.commit_ts, times)
    return _with(forms.table(pa.Table.from_batches([part.after])), begins, Moments.same(OPEN, 0.0, len(part)))


def ended(rows: pa.Table, ends: Moments) -> pa.Table:
    """Return current versions with their ends. One that would end where it began is left out."""
    lasting = pc.less(rows.column(VALID_FROM), pa.array(ends.ts))
    for item, values in (
        (FIELDS[1], pa.array(ends.ts)),
        (FIELDS[3], _times(ends)),
        (FIELDS[4], pa.repeat(False, rows.num_rows)),
    ):
        rows = rows.set_column(rows.schema.get_field_index(item.name), item, values)
    return rows.filter(lasting)


def current(rows: pa.Table) -> pa.Table:
    """Return the current versions of a history table; all rows of another."""
    return rows.filter(is_current(rows)) if IS_CURRENT in rows.schema.names else rows


def is_current(rows: pa.Table | pa.RecordBatch) -> pa.Array | pa.ChunkedArray:
    return pc.fill_null(rows.column(IS_CURRENT), False)


def _with(rows: pa.Table, begins: Moments, ends: Moments) -> pa.Table:
    refuse_taken(rows.schema.names)
    is_open = ends.ts == OPEN
    for item, values in zip(
        FIELDS,
        (
            pa.array(begins.ts),
            pa.array(ends.ts, mask=is_open),
            _times(begins),
            _times(ends),
            pa.array(is_open),
        ),
        strict=True,
    ):
        rows = rows.append_column(item, values)
    return rows


def _times(moments: Moments) -> pa.Array:
    micros = np.rint(moments.time * 1_000_000).astype(np.int64)
    return pa.array(micros, mask=moments.time == 0).cast(_MOMENT)

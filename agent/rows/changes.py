"""Changes: decoded row changes of one table, in log order, as Arrow columns."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from agent.rows.schema import TableSchema

# ``Changes.op``
INSERT, UPDATE, DELETE, TRUNCATE = 1, 2, 3, 4


# ``Changes.before_kind``
BEFORE_NONE, BEFORE_KEY, BEFORE_FULL = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Changes:
    """Decoded row changes of one table under one schema, in log order; all columns have ``len(op)`` rows.

    ``after``: the new image (all NULL where ``op`` is DELETE). ``before``: what the source sent of the old row: nothing
    (``before_kind`` 0), the key columns (1), or the full row (2); None if no row has any. ``unchanged[name]``: True
    where an update left a large value out (PostgreSQL TOAST), so that it is neither NULL nor known; columns without
    such rows are not in the mapping.
    """

    schema: TableSchema
    op: npt.NDArray[np.int8]
    commit_ts: npt.NDArray[np.int64]
    seq: npt.NDArray[np.int64]
    after: pa.RecordBatch
    before: pa.RecordBatch | None
    before_kind: npt.NDArray[np.int8]
    unchanged: dict[str, npt.NDArray[np.bool_]] = field(default_factory=dict)
    #: commit time of the newest change, Unix seconds; 0 if not known
    commit_time: float = 0.0
    #: commit time of each change, if they differ
    commit_times: npt.NDArray[np.float64] | None = None

    def __len__(self) -> int:
        return len(self.op)

    def where(self, keep: npt.NDArray[np.bool_]) -> "Changes":
        """Return the rows where ``keep`` is true."""
        mask = pa.array(keep)
        return self._picked(keep, lambda images: images.filter(mask))

    def take(self, at: npt.NDArray[np.int64]) -> "Changes":
        """Return the rows at these indexes, in this order."""
        places = pa.array(at)
        return self._picked(at, lambda images: images.take(places))

    def _picked(self, rows: npt.NDArray[Any], picked_of: Callable[[pa.RecordBatch], pa.RecordBatch]) -> "Changes":
        unchanged = {name: flags[rows] for name, flags in self.unchanged.items()}
        return replace(
            self,
            op=self.op[rows],
            commit_ts=self.commit_ts[rows],
            seq=self.seq[rows],
            after=picked_of(self.after),
            before=None if self.before is None else picked_of(self.before),
            before_kind=self.before_kind[rows],
            unchanged={name: flags for name, flags in unchanged.items() if flags.any()},
            commit_times=None if self.commit_times is None else self.commit_times[rows],
        )

"""Live file: a data file of a Delta table's current version, as the table's log describes it."""

import json
import time
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from agent.sinks.delta.table.commits import Action
from agent.sinks.delta.table.layout import FileLayout
from agent.sinks.delta.table.mapping import NO_MAPPING, ColumnNames
from agent.sinks.delta.table.partitions import Partition

_STATISTICS: Final = {"numRecords": int, "minValues": dict, "maxValues": dict, "nullCount": dict}


def now_ms() -> int:
    return int(time.time() * 1000)


@dataclass(frozen=True)
class LiveFile:
    """A data file of the table's current version: the ``add`` action that declares it. ``names``: of the table's
    columns in it."""

    add: Action
    names: ColumnNames = NO_MAPPING

    @property
    def path(self) -> str:
        return str(self.add["path"])

    @property
    def size(self) -> int:
        return int(self.add["size"])

    @property
    def partition(self) -> Partition:
        """The values by which the table divides rows."""
        found: Partition = self.add.get("partitionValues") or {}
        return {self.names.logical(name): value for name, value in found.items()} if self.names.is_mapped else found

    @property
    def layout(self) -> FileLayout:
        return FileLayout(self.partition, self.names)

    @property
    def vector(self) -> Action | None:
        """The deletion vector, or None."""
        found = self.add.get("deletionVector")
        return None if found is None else dict(found)

    @property
    def rows(self) -> int:
        """The number of rows including deleted ones; 0 if not recorded."""
        return int(self._stats.get("numRecords") or 0)

    @property
    def deleted_rows(self) -> int:
        return 0 if self.vector is None else int(self.vector["cardinality"])

    def bounds(self, column: str) -> tuple[Any, Any]:
        """Return the least and the greatest value of a column, as in Delta's JSON; None where it is not recorded."""
        stored = self.names.physical(column)
        least, most = ((self._stats.get(name) or {}).get(stored) for name in ("minValues", "maxValues"))
        return least, most

    def nulls(self, column: str) -> int | None:
        """Return the number of a column's NULLs, deleted rows included; None: it is not recorded."""
        found = (self._stats.get("nullCount") or {}).get(self.names.physical(column))
        return found if isinstance(found, int) else None

    @cached_property
    def _stats(self) -> dict[str, Any]:
        """Others may have written anything; they only save reading files."""
        try:
            found = json.loads(self.add.get("stats") or "{}")
        except (ValueError, TypeError, RecursionError):
            found = {}
        if not isinstance(found, dict):
            return {}
        return {name: found[name] for name, kind in _STATISTICS.items() if isinstance(found.get(name), kind)}

    def remove(self, *, is_change: bool = True) -> Action:
        """Return the remove action. ``is_change``: its rows are not all in what is added with it."""
        fields = {
            "path": self.path,
            "deletionTimestamp": now_ms(),
            "dataChange": is_change,
            "extendedFileMetadata": True,
        }
        fields |= {"partitionValues": dict(self.add.get("partitionValues") or {}), "size": self.size}
        return {"remove": fields | ({} if self.vector is None else {"deletionVector": self.vector})}

"""Partition keys: finds tables whose partitions send updates and deletes without the table's key.

Rows of a partition that are sent as its root's come with the old key of the partition's own replica identity, which the
server does not take from the root: columns of the root's key that are not in it are NULL there. And an update that
changes only these comes without any old key. Both leave the old row at the sink. Pure.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from agent.errors import RESYNC
from agent.rows.schema import TableSchema
from reactor.ids import Ts
from reactor.records.tables.table import TableRecord


@dataclass(frozen=True, slots=True)
class _Partition:
    """``key``: of its own replica identity; empty if whole rows are sent, or no updates and deletes."""

    table_id: int
    name: str
    key: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Found:
    ts: Ts
    root: TableRecord
    partition: _Partition


class PartitionKeys:
    """Those of one stream. It declares a partition behind its root and in front of its next row, where that is the
    first, or the partition's identity is another one than before."""

    def __init__(self) -> None:
        self._found: list[_Found] = []
        #: by root, its partitions as they were declared last
        self._partitions: dict[int, dict[int, _Partition]] = {}

    @property
    def last_ts(self) -> Ts:
        """Where the last one is that was found and not taken."""
        return max((one.ts for one in self._found), default=Ts(0))

    def note(self, root_id: int, root: TableRecord | None, declared: TableSchema, ts: Ts) -> None:
        """Rows of a partition from ``ts`` on are sent as those of the root, which is None if it is not known."""
        key = () if declared.replica_identity == "f" else declared.key
        partition = _Partition(declared.table_id, declared.qualified_name, key)
        self._partitions.setdefault(root_id, {})[partition.table_id] = partition
        if root is not None:
            self._judge(root, partition, ts)

    def judge(self, root: TableRecord, ts: Ts) -> None:
        """A root has its key from ``ts`` on."""
        for partition in self._partitions.get(root.table_id, {}).values():
            self._judge(root, partition, ts)

    def _judge(self, root: TableRecord, partition: _Partition, ts: Ts) -> None:
        if partition.key and not set(root.key) <= set(partition.key):
            self._found.append(_Found(ts, root, partition))

    def withdraw(self, table_ids: Collection[int], ts: Ts) -> None:
        """What was noted of these tables at ``ts`` does not count."""
        self._found = [one for one in self._found if one.ts != ts or one.partition.table_id not in table_ids]
        for partitions in self._partitions.values():
            for table_id in table_ids:
                partitions.pop(table_id, None)

    def take(self, upto: Ts) -> Iterator[tuple[Ts, TableRecord, str]]:
        """Yield, once, the tables that lose rows from a position at or below ``upto`` on, with the position and the
        reason."""
        found, self._found = self._found, [one for one in self._found if one.ts > upto]
        for one in found:
            if one.ts <= upto:
                yield one.ts, one.root, _reason(one.root, one.partition)


def _reason(root: TableRecord, partition: _Partition) -> str:
    return (
        f"the partition {partition.name} of table {root.schema_name}.{root.name} sends updates and deletes with its "
        f"own key ({', '.join(partition.key)}), without that of the table ({', '.join(root.key)}): ALTER TABLE "
        f"{partition.name} REPLICA IDENTITY FULL, and {RESYNC}; or leave it out by a filter rule"
    )

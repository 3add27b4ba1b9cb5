"""Table declarations: the tables that the binlog has declared so far, in the kernels' form.

Pure. A table map declares one version of a table under a number that is valid until the server closes the table. Every
version gets a *slot*, a small number by which the kernels group. The schema of a slot never changes, and a new version
of a table gets a new slot, so all events of a slot can be one batch.

A server that keeps opening and closing tables assigns new numbers to the same versions: versions are recognised by
their bytes, and numbers that no open transaction uses are dropped when there are too many.
"""

from collections.abc import Callable

import numpy as np

from agent.kernels.jit import Bytes, Ints
from agent.rows.schema import TableSchema
from agent.sources.mysql.binlog import split
from agent.sources.mysql.binlog.split import ABSENT, UNWANTED
from agent.sources.mysql.decode.table_name import parse_table_name

#: above this number, table maps are kept only for an open transaction
MAPS_MAX = 1 << 16
_MAP_ID_BYTES = 6


class Declarations:
    """``is_wanted`` returns, by schema and name, whether a table is replicated; events of others are dropped when they
    are split. ``describe`` makes a schema of a table map's body."""

    def __init__(self, is_wanted: Callable[[str, str], bool], describe: Callable[[bytes], TableSchema]) -> None:
        self._is_wanted = is_wanted
        self._describe = describe
        #: schema of each slot; append-only
        self.schemas: list[TableSchema] = []
        #: the kernels' tables: see ``split.find``
        self.maps: Ints = np.zeros((256, split.MAP_CELLS), np.int64)
        self.bodies: Bytes = np.empty(1 << 16, np.uint8)
        self._used_bytes = 0
        self._used_maps = 0
        self._maps_limit = MAPS_MAX
        self._slots: dict[bytes, int] = {}
        self._newest: dict[int, int] = {}

    def is_wanted(self, schema_name: str, name: str) -> bool:
        return self._is_wanted(schema_name, name)

    def slot(self, map_id: int) -> int:
        """Return the slot of a table map, ``UNWANTED`` or ``ABSENT``."""
        line = self.maps[split.find(self.maps, map_id)]
        return int(line[1]) if line[0] else ABSENT

    def newest_slot(self, table_id: int) -> int:
        """Return the slot of a table's newest version, or ``ABSENT``."""
        return self._newest.get(table_id, ABSENT)

    def declare(self, body: bytes, *, txn: int) -> int:
        """Add a table map that the kernels do not know; ``txn`` is the transaction it belongs to."""
        meaning = body[_MAP_ID_BYTES:]
        slot = self._slots.get(meaning, ABSENT)
        if slot == ABSENT or (slot != UNWANTED and slot != self.newest_slot(self.schemas[slot].table_id)):
            slot = self._slots[meaning] = self._new_slot(body)
        self._place(body, slot, txn)
        return slot

    def add(self, schema: TableSchema) -> int:
        """Return the slot of a version, and add it unless it is known."""
        slot = self.newest_slot(schema.table_id)
        if slot == ABSENT or self.schemas[slot] != schema:
            self.schemas.append(schema)
            slot = self._newest[schema.table_id] = len(self.schemas) - 1
        return slot

    def slot_of(self, schema: TableSchema) -> int:
        """Return the slot of a table's newest version if that has these columns; else add one: a statement may have
        changed them, and no rows have come since."""
        slot = self.newest_slot(schema.table_id)
        is_same = slot != ABSENT and _columns(self.schemas[slot]) == _columns(schema)
        return slot if is_same else self.add(schema)

    def forget(self) -> None:
        """Drop all table maps: the server has restarted, and reuses their numbers."""
        self.maps[:] = 0
        self._used_maps = self._used_bytes = 0

    def reconsider(self) -> None:
        """Describe every table map again, since ``describe`` may return other schemas."""
        self._slots.clear()
        self.forget()

    def _new_slot(self, body: bytes) -> int:
        if not self._is_wanted(*parse_table_name(body)):
            return UNWANTED
        return self.add(self._describe(body))

    def _place(self, body: bytes, slot: int, txn: int) -> None:
        map_id = int.from_bytes(body[:_MAP_ID_BYTES], "little")
        self._make_room(len(body), txn)
        at = self._used_bytes
        self.bodies[at : at + len(body)] = np.frombuffer(body, np.uint8)
        self._used_bytes += len(body)
        line = self.maps[split.find(self.maps, map_id)]
        self._used_maps += line[0] == 0
        line[:] = map_id + 1, slot, at, len(body), txn

    def _make_room(self, bytes_count: int, txn: int) -> None:
        if self._used_maps >= self._maps_limit:
            self._compact(txn)
        if 2 * (self._used_maps + 1) > len(self.maps):
            self._rehash(self.maps[self.maps[:, 0] != 0], 2 * len(self.maps))
        if self._used_bytes + bytes_count > len(self.bodies):
            bodies = np.empty(2 * (self._used_bytes + bytes_count), np.uint8)
            bodies[: self._used_bytes] = self.bodies[: self._used_bytes]
            self.bodies = bodies

    def _compact(self, txn: int) -> None:
        """Keep only the open transaction's table maps: its rows are still to come."""
        kept = self.maps[(self.maps[:, 0] != 0) & (self.maps[:, 4] == txn)]
        pieces = [self.bodies[line[2] : line[2] + line[3]] for line in kept]
        self._used_bytes = sum(len(piece) for piece in pieces)
        kept[:, 2] = np.cumsum(kept[:, 3]) - kept[:, 3]
        if pieces:
            self.bodies[: self._used_bytes] = np.concatenate(pieces)
        self._rehash(kept, len(self.maps))
        self._maps_limit = max(MAPS_MAX, 2 * len(kept))

    def _rehash(self, lines: Ints, size: int) -> None:
        self.maps = np.zeros((size, split.MAP_CELLS), np.int64)
        for line in lines:
            self.maps[split.find(self.maps, int(line[0]) - 1)] = line
        self._used_maps = len(lines)


def _columns(schema: TableSchema) -> list[tuple[object, ...]]:
    return [(column.name, column.type_id, column.modifier, column.is_unsigned) for column in schema.columns]

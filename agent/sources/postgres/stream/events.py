"""Control messages: parses those of the replication stream, and tracks the tables that it has declared.

Pure. ``split`` handles row events, Begin, Commit and keepalives. A Relation message declares a table's version; every
version gets a *slot*, a small number by which the kernels group. A slot's schema never changes, and a new version of a
table gets a new slot, so all events of a slot can be one batch.
"""

import struct
from collections.abc import Callable

import numpy as np

from agent.kernels.jit import Ints
from agent.rows.schema import Column, TableSchema
from agent.sources.postgres.decode.wire import CLOCK_EPOCH
from agent.sources.postgres.server.sql import text_of
from agent.sources.postgres.stream.split import ABSENT, UNWANTED, find

_KEY_FLAG = 1


def server_microseconds(seconds: float) -> int:
    """Return Unix seconds in the server's time unit and epoch."""
    return int(seconds * 1e6) - CLOCK_EPOCH


def parse_relation(body: bytes) -> TableSchema:
    """Parse a Relation message, including its letter. Types are the server's, not resolved yet."""
    (table_id,) = struct.unpack_from("!I", body, 1)
    schema_name, at = _text(body, 5)
    name, at = _text(body, at)
    identity, count = struct.unpack_from("!ch", body, at)
    at += 3
    columns = []
    for _ in range(count):
        column, at = _column(body, at)
        columns.append(column)
    # an empty namespace means pg_catalog
    return TableSchema(table_id, schema_name or "pg_catalog", name, tuple(columns), identity.decode())


def _column(body: bytes, at: int) -> tuple[Column, int]:
    flags = body[at]
    name, at = _text(body, at + 1)
    type_id, modifier = struct.unpack_from("!Ii", body, at)
    return Column(name, type_id, modifier, is_key=bool(flags & _KEY_FLAG)), at + 8


def parse_truncate(body: bytes) -> tuple[int, ...]:
    """Return the oids of the tables that a TRUNCATE emptied."""
    (count,) = struct.unpack_from("!i", body, 1)
    return struct.unpack_from(f"!{count}I", body, 6)


def _text(body: bytes, at: int) -> tuple[str, int]:
    end = body.index(b"\x00", at)
    return text_of(body[at:end]), end + 1


class Declarations:
    """The stream's declarations: from relation oid to slot, and each slot's schema.

    ``is_wanted`` selects the replicated tables; events of the others are dropped when they are split.
    """

    def __init__(self, is_wanted: Callable[[int], bool]) -> None:
        self._is_wanted = is_wanted
        #: schema of each slot; append-only
        self.schemas: list[TableSchema] = []
        #: the kernels' table: see ``split.find``
        self.keys: Ints = np.zeros(64, np.int64)
        self.slots: Ints = np.zeros(64, np.int64)
        self._known: dict[int, int] = {}

    def is_wanted(self, relation: int) -> bool:
        return self._is_wanted(relation)

    def slot(self, relation: int) -> int:
        """Return the slot of the table's newest version, ``UNWANTED`` or ``ABSENT``."""
        return int(find(self.keys, self.slots, relation))

    def withdraw(self, relation: int) -> None:
        """Drop a table's declaration: its next row needs a new one."""
        self._set(relation, ABSENT)

    def declare(self, schema: TableSchema) -> int:
        """Add a Relation's version unless it is known."""
        if not self._is_wanted(schema.table_id):
            return self._set(schema.table_id, UNWANTED)
        slot = self.slot(schema.table_id)
        if slot not in (ABSENT, UNWANTED) and self.schemas[slot] == schema:
            return slot
        self.schemas.append(schema)
        return self._set(schema.table_id, len(self.schemas) - 1)

    def _set(self, relation: int, slot: int) -> int:
        self._known[relation] = slot
        if 2 * len(self._known) > len(self.keys):
            self.keys = np.zeros(2 * len(self.keys), np.int64)
            self.slots = np.zeros(2 * len(self.slots), np.int64)
            for other, its_slot in self._known.items():
                self._place(other, its_slot)
        else:
            self._place(relation, slot)
        return slot

    def _place(self, relation: int, slot: int) -> None:
        mask = len(self.keys) - 1
        at = (relation * 2654435761) & mask
        while self.keys[at] not in (0, relation):
            at = (at + 1) & mask
        self.keys[at], self.slots[at] = relation, slot

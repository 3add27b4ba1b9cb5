"""Control messages: parses those of the replication stream, and keeps which tables it has declared so far.

Pure. Row events, Begin, Commit and keepalives never come here: ``split`` knows them. A Relation message declares one
version of one table; every version gets a *slot*, a small number that the kernels group by. A slot's schema never
changes, and a table that gets a new version gets a new slot, so that all its events of one slot are one batch.
"""

import struct
from collections.abc import Callable

import numpy as np

from agent.kernels.jit import Ints
from agent.rows.schema import Column, TableSchema
from agent.sources.postgres.decode.wire import CLOCK_EPOCH
from agent.sources.postgres.stream.split import ABSENT, UNWANTED, find

_KEY_FLAG = 1


def server_microseconds(seconds: float) -> int:
    """A Unix time as the server counts."""
    return int(seconds * 1e6) - CLOCK_EPOCH


def parse_relation(body: bytes) -> TableSchema:
    """A Relation message, from its letter on. Types are as the server names them: not resolved yet."""
    (table_id,) = struct.unpack_from("!I", body, 1)
    schema_name, at = _text(body, 5)
    name, at = _text(body, at)
    identity, count = struct.unpack_from("!ch", body, at)
    at += 3
    columns = []
    for _ in range(count):
        column, at = _column(body, at)
        columns.append(column)
    # an empty name space means pg_catalog
    return TableSchema(table_id, schema_name or "pg_catalog", name, tuple(columns), identity.decode())


def _column(body: bytes, at: int) -> tuple[Column, int]:
    flags = body[at]
    name, at = _text(body, at + 1)
    type_id, modifier = struct.unpack_from("!Ii", body, at)
    return Column(name, type_id, modifier, is_key=bool(flags & _KEY_FLAG)), at + 8


def parse_truncate(body: bytes) -> tuple[int, ...]:
    """Oids of the tables that one TRUNCATE emptied."""
    (count,) = struct.unpack_from("!i", body, 1)
    return struct.unpack_from(f"!{count}I", body, 6)


def _text(body: bytes, at: int) -> tuple[str, int]:
    end = body.index(b"\x00", at)
    return body[at:end].decode(), end + 1


class Declarations:
    """What the stream has declared: from relation oid to slot, and each slot's schema.

    ``is_wanted`` says which tables are replicated; events of the others are dropped where they are split.
    """

    def __init__(self, is_wanted: Callable[[int], bool]) -> None:
        self._is_wanted = is_wanted
        #: schema of each slot; only ever appended to
        self.schemas: list[TableSchema] = []
        #: the kernels' table: see ``split.find``
        self.keys: Ints = np.zeros(64, np.int64)
        self.slots: Ints = np.zeros(64, np.int64)
        self._known: dict[int, int] = {}

    def is_wanted(self, relation: int) -> bool:
        return self._is_wanted(relation)

    def slot(self, relation: int) -> int:
        """The slot of its newest version, ``UNWANTED`` or ``ABSENT``."""
        return int(find(self.keys, self.slots, relation))

    def withdraw(self, relation: int) -> None:
        """Its next row is one of a table that is not described."""
        self._set(relation, ABSENT)

    def declare(self, schema: TableSchema) -> int:
        """Take in a Relation; the same version again changes nothing."""
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

"""Partition generator: random rows and schema changes of a partitioned table and its partitions, by seed.

It keeps only the names that there are; a statement that makes no sense fails, and is undone.
"""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Final

#: what the statements need
PARTITIONED: Final = """
CREATE TABLE a (id int, k int, v text, PRIMARY KEY (id, k)) PARTITION BY RANGE (k);
CREATE TABLE one PARTITION OF a FOR VALUES FROM (0) TO (3);
CREATE TABLE two PARTITION OF a FOR VALUES FROM (3) TO (6) PARTITION BY LIST (k);
CREATE TABLE two_x PARTITION OF two FOR VALUES IN (3, 4);
CREATE TABLE two_y PARTITION OF two DEFAULT;
CREATE TABLE rest PARTITION OF a DEFAULT;
CREATE TABLE apart (id int, k int, v text, PRIMARY KEY (id, k));
CREATE TABLE other (id int PRIMARY KEY);
ALTER TABLE other ADD k int, ADD v text;
ALTER TABLE a ALTER v SET STORAGE EXTERNAL;
"""
_LEAVES: Final = ("one", "two_x", "two_y", "rest", "apart")
_BOUNDS: Final = {
    "one": "FOR VALUES FROM (0) TO (3)",
    "two": "FOR VALUES FROM (3) TO (6)",
    "two_x": "FOR VALUES IN (3, 4)",
    "two_y": "DEFAULT",
    "rest": "DEFAULT",
    "apart": "FOR VALUES FROM (6) TO (9)",
}
_TYPES: Final = {"int": ("1", "-2"), "text": ("'x'", "'y'"), "numeric(8,2)": ("1.5", "-3"), "date": ("'2020-01-01'",)}


@dataclass
class Tree:
    """``columns``: what the root has beside its key: name → type."""

    root: str = "a"
    columns: dict[str, str] = field(default_factory=lambda: {"v": "text"})
    made: int = 0


class PartitionStatements:
    """``table``: as the statements so far have left it. ``can_hold``: also statements that hold a table until its
    operator acts."""

    def __init__(self, random: Random, *, can_hold: bool = True) -> None:
        self.table = Tree()
        self._random = random
        self._can_hold = can_hold

    def undo(self) -> Callable[[], None]:
        """Return what brings ``table`` back to what it is now."""
        return partial(setattr, self, "table", deepcopy(self.table))

    def next(self) -> str:
        """Return a statement, or several that belong together."""
        kind = self._random.random()
        if kind < 0.6:
            return self._row()
        return self._of_partitions() if kind < 0.75 or not self._can_hold else self._of_columns()

    def _row(self) -> str:
        random, kind = self._random, self._random.random()
        table = self.table.root if random.random() < 0.75 else random.choice(_LEAVES)
        where = random.choice(("true", f"id = {self._id()}", f"k = {self._k()}", f"id < {self._id()}"))
        if kind < 0.45:
            names = [name for name in self.table.columns if random.random() < 0.7]
            values = [str(self._id()), str(self._k()), *map(self._value, names)]
            return f"INSERT INTO {table} ({', '.join(['id', 'k', *names])}) VALUES ({', '.join(values)})"
        if kind < 0.6 or not self.table.columns:
            return f"UPDATE {table} SET {random.choice(('k', 'id'))} = {self._k()} WHERE {where}"
        if kind < 0.8:
            name = random.choice(list(self.table.columns))
            return f"UPDATE {table} SET {name} = {self._value(name)} WHERE {where}"
        if kind < 0.93:
            return f"DELETE FROM {table} WHERE {where}"
        return f"TRUNCATE {random.choice((table, f'{table}, other', f'ONLY {table}'))}"

    def _of_partitions(self) -> str:
        random, root = self._random, self.table.root
        part = random.choice((*_LEAVES, "two"))
        parent = "two" if part in ("two_x", "two_y") else root
        detach = f"ALTER TABLE {parent} DETACH PARTITION {part}"
        attach = f"ALTER TABLE {parent} ATTACH PARTITION {part} {_BOUNDS[part]}"
        new = f"CREATE TABLE {part} PARTITION OF {parent} {_BOUNDS[part]}"
        kind = random.random()
        if kind < 0.3:
            emptied = f"DELETE FROM {part}; TRUNCATE {part}; {detach}"
            return random.choice((detach, emptied, f"{detach} CONCURRENTLY", f"{detach}; {attach}"))
        if kind < 0.6:
            return random.choice((attach, f"TRUNCATE {part}; {attach}", f"DELETE FROM {part}; {attach}"))
        if kind < 0.75:
            return random.choice((f"DROP TABLE {part}", f"DROP TABLE {part}; {new}", new))
        if kind < 0.85:
            identity = random.choice(("FULL", "DEFAULT", *("NOTHING",) * self._can_hold))
            return f"ALTER TABLE {random.choice((part, root))} REPLICA IDENTITY {identity}"
        if kind < 0.9 and self._can_hold:
            return f"ALTER TABLE {part} SET {random.choice(('UNLOGGED', 'LOGGED'))}"
        if kind < 0.95:
            return random.choice((f"VACUUM FULL {part}", f"CLUSTER {part} USING {part}_pkey", f"ANALYZE {root}"))
        return f"CREATE TABLE {part} (LIKE {root} INCLUDING ALL); INSERT INTO {part} (id, k) VALUES ({self._id()}, 7)"

    def _of_columns(self) -> str:
        random, tree = self._random, self.table
        alter = f"ALTER TABLE {tree.root}"
        kind = random.random()
        if kind < 0.4 or not tree.columns:
            tree.made += 1
            name, type = random.choice((f"c{tree.made}", "v")), random.choice(list(_TYPES))
            tree.columns[name] = type
            default = random.choice(("", f" DEFAULT {random.choice(_TYPES[type])}"))
            return f"{alter} ADD {name} {type}{default}"
        name = random.choice(list(tree.columns))
        if kind < 0.55:
            del tree.columns[name]
            return f"{alter} DROP {name}"
        if kind < 0.7:
            tree.made += 1
            new = random.choice((f"c{tree.made}", "v"))
            tree.columns[new] = tree.columns.pop(name)
            return f"{alter} RENAME {name} TO {new}"
        if kind < 0.85:
            tree.columns[name] = random.choice(("text", "numeric(8,2)"))
            return f"{alter} ALTER {name} DROP DEFAULT, ALTER {name} TYPE {tree.columns[name]}"
        before, tree.made = tree.root, tree.made + 1
        tree.root = f"a{tree.made}"
        return f"ALTER TABLE {before} RENAME TO {tree.root}"

    def _id(self) -> int:
        return self._random.randint(1, 6)

    def _k(self) -> int:
        return self._random.randint(0, 8)

    def _value(self, column: str) -> str:
        return self._random.choice(("NULL", *_TYPES[self.table.columns[column]]))

"""Publication generator: random rows of four tables, and changes of what a publication sends of them, by seed."""

from random import Random
from typing import Final

#: what the statements need
SETUP: Final = """
CREATE SCHEMA s; CREATE SCHEMA other;
CREATE TABLE a (id int PRIMARY KEY, v text, n int);
CREATE TABLE b (id int PRIMARY KEY, v text, n int);
CREATE TABLE s.c (id int PRIMARY KEY, v text, n int);
CREATE TABLE s.d (id int NOT NULL, v text, n int NOT NULL, UNIQUE (id));
ALTER TABLE s.d REPLICA IDENTITY USING INDEX d_id_key;
"""
TABLES: Final = ("a", "b", "s.c", "s.d")
#: how the publication begins, and which rows of each table it has, if not all
PUBLICATIONS: Final[dict[str, tuple[str, dict[str, str]]]] = {
    "tables": ("FOR TABLE a, b, s.c, s.d", {}),
    "filter": ("FOR TABLE a WHERE (id > 3), b, s.c WHERE (id % 2 = 0), s.d", {"a": "id > 3", "s.c": "id % 2 = 0"}),
    "columns": ("FOR TABLE a (id, v), b, s.c (n, id), s.d", {}),
    "schema": ("FOR TABLE a, b, TABLES IN SCHEMA s", {}),
    "all": ("FOR ALL TABLES", {}),
}
_TERMS: Final = ("", "", " (id, v)", " (id, v, n)", " WHERE (id > 3)", " WHERE (id > 0)", " (id, n) WHERE (id < 5)")
_OPTIONS: Final = (
    "publish = 'insert'",
    "publish = 'insert, update, delete, truncate'",
    "publish = 'insert, update, delete'",
    "publish_via_partition_root = true",
    "publish_via_partition_root = false",
)
_OF_TABLE: Final = (
    "ALTER PUBLICATION mine DROP TABLE {t}",
    "ALTER PUBLICATION mine DROP TABLE {t}; ALTER PUBLICATION mine ADD TABLE {t}",
    "ALTER PUBLICATION mine ADD TABLE {t}{terms}",
    "ALTER PUBLICATION mine ADD TABLE {t}{terms}",
    "ALTER TABLE {t} SET SCHEMA {schema}",
    "ALTER TABLE {t} SET UNLOGGED",
    "ALTER TABLE {t} SET LOGGED",
    "ALTER TABLE {t} REPLICA IDENTITY FULL",
    "ALTER TABLE {t} REPLICA IDENTITY DEFAULT",
    "ALTER TABLE {t} REPLICA IDENTITY NOTHING",
    "DROP TABLE {t}; CREATE TABLE {t} (id int PRIMARY KEY, v text, n int)",
    "DROP TABLE {t}; CREATE TABLE {t} (id int PRIMARY KEY, v text, n int); INSERT INTO {t} VALUES (9, 'new', 9)",
    "ALTER TABLE {t} ADD m int",
    "ALTER TABLE {t} DROP m",
)


class PublicationStatements:
    """``touched``: tables that something was done to, by their first name. ``is_replaced``: the publication as a whole
    may have been another for a time."""

    def __init__(self, random: Random, kind: str) -> None:
        self.touched: set[str] = set()
        self.is_replaced = False
        self._random = random
        self._begin = PUBLICATIONS[kind][0]

    def next(self, names: dict[str, str]) -> str:
        """Return a statement, or several that belong together. ``names``: of the tables that are there, as they are."""
        random = self._random
        first = random.choice(sorted(names))
        table, kind = names[first], random.random()
        if kind < 0.65:
            return self._row(table)
        if kind < 0.88:
            self.touched.add(first)
            terms, schema = random.choice(_TERMS), random.choice(("s", "other", "public"))
            return random.choice(_OF_TABLE).format(t=table, terms=terms, schema=schema)
        if kind < 0.92:
            self.touched |= {"s.c", "s.d", first}
            return f"ALTER PUBLICATION mine {random.choice(('ADD', 'DROP'))} TABLES IN SCHEMA s"
        if kind < 0.96:
            self.touched |= set(TABLES)
            some = ", ".join(f"{name}{random.choice(_TERMS)}" for name in names.values() if random.random() < 0.8)
            return f"ALTER PUBLICATION mine SET TABLE {some or table}"
        self.is_replaced = True
        again = f"DROP PUBLICATION mine; CREATE PUBLICATION mine {self._begin}"
        return random.choice((*(f"ALTER PUBLICATION mine SET ({option})" for option in _OPTIONS), again))

    def _row(self, table: str) -> str:
        random, id = self._random, self._random.randint(1, 8)
        value = random.choice(("NULL", "'x'", "'y'", "repeat('long', 2000)"))
        return random.choice(
            (
                f"INSERT INTO {table} (id, v, n) VALUES ({id}, {value}, {random.randint(0, 9)})",
                f"INSERT INTO {table} (id, v, n) VALUES ({id}, {value}, {random.randint(0, 9)})",
                f"UPDATE {table} SET n = n + 1 WHERE id <= {id}",
                f"UPDATE {table} SET v = {value} WHERE id = {id}",
                f"UPDATE {table} SET id = {random.randint(1, 8)} WHERE id = {id}",
                f"DELETE FROM {table} WHERE id = {id}",
                f"TRUNCATE {table}" if random.random() < 0.3 else f"DELETE FROM {table} WHERE n = {id}",
            )
        )

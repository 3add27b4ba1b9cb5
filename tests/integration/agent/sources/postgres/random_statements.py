"""Statement generator: random rows and schema changes of one table, of most types, by seed.

It keeps the columns, key and name that the table has after the statements that have succeeded, so that most of the next
ones make sense; some fail all the same, and are undone.
"""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Final

from tests.integration.agent.sources.postgres.repack import REPACK

#: what the statements need
SETUP: Final = f"""{REPACK}
CREATE TYPE mood AS ENUM ('sad', 'my mood');
CREATE DOMAIN pos AS int CHECK (value > 0);
CREATE TYPE host AS (at inet, name text);
CREATE SEQUENCE numbers;
CREATE TABLE a (id int PRIMARY KEY, v text, n int);
ALTER TABLE a ALTER v SET STORAGE EXTERNAL;
"""
_LONG: Final = "(SELECT string_agg(md5(i::text), '') FROM generate_series(1, 200) i)"
#: type → some of its values
_VALUES: Final = {
    "int": ("1", "-2", "77"),
    "bigint": ("3", "9000000000"),
    "smallint": ("4",),
    "text": ("'x'", "'long' || repeat('z', 10)", _LONG),
    "varchar(5)": ("'ab'", "'cd'"),
    "char(4)": ("'q'", "'abcd'"),
    "numeric(8,2)": ("1.5", "2.25", "-3"),
    "numeric": ("1.50", "'NaN'", "123456789012345678901234567890123456789012.5"),
    "float8": ("1.5", "'NaN'", "-0.0"),
    "money": ("1.5",),
    "date": ("'2020-01-01'", "'infinity'", "'0044-03-15 BC'"),
    "time": ("'10:00'", "'24:00'"),
    "timestamp": ("'2020-01-01 10:00:00.5'", "'-infinity'"),
    "timestamptz": ("'2020-01-01 10:00:00+05'",),
    "boolean": ("true", "false"),
    "jsonb": ("'{\"a\": 1}'", "'[1, 2]'"),
    "inet": ("'1.2.3.4'", "'::1/64'"),
    "uuid": ("'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'",),
    "bytea": ("'\\x00ff'",),
    "int[]": ("'{1,2}'", "'[2:3]={4,5}'"),
    "box": ("'(1,2),(3,4)'",),
    "tsrange": ("'[2020-01-01,2020-02-01)'",),
    "mood": ("'sad'", "'my mood'"),
    "pos": ("5", "6"),
    "host": ("'(1.2.3.4,x)'",),
}
#: type → defaults that differ from row to row
_COMPUTED: Final = {
    "int": "(random() * 100)::int",
    "bigint": "nextval('numbers')",
    "float8": "random()",
    "uuid": "gen_random_uuid()",
    "text": "md5(random()::text)",
    "timestamp": "clock_timestamp()::timestamp",
}
_CHANGES: Final = (
    *("add", "add", "add", "add again", "add key", "drop", "rename", "exchange", "type", "default", "not null"),
    *("key", "identity", "rename table", "rewrite", "two"),
)


@dataclass
class Table:
    """``columns``: name → type."""

    name: str = "a"
    columns: dict[str, str] = field(default_factory=lambda: {"id": "int", "v": "text", "n": "int"})
    key: tuple[str, ...] = ("id",)
    #: names that were made so far
    made: int = 0


class Statements:
    """``table``: as the statements so far have left it."""

    def __init__(self, random: Random) -> None:
        self.table = Table()
        self._random = random

    def undo(self) -> Callable[[], None]:
        """Return what brings ``table`` back to what it is now."""
        return partial(setattr, self, "table", deepcopy(self.table))

    def next(self) -> str:
        """Return a statement, or several that belong together."""
        return self._row() if self._random.random() < 0.6 else self._change()

    # Rows

    def _row(self) -> str:
        random, table = self._random, self.table
        if random.random() < 0.5:
            names = [name for name in table.columns if name in table.key or random.random() < 0.6]
            values = ", ".join(map(self._value, names))
            return f"INSERT INTO {table.name} ({', '.join(names)}) VALUES ({values}) ON CONFLICT DO NOTHING"
        first = table.key[0]
        some = ("true", f"{first}::text < '5'", f"{first}::text > '3'", f"ctid = (SELECT min(ctid) FROM {table.name})")
        where, kind = random.choice(some), random.random()
        name = self._column(with_key=random.random() < 0.2)
        if kind < 0.8 and name:
            return f"UPDATE {table.name} SET {name} = {self._value(name)} WHERE {where}"
        return f"DELETE FROM {table.name} WHERE {where}" if kind < 0.97 else f"TRUNCATE {table.name}"

    def _value(self, column: str) -> str:
        type = self.table.columns[column]
        if column in self.table.key and type in ("int", "bigint"):
            return str(self._random.randint(1, 8))
        if column not in self.table.key and self._random.random() < 0.2:
            return "NULL"
        return self._random.choice(_VALUES[type])

    def _column(self, *, with_key: bool = False) -> str:
        """Return a column's name; empty if there is none but those of the key."""
        names = [name for name in self.table.columns if with_key or name not in self.table.key]
        return self._random.choice(names) if names else ""

    # Schema changes

    def _change(self) -> str:
        kind, column = self._random.choice(_CHANGES), self._column()
        match kind:
            case "add":
                return self._add()
            case "add key":
                return self._add_key()
            case "rename table":
                before, self.table.name = self.table.name, self._made("b")
                return f"ALTER TABLE {before} RENAME TO {self.table.name}"
            case "rewrite":
                name = self.table.name
                kinds = (
                    f"VACUUM FULL {name}",
                    f"CLUSTER {name} USING a_pkey",
                    f"ANALYZE {name}",
                    f"CALL repack('{name}')",
                )
                return self._random.choice(kinds)
            case "two":
                return f"{self._change()}; {self._change()}"
            case _:
                return self._change_of(column, kind) if column else "SELECT 1"

    def _change_of(self, column: str, kind: str) -> str:
        random, table = self._random, self.table
        alter = f"ALTER TABLE {table.name}"
        match kind:
            case "drop":
                del table.columns[column]
                return f"{alter} DROP {column}"
            case "add again":
                table.columns[column] = random.choice((table.columns[column], random.choice(list(_VALUES))))
                return f"{alter} DROP {column}, ADD {column} {table.columns[column]}"
            case "rename":
                new = self._name()
                table.columns[new] = table.columns.pop(column)
                return f"{alter} RENAME {column} TO {new}"
            case "exchange":
                return self._exchange(column)
            case "type":
                return self._retype(column)
            case "default":
                value = random.choice(_VALUES[table.columns[column]])
                return f"{alter} ALTER {column} {random.choice(('DROP DEFAULT', f'SET DEFAULT {value}'))}"
            case "not null":
                return f"{alter} ALTER {column} {random.choice(('DROP', 'SET'))} NOT NULL"
            case "key":
                table.key = (column,) if random.random() < 0.6 else (*table.key, column)
                names = ", ".join(table.key)
                return f"{alter} DROP CONSTRAINT IF EXISTS a_pkey, ADD CONSTRAINT a_pkey PRIMARY KEY ({names})"
            case "identity":
                return self._identity(column)
        raise AssertionError(kind)

    def _add(self) -> str:
        random, name, type = self._random, self._name(), self._random.choice(list(_VALUES))
        value = random.choice(_VALUES[type])
        computed = _COMPUTED.get(type, value) if random.random() < 0.2 else value
        default = random.choice(("", "", f" DEFAULT {computed}", f" NOT NULL DEFAULT {value}"))
        self.table.columns[name] = type
        added = f"ALTER TABLE {self.table.name} ADD {name} {type}{default}"
        if random.random() >= 0.3:
            return added
        later = random.choice(("DROP DEFAULT", f"SET DEFAULT {random.choice(_VALUES[type])}"))
        return f"{added}; ALTER TABLE {self.table.name} ALTER {name} {later}"

    def _add_key(self) -> str:
        name = self._name()
        self.table.columns[name], self.table.key = "bigint", (name,)
        type = self._random.choice(("bigserial", "bigint GENERATED ALWAYS AS IDENTITY"))
        key = f"DROP CONSTRAINT IF EXISTS a_pkey, ADD {name} {type}, ADD CONSTRAINT a_pkey PRIMARY KEY ({name})"
        return f"ALTER TABLE {self.table.name} {key}"

    def _exchange(self, one: str) -> str:
        other, columns = self._column(), self.table.columns
        if one == other:
            return "SELECT 1"
        columns[one], columns[other] = columns[other], columns[one]
        renames = ((one, "between"), (other, one), ("between", other))
        return "; ".join(f"ALTER TABLE {self.table.name} RENAME {old} TO {new}" for old, new in renames)

    def _retype(self, column: str) -> str:
        type = self._random.choice(list(_VALUES))
        self.table.columns[column] = type
        using = ("", "", "", f" USING {column}::text::{type}", f" USING {self._random.choice(_VALUES[type])}::{type}")
        return (
            f"ALTER TABLE {self.table.name} ALTER {column} DROP DEFAULT, "
            f"ALTER {column} TYPE {type}{self._random.choice(using)}"
        )

    def _identity(self, column: str) -> str:
        alter, index = f"ALTER TABLE {self.table.name}", self._made("i")
        by_index = f"CREATE UNIQUE INDEX {index} ON {self.table.name} ({column}); {alter} REPLICA IDENTITY USING INDEX"
        return self._random.choice(
            (
                f"{alter} REPLICA IDENTITY FULL",
                f"{alter} REPLICA IDENTITY DEFAULT",
                f"{alter} ALTER {column} SET NOT NULL; {by_index} {index}",
            )
        )

    def _name(self) -> str:
        """Return a new column's name, often one that there was before."""
        made = self._made("c")
        return self._random.choice((made, made, "back", "v", "n"))

    def _made(self, prefix: str) -> str:
        self.table.made += 1
        return f"{prefix}{self.table.made}"

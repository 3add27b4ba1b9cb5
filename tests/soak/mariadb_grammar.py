"""Grammar of MariaDB and MySQL for a soak: random schema changes and literals, as migrations and tools write them."""

import random
import re
from collections.abc import Sequence

from tests.soak import literals
from tests.soak.bodies import body
from tests.soak.source import Column, Table

STRICT = "STRICT_TRANS_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION"

_INTEGERS = {"tinyint": 8, "smallint": 16, "mediumint": 24, "int": 32, "bigint": 64}
_KEYS = (
    *("int", "bigint unsigned", "varchar(20)", "uuid", "date", "decimal(10,2)", "smallint", "varbinary(8)"),
    "datetime(3)",
)
_TYPES = (
    *("tinyint", "tinyint unsigned", "smallint", "smallint unsigned", "mediumint", "int", "int unsigned"),
    *("int(6) zerofill", "bigint", "bigint unsigned", "float", "double", "decimal(10,2)", "decimal(12,4)"),
    *("decimal(38,10)", "decimal(5,0)", "bit(1)", "bit(12)", "year", "date", "time", "time(3)", "datetime"),
    *("datetime(3)", "datetime(6)", "timestamp(2) null", "char(5)", "char(12)", "varchar(10)", "varchar(40)"),
    *("varchar(40) character set latin1", "text", "tinytext", "mediumtext", "binary(6)", "varbinary(10)"),
    *("varbinary(30)", "blob", "tinyblob", "longblob", "json", "uuid", "inet4", "inet6"),
    *("enum('a','B','é')", "enum('a','b','c','d')", "set('x','y','z')"),
)
#: other spellings of types
_SYNONYMS = {
    "tinyint": ("int1", "tinyint(2)"),
    "smallint": ("int2", "smallint(5) signed"),
    "mediumint": ("int3", "middleint"),
    "int": ("integer", "int4", "int(11)"),
    "bigint": ("int8", "bigint(20)"),
    "float": ("float(12)", "float4"),
    "double": ("double precision", "real", "float8", "float(40)"),
    "decimal(10,2)": ("dec(10,2)", "numeric(10,2)", "fixed(10,2)", "numeric(10, 2) signed"),
    "decimal(5,0)": ("dec(5)", "numeric(5)"),
    "bit(1)": ("bit",),
    "year": ("year(4)",),
    "char(5)": ("character(5)", "nchar(5)", "national character(5)"),
    "varchar(10)": ("character varying(10)", "char varying(10)", "nvarchar(10)", "national varchar(10)"),
    "text": ("text(1000)",),
    "tinytext": ("text(60)",),
    "mediumtext": ("long varchar", "long", "text(70000)"),
    "binary(6)": ("char(6) byte",),
    "varbinary(10)": ("varchar(10) byte",),
    "tinyblob": ("blob(100)",),
    "blob": ("blob(1000)",),
}
_CHARSETS = ("utf8mb4", "latin1", "utf8mb3", "ucs2")
_COLLATIONS = ("utf8mb4_bin", "utf8mb4_general_ci", "latin1_german2_ci", "utf8mb4_unicode_ci", "cp1251_general_ci")


def statement(rng: random.Random, tables: Sequence[Table], name: str) -> str:
    """Return a schema change of one of ``tables``, or one that creates table ``name``."""
    if len(tables) < 4 or (len(tables) < 12 and rng.random() < 0.1):
        return _create(rng, tables, name)
    table, at, new = (one := rng.choice(tables)), f"`{one.name}`", f"`{name}`"
    kind = rng.random()
    if kind < 0.03:
        return rng.choice([f"DROP TABLE {at}", f"DROP TABLE IF EXISTS {at}, `{rng.choice(tables).name}`, nowhere"])
    if kind < 0.07:
        return rng.choice([f"TRUNCATE TABLE {at}", f"TRUNCATE {at}", f"DELETE FROM {at}"])
    if kind < 0.12:
        return _replace(rng, at)
    if kind < 0.20:
        return _move_names(rng, at, f"`{rng.choice(tables).name}`", new)
    if kind < 0.22:
        return f"CREATE TABLE {new} (PRIMARY KEY (id)) AS SELECT * FROM {at}"
    if kind < 0.25:
        key = ", ".join(f"`{one.name}`" for one in rng.sample(table.columns, min(2, len(table.columns))))
        return f"ALTER TABLE {at} DROP PRIMARY KEY, ADD PRIMARY KEY ({key})"
    if kind < 0.30:
        return _of_partitions(rng, at, f"`{rng.choice(tables).name}`")
    if kind < 0.33:
        return _of_others(rng, at, new)
    changes = [_alteration(rng, table, name) for _ in range(rng.choices([1, 2, 3], [6, 2, 1])[0])]
    if rng.random() < 0.04:
        changes.append(f"RENAME TO {new}")
    alter = rng.choices(
        ["ALTER TABLE", "ALTER ONLINE TABLE", "ALTER TABLE IF EXISTS", "ALTER IGNORE TABLE"], [30, 1, 1, 1]
    )
    return f"{alter[0]} {at} {', '.join(changes)}"


def respelled(rng: random.Random, statement: str) -> str:
    """Change the case of keywords and insert comments; text in quotes stays."""
    parts = re.split(r"('(?:[^']|'')*'|`[^`]*`)", statement)
    case = rng.choice(["as it is", "lower", "upper"])
    respell = {"lower": str.lower, "upper": str.upper}.get(case, str)
    text = "".join(part if index % 2 else respell(part) for index, part in enumerate(parts))
    if rng.random() < 0.05 and " " in text:
        first, _, rest = text.partition(" ")
        text = rng.choice(
            [f"{first} /*! */ {rest}", f"/*!40000 {first} */ {rest}", f"{first}\t/* a'b */\n{rest} -- end"]
        )
    return rng.choice(["", "", "", "/* soak */ ", "-- soak\n", "# soak\n"]) + text


def literal(rng: random.Random, type: str) -> str:
    kind, numbers = kind_of(type), [] if type.startswith(("enum", "set")) else _numbers(type)
    if kind in _INTEGERS:
        bits = _INTEGERS[kind]
        is_unsigned = "unsigned" in type or "zerofill" in type
        return (
            literals.integer(rng, 0, 2**bits - 1)
            if is_unsigned
            else literals.integer(rng, -(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        )
    digits = numbers[0] if numbers else 0
    match kind:
        case "decimal":
            return literals.decimal(rng, *(numbers if len(numbers) == 2 else [digits, 0]))
        case "float" | "double":
            return literals.real(rng)
        case "bit":
            return f"b'{rng.randint(0, 2**digits - 1):b}'"
        case "year":
            return str(rng.randint(1901, 2155))
        case "date":
            return f"'{literals.date(rng)}'"
        case "time":
            return f"'{rng.choice(['', '-', '1'])}{literals.time(rng, digits)}'"
        case "datetime" | "timestamp":
            return f"'{literals.date(rng)} {literals.time(rng, digits)}'"
        case "char" | "varchar":
            return literals.text(rng, digits)
        case "text" | "mediumtext" | "tinytext" | "longtext":
            return (
                "'{\"a\": [1, null]}'"
                if rng.random() < 0.2
                else literals.long_text(rng)
                if kind != "tinytext"
                else "'t'"
            )
        case "json":
            return f"'{{\"k\": {rng.randint(0, 9)}}}'"
        case "binary" | "varbinary":
            return f"x'{literals.hexadecimal(rng, digits)}'"
        case "blob" | "tinyblob" | "mediumblob" | "longblob":
            return f"x'{literals.hexadecimal(rng, 12)}'"
        case "uuid":
            return f"'{literals.identifier(rng)}'"
        case "inet4":
            return f"'{literals.address(rng)}'"
        case "inet6":
            return f"'2001:db8::{rng.randint(1, 60000):x}'"
        case "enum":
            return f"'{rng.choice(re.findall(chr(39) + '([^' + chr(39) + ']*)' + chr(39), type))}'"
        case "set":
            return f"'{','.join(sorted({rng.choice('xyz') for _ in range(rng.randint(0, 3))}))}'"
    return "1"


def kind_of(type: str) -> str:
    return re.split(r"[^a-z0-9]", type)[0]


def _numbers(type: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", type.partition("(")[2].partition(")")[0])]


def _create(rng: random.Random, tables: Sequence[Table], name: str) -> str:
    if tables and rng.random() < 0.2:
        return f"CREATE TABLE `{name}` LIKE `{rng.choice(tables).name}`"
    return f"CREATE TABLE `{name}` {_body(rng)}"


def _replace(rng: random.Random, at: str) -> str:
    rows = "SELECT seq AS id, seq * 2 AS twice FROM seq_1_to_20"
    return rng.choice(
        [
            f"CREATE OR REPLACE TABLE {at} {_body(rng)}",
            f"DROP TABLE {at};; CREATE TABLE {at} {_body(rng)}",
            f"CREATE OR REPLACE TABLE {at} (PRIMARY KEY (id)) AS {rows}",
        ]
    )


def _move_names(rng: random.Random, at: str, other: str, new: str) -> str:
    """Return what migrations and tools do to names."""
    copy = new.replace("t", "_gho", 1)
    return rng.choice(
        [
            f"RENAME TABLE {at} TO {new}",
            f"ALTER TABLE {at} RENAME {new}",
            f"RENAME TABLE {at} TO swap_, {other} TO {at}, swap_ TO {other}",
            f"RENAME TABLE {at} TO {new}, {other} TO {at}",
            f"RENAME TABLE {at} TO {new};; CREATE TABLE {at} LIKE {new};; INSERT INTO {at} SELECT * FROM {new}",
            f"CREATE TABLE {copy} LIKE {at};; ALTER TABLE {copy} ADD q{new.strip('`')} {_definition(rng)} FIRST, "
            f"ALGORITHM = COPY;; RENAME TABLE {at} TO {new}, {copy} TO {at};; DROP TABLE {new}",
        ]
    )


def _of_partitions(rng: random.Random, at: str, other: str) -> str:
    low, high = sorted(rng.sample(range(1, 200), 2))
    ranges = (
        f"p0 VALUES LESS THAN ({low}), PARTITION p1 VALUES LESS THAN ({high}), PARTITION p2 VALUES LESS THAN MAXVALUE"
    )
    one = rng.choice(["p0", "p1", "p2"])
    return f"ALTER TABLE {at} " + rng.choice(
        [
            "PARTITION BY KEY () PARTITIONS 3",
            "PARTITION BY HASH (id) PARTITIONS 4",
            f"PARTITION BY RANGE (id) (PARTITION {ranges})",
            f"PARTITION BY RANGE COLUMNS (id) (PARTITION {ranges.replace('MAXVALUE', '(MAXVALUE)')})",
            "REMOVE PARTITIONING",
            f"TRUNCATE PARTITION {one}",
            f"DROP PARTITION {one}",
            "COALESCE PARTITION 1",
            "ADD PARTITION PARTITIONS 2",
            f"REORGANIZE PARTITION p0, p1 INTO (PARTITION p1 VALUES LESS THAN ({high}))",
            f"REBUILD PARTITION {one}",
            f"EXCHANGE PARTITION {one} WITH TABLE {other}",
        ]
    )


def _of_others(rng: random.Random, at: str, new: str) -> str:
    """Return statements that leave replicated tables as they are."""
    return rng.choice(
        [
            f"CREATE TEMPORARY TABLE {at} (id int PRIMARY KEY, z int);; INSERT INTO {at} VALUES (1, 1);; "
            f"ALTER TABLE {at} ADD q int;; TRUNCATE TABLE {at};; DROP TEMPORARY TABLE {at}",
            f"ALTER DATABASE soak CHARACTER SET {rng.choice(_CHARSETS)}",
            f"CREATE OR REPLACE VIEW v{new.strip('`')} AS SELECT * FROM {at};; DROP VIEW v{new.strip('`')}",
            f"CREATE TRIGGER r{new.strip('`')} BEFORE INSERT ON {at} FOR EACH ROW SET @x = 1",
            f"LOCK TABLES {at} WRITE;; ALTER TABLE {at} ADD l{new.strip('`')} {_definition(rng)};; UNLOCK TABLES",
            f"OPTIMIZE TABLE {at}",
            f"ANALYZE TABLE {at}",
            f"CREATE SEQUENCE s{new.strip('`')}",
            f"ALTER TABLE {at} DISABLE KEYS",
        ]
    )


def _body(rng: random.Random) -> str:
    items = body(rng, _KEYS, _definition)
    charset = rng.choice(["", f"CHARACTER SET {rng.choice(_CHARSETS)}", f"COLLATE {rng.choice(_COLLATIONS)}"])
    return f"{items} {charset}".rstrip()


def _definition(rng: random.Random) -> str:
    type = rng.choice(_TYPES)
    if "null" in type:
        return type
    text = rng.choice((type, *_SYNONYMS[type])) if type in _SYNONYMS and rng.random() < 0.3 else type
    if kind_of(type) in ("char", "varchar", "text") and " " not in text and rng.random() < 0.1:
        text += rng.choice([f" COLLATE {rng.choice(_COLLATIONS)}", f" CHARACTER SET {rng.choice(_CHARSETS)}"])
    if rng.random() < 0.03:
        text += " INVISIBLE"
    text += rng.choice(["", "", " NULL", " NOT NULL"])
    if rng.random() < 0.4:
        text += f" DEFAULT {literal(rng, type)}"
    return text


def _alteration(rng: random.Random, table: Table, name: str) -> str:
    column = rng.choice(table.columns)
    at = f"`{column.name}`"
    place = rng.choice(["", "", " FIRST", f" AFTER {at}"])
    kind = rng.random()
    if kind < 0.1:
        return _attribute(rng, column)
    if kind < 0.35:
        return f"ADD COLUMN {rng.choice(['', 'IF NOT EXISTS '])}`x{name}{rng.randint(0, 9)}` {_definition(rng)}{place}"
    if kind < 0.37:
        return f"ADD `g{name}` {_generated(rng, at)}{place}"
    if kind < 0.5:
        return f"DROP COLUMN {at}"
    if kind < 0.75:
        return f"MODIFY {at} {_definition(rng)}{place}"
    if kind < 0.85:
        return f"CHANGE {at} `y{name}` {_definition(rng) if rng.random() < 0.5 else column.type}"
    if kind < 0.9:
        return f"RENAME COLUMN {at} TO `z{name}`"
    if kind < 0.93:
        return f"CONVERT TO CHARACTER SET {rng.choice(_CHARSETS)}"
    if kind < 0.94:
        return f"DEFAULT CHARACTER SET {rng.choice(_CHARSETS)}"
    if kind < 0.96:
        return f"ADD COLUMN (`x{name}a` {_definition(rng)}, `x{name}b` {_definition(rng)})"
    if kind < 0.98:
        return rng.choice([f"ADD INDEX ({at})", f"ADD UNIQUE ({at})", "DROP PRIMARY KEY", f"ADD PRIMARY KEY ({at})"])
    return rng.choice(
        ["ENGINE = InnoDB", "FORCE", "ALGORITHM = COPY", f"ADD CONSTRAINT c{name} CHECK ({at} IS NOT NULL)"]
    )


def _generated(rng: random.Random, of: str) -> str:
    definition = rng.choice(
        [f"int AS (length({of}))", f"varchar(90) AS (concat({of}, '-', id))", f"varchar(9) AS (left({of}, 3))"]
    )
    return f"{definition} {rng.choice(['VIRTUAL', 'STORED'])}"


def _attribute(rng: random.Random, column: Column) -> str:
    """Return a change of a column that keeps its type."""
    at, default = f"`{column.name}`", literal(rng, column.type)
    return rng.choice(
        [
            f"MODIFY {at} {column.type} NOT NULL",
            f"MODIFY {at} {column.type} NULL DEFAULT {default}",
            f"MODIFY {at} {column.type} NOT NULL DEFAULT {default}",
            f"ALTER COLUMN {at} SET DEFAULT {default}",
            f"ALTER COLUMN {at} DROP DEFAULT",
        ]
    )

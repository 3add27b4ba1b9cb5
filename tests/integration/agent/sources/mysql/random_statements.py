"""Statement generator: random rows and schema changes of a few tables, of most types, by seed.

What the tables have is read from the server after each statement (``read_tables``), so that most of the next ones make
sense; some fail all the same.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, Final

_NAMES: Final = ("t", "u", "w")
_COLUMNS: Final = ("v", "n", "a", "b", "c", "d", "back")
#: type → some of its values
_VALUES: Final = {
    "int": ("1", "-2", "77", "'5'"),
    "bigint unsigned": ("3", "18446744073709551615"),
    "smallint": ("4", "-5"),
    "tinyint(1)": ("1", "0"),
    "mediumint zerofill": ("12",),
    "decimal(8,2)": ("1.5", "2.25", "-3"),
    "float": ("1.5", "-2"),
    "double": ("1.5e10", "0.1"),
    "bit(9)": ("b'101'", "b'100000001'"),
    "year": ("2020", "1970"),
    "date": ("'2020-01-01'", "'1000-12-31'", "'0000-00-00'", "'2020-00-10'"),
    "time": ("'10:00'", "'-838:59:59'"),
    "time(3)": ("'10:00:00.125'",),
    "datetime": ("'2020-01-01 10:00:00'", "'0000-00-00 00:00:00'"),
    "datetime(3)": ("'2020-01-01 10:00:00.125'",),
    "timestamp NULL": ("'2020-01-01 10:00:00'", "'0000-00-00 00:00:00'"),
    "timestamp(2) NULL": ("'2020-06-01 10:00:00.25'",),
    "varchar(20)": ("'x'", "''", "'ab '", "'é'", "repeat('y', 20)"),
    "varchar(300)": ("'x'", "repeat('z', 290)"),
    "varchar(20) CHARACTER SET latin1": ("'q'", "'ü'"),
    "char(5)": ("'q'", "'abcd '"),
    "char(3) CHARACTER SET utf8mb4": ("'é'",),
    "varchar(9) COLLATE utf8mb4_bin": ("'A'", "'a'"),
    "text": ("'text'", "repeat('long', 100)"),
    "tinytext": ("'tiny'",),
    "mediumtext CHARACTER SET ucs2": ("'wide'",),
    "binary(4)": ("'ab'", "x'00ff'"),
    "varbinary(10)": ("'ab'", "x'ff00'"),
    "blob": ("'blob'", "repeat('b', 300)"),
    "enum('x','y','z')": ("'x'", "'z'"),
    "enum('z','ü')": ("'z'", "'ü'"),
    "set('a','b')": ("'a,b'", "''"),
    "json": ("'{\"a\": 1}'", "'[1, 2]'"),
}
_MARIADB: Final = {
    "uuid": ("'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'",),
    "inet6": ("'::1'", "'1:2::3'"),
    "varchar(20) COMPRESSED": ("'packed'",),
}
_KEY_TYPES: Final = ("int", "bigint", "varchar(20)", "smallint", "int unsigned")
#: ways in which a definition may end; of columns that are added, also what older rows get
_COMPUTED: Final = ("(1 + 2)", "(concat('a', 'b'))", "(current_date)", "(uuid())", "(rand())")
_MODES: Final = (
    *("", "STRICT_TRANS_TABLES", "STRICT_ALL_TABLES,NO_ZERO_DATE,NO_ZERO_IN_DATE"),
    *("NO_BACKSLASH_ESCAPES", "PAD_CHAR_TO_FULL_LENGTH", "PIPES_AS_CONCAT"),
)
_MARIADB_MODES: Final = ("EMPTY_STRING_IS_NULL", "TIME_ROUND_FRACTIONAL")
_PARTITIONS: Final = (
    "PARTITION BY RANGE ({key}) (PARTITION p0 VALUES LESS THAN (4), PARTITION p1 VALUES LESS THAN MAXVALUE)"
)
_IMAGES: Final = ("FULL", "FULL", "MINIMAL", "NOBLOB")


@dataclass(frozen=True, slots=True)
class Table:
    """``columns``: name → type; ``generated`` ones take no values."""

    columns: Mapping[str, str]
    key: tuple[str, ...]
    generated: frozenset[str]
    indexes: tuple[str, ...]
    is_partitioned: bool


def read_tables(cursor: Any) -> dict[str, Table]:
    """The tables of the session's database."""
    cursor.execute("SELECT table_name, create_options FROM information_schema.tables WHERE table_schema = DATABASE()")
    options = dict(cursor.fetchall())
    cursor.execute(
        "SELECT table_name, column_name, column_type, generation_expression <> '' FROM information_schema.columns "
        "WHERE table_schema = DATABASE() ORDER BY ordinal_position"
    )
    columns = cursor.fetchall()
    cursor.execute(
        "SELECT table_name, index_name, column_name FROM information_schema.statistics "
        "WHERE table_schema = DATABASE() ORDER BY seq_in_index"
    )
    indexes = cursor.fetchall()
    return {
        name: Table(
            {column: type for table, column, type, _ in columns if table == name},
            tuple(column for table, index, column in indexes if table == name and index == "PRIMARY"),
            frozenset(column for table, column, _, is_generated in columns if table == name and is_generated),
            tuple({index for table, index, _ in indexes if table == name and index != "PRIMARY"}),
            "partitioned" in (options[name] or ""),
        )
        for name in options
    }


class Statements:
    """``tables``: as the statements so far have left them."""

    def __init__(self, random: Random, *, is_mariadb: bool, database: str) -> None:
        self.tables: dict[str, Table] = {}
        self._database = database
        self._random = random
        self._is_mariadb = is_mariadb
        self._values = _VALUES | (_MARIADB if is_mariadb else {})
        self._modes = (*_MODES, *_MARIADB_MODES) if is_mariadb else _MODES
        self._made = 0

    def next(self) -> list[str]:
        """Return a statement, or several that belong together."""
        roll, table = self._random.random(), self._random.choice(sorted(self.tables) or [""])
        if not table or roll < 0.04:
            return self._create()
        if roll < 0.07:
            return [f"SET sql_mode = '{self._random.choice(self._modes)}'"]
        if roll < 0.09:
            return [f"SET binlog_row_image = {self._random.choice(_IMAGES)}"]
        if roll < 0.55:
            return self._transaction(table)
        if roll < 0.88:
            return [self._set_statement(self._alter(table))]
        return [self._set_statement(statement) for statement in self._whole(table)]

    # Rows

    def _transaction(self, table: str) -> list[str]:
        if self._random.random() < 0.7:
            return [self._row(table)]
        rows = [self._row(self._random.choice(sorted(self.tables))) for _ in range(self._random.randint(1, 4))]
        if self._random.random() < 0.3:
            rows[1:1] = ["SAVEPOINT s"]
            rows.append("ROLLBACK TO s")
        return ["BEGIN", *rows, self._random.choice(("COMMIT", "COMMIT", "ROLLBACK"))]

    def _row(self, name: str) -> str:
        random, table = self._random, self.tables[name]
        there = [column for column in table.columns if column not in table.generated]
        names = [column for column in there if column in table.key or random.random() < 0.6]
        if not names:
            return f"INSERT INTO {name} () VALUES ()"
        values = ", ".join(self._value(table, column) for column in names)
        insert = f"INTO {name} ({', '.join(names)}) VALUES ({values})"
        column = random.choice(there)
        value = self._value(table, column)
        first = table.key[0] if table.key else there[0]
        some = ("true", f"{first} < '5'", f"{first} > '3'", f"{column} IS NULL")
        where, end = random.choice(some), random.choice(("", "", f" ORDER BY {first} LIMIT 1"))
        other = random.choice(sorted(self.tables))
        return random.choice(
            (
                f"INSERT {insert}",
                f"INSERT IGNORE {insert}",
                f"REPLACE {insert}",
                f"INSERT {insert} ON DUPLICATE KEY UPDATE {column} = {value}",
                f"UPDATE IGNORE {name} SET {column} = {value} WHERE {where}{end}",
                f"UPDATE IGNORE {name} SET {column} = {value} WHERE {where}{end}",
                f"UPDATE {name}, {other} AS o SET {name}.{column} = {value} WHERE {name}.{first} = o.{first}",
                f"DELETE FROM {name} WHERE {where}{end}",
            )
        )

    def _value(self, table: Table, column: str) -> str:
        random, type = self._random, table.columns[column]
        if column in table.key and "int" in type:
            return str(random.randint(1, 8))
        if column not in table.key and random.random() < 0.2:
            return "NULL"
        word = type.partition("(")[0].partition(" ")[0]
        fits = [values for known, values in self._values.items() if known.startswith(word)]
        return random.choice(random.choice(fits)) if fits else "'1'"

    # Schema changes of one table

    def _alter(self, name: str) -> str:
        random, table = self._random, self.tables[name]
        left = dict(table.columns)
        parts = [self._part(table, left) for _ in range(random.choice((1, 1, 1, 2, 3)))]
        if random.random() < 0.15:
            algorithms = ("ALGORITHM=INPLACE", "ALGORITHM=COPY", "ALGORITHM=INSTANT", "LOCK=NONE", "FORCE")
            parts.append(random.choice(algorithms))
        absent = [one for one in _NAMES if one not in self.tables]
        if absent and random.random() < 0.06:
            parts.insert(random.randint(0, len(parts)), f"RENAME TO {random.choice(absent)}")
        return self._spelled(f"ALTER {self._ignore()}TABLE {name} {', '.join(parts)}")

    def _ignore(self) -> str:
        return "IGNORE " if self._is_mariadb and self._random.random() < 0.04 else ""

    def _spelled(self, statement: str) -> str:
        """Return the same statement in other words."""
        match self._random.randint(0, 12):
            case 0:
                return f"/* why */ {statement.lower()} -- so"
            case 1:
                return f"/*!50000 {statement} */"
            case 2:
                return statement.replace(" ", "\n\t")
            case 3:
                return statement.replace(" COLUMN ", " ").replace("ADD ", "ADD COLUMN ")
        return statement

    def _part(self, table: Table, left: dict[str, str]) -> str:
        random = self._random
        free = [column for column in left if column not in table.key]
        kinds = ("add", "add", "add", "drop", "modify", "modify", "change", "rename", "swap", "default", "key", "index")
        more = ("charset", "again", "order", "index", "unique key", "several", "rest")
        # most of these hold the table
        unknown = ("computed", "number", "like another")
        match random.choice(unknown if random.random() < 0.04 else (*kinds, *more)):
            case "add":
                return f"ADD {self._new(left)} {self._definition(is_new=True)}{self._place(left)}"
            case "drop" if len(free) > 1:
                column = random.choice(free)
                del left[column]
                return f"DROP COLUMN {column}"
            case "again" if free:
                column = random.choice(free)
                type = left[column] if random.random() < 0.5 else self._definition(is_new=True)
                return f"DROP COLUMN {column}, ADD {column} {type}{self._place(left)}"
            case "modify":
                column = random.choice(list(left))
                kind = random.choice(_KEY_TYPES) if column in table.key else self._definition()
                return f"MODIFY {column} {kind}{self._place(left)}"
            case "change":
                old = random.choice(list(left))
                new = self._new(left)
                kind = random.choice(_KEY_TYPES) if old in table.key else self._definition()
                kind = left[old] if random.random() < 0.4 else kind
                left[new] = left.pop(old)
                return f"CHANGE {old} {new} {kind}{self._place(left)}"
            case "rename":
                old, new = random.choice(list(left)), self._new(left)
                left[new] = left.pop(old)
                return f"RENAME COLUMN {old} TO {new}"
            case "swap" if len(free) > 1:
                one, two = random.sample(free, 2)
                return f"RENAME COLUMN {one} TO {two}, RENAME COLUMN {two} TO {one}"
            case "default" if free:
                column = random.choice(free)
                return f"ALTER COLUMN {column} {random.choice(('DROP DEFAULT', 'SET DEFAULT 5'))}"
            case "key":
                columns = random.sample(list(left), random.choice((1, 1, 2)) if len(left) > 1 else 1)
                drop = "DROP PRIMARY KEY, " if table.key and random.random() < 0.9 else ""
                return f"{drop}ADD PRIMARY KEY ({', '.join(columns)})"
            case "unique key":
                column = random.choice(list(left))
                return f"DROP PRIMARY KEY, ADD UNIQUE ({column}), MODIFY {column} int NOT NULL"
            case "index":
                unique = random.choice(("INDEX", "UNIQUE"))
                if table.indexes and random.random() < 0.5:
                    return f"DROP INDEX {random.choice(table.indexes)}"
                return f"ADD {unique} {self._name('i')} ({random.choice(list(left))})"
            case "computed" if free:
                stored = random.choice(("STORED", "VIRTUAL"))
                return f"ADD {self._new(left)} int GENERATED ALWAYS AS (length({random.choice(free)})) {stored}"
            case "number":
                key = random.choice(("PRIMARY KEY", "UNIQUE"))
                drop = "DROP PRIMARY KEY, " if key == "PRIMARY KEY" and table.key else ""
                return f"{drop}ADD {self._new(left)} int NOT NULL AUTO_INCREMENT {key}"
            case "charset":
                words = ("CONVERT TO CHARACTER SET latin1", "CONVERT TO CHARACTER SET utf8mb4", "CHARACTER SET ucs2")
                return random.choice(words)
            case "several":
                one, two = self._new(left), self._name("d")
                return f"ADD ({one} {self._definition(is_new=True)}, {two} {self._definition(is_new=True)})"
            case "like another" if free:
                return f"ADD {self._new(left)} varchar(30) DEFAULT ({random.choice(free)})"
            case "rest":
                index = random.choice(table.indexes or ("PRIMARY",))
                rest = ["COMMENT 'of a table'", "AUTO_INCREMENT = 20", "ROW_FORMAT = DYNAMIC", "ADD CHECK (true)"]
                rest += [f"ADD CHECK ({random.choice(list(left))} IS NOT NULL)"]
                rest += [f"RENAME INDEX {index} TO {self._name('i')}", f"DROP INDEX {index}"]
                if self._is_mariadb:
                    rest += ["ADD SYSTEM VERSIONING", "DROP SYSTEM VERSIONING"]
                else:
                    rest += [f"ALTER INDEX {index} INVISIBLE", f"ALTER {random.choice(list(left))} SET INVISIBLE"]
                return random.choice(rest)
            case "order":
                column = random.choice(list(left))
                return f"MODIFY {column} {left[column]}{' NOT NULL' if column in table.key else ''}{self._place(left)}"
        return "FORCE"

    def _definition(self, *, is_new: bool = False) -> str:
        random, type = self._random, self._random.choice(list(self._values))
        value = random.choice(self._values[type])
        ends = ["", "", " NOT NULL", f" DEFAULT {value}", f" NOT NULL DEFAULT {value}"]
        if random.random() < 0.03:
            ends = [f" DEFAULT {random.choice(_COMPUTED)}"]
        if is_new and random.random() < 0.1:
            ends = [" INVISIBLE"]
        if type.startswith(("timestamp", "datetime")) and random.random() < 0.3:
            fraction = type[type.find("(") : type.find(")") + 1] if "(" in type else ""
            ends = [f" DEFAULT CURRENT_TIMESTAMP{fraction} ON UPDATE CURRENT_TIMESTAMP{fraction}"]
        end = random.choice(ends)
        return type.removesuffix(" NULL") + end if " NOT NULL" in end else type + end

    def _place(self, left: Mapping[str, str]) -> str:
        return self._random.choice(("", "", " FIRST", f" AFTER {self._random.choice(list(left))}"))

    def _new(self, left: Mapping[str, str]) -> str:
        """Return a new column's name, often one that there was before."""
        names = [name for name in _COLUMNS if name not in left]
        return self._random.choice(names) if names and self._random.random() < 0.8 else self._name("c")

    def _name(self, prefix: str) -> str:
        self._made += 1
        return f"{prefix}{self._made}"

    def _set_statement(self, statement: str) -> str:
        is_change = statement.startswith(("ALTER", "CREATE", "DROP", "RENAME", "TRUNCATE"))
        if self._is_mariadb and is_change and self._random.random() < 0.1:
            return f"SET STATEMENT max_statement_time = 60 FOR {statement}"
        return statement

    # Schema changes of whole tables

    def _create(self) -> list[str]:
        absent = [name for name in _NAMES if name not in self.tables]
        if not absent:
            return ["DO 1"]
        name, there = self._random.choice(absent), sorted(self.tables)
        if there and self._random.random() < 0.4:
            other = self._random.choice(there)
            key = ", ".join(self.tables[other].key)
            like = f"CREATE TABLE {name} LIKE {other}"
            select = f"CREATE TABLE {name} {f'(PRIMARY KEY ({key}))' if key else ''} AS SELECT * FROM {other}"
            return [self._random.choice((like, select))]
        return [self._definition_of(name)]

    def _definition_of(self, name: str, *, verb: str = "CREATE TABLE") -> str:
        random = self._random
        columns = [f"{column} {self._definition()}" for column in random.sample(_COLUMNS, random.randint(1, 4))]
        key = random.choice(("PRIMARY KEY (id)", "PRIMARY KEY (id)", "UNIQUE (id)"))
        charset = random.choice(("", " CHARACTER SET latin1", " CHARACTER SET utf8mb4"))
        partitions = random.choice(("", "", "", f" {_PARTITIONS.format(key='id')}"))
        type = random.choice(("int", "bigint", "smallint"))
        return f"{verb} {name} (id {type} NOT NULL, {', '.join(columns)}, {key}){charset}{partitions}"

    def _whole(self, name: str) -> list[str]:
        random, table = self._random, self.tables[name]
        other = random.choice(sorted(self.tables))
        absent = [one for one in _NAMES if one not in self.tables]
        kinds = ["truncate", "online", "online", "replace", "drop", "drop and create", "rename", "swap", "temporary"]
        kinds += ["trigger", "reference"]
        kinds += [
            "rewrite",
            "parts",
            "parts",
            "empty",
            "select",
            "database",
            "index",
            "move",
            "again",
            "names",
            "xa",
            "own name",
        ]
        match random.choice(kinds):
            case "truncate":
                return [f"TRUNCATE TABLE {name}"]
            case "online":
                return self._online(name)
            case "replace" if self._is_mariadb:
                like = [f"CREATE OR REPLACE TABLE {name} LIKE {other}"] if name != other else []
                select = [f"CREATE OR REPLACE TABLE {name} (PRIMARY KEY (id)) AS SELECT 1 AS id, 'x' AS v"]
                return [random.choice([self._definition_of(name, verb="CREATE OR REPLACE TABLE"), *like, *select])]
            case "drop" if len(self.tables) > 1:
                return [f"DROP TABLE {name}"]
            case "drop and create":
                return [f"DROP TABLE {name}", self._definition_of(name)]
            case "rename" if absent:
                new = random.choice(absent)
                return [random.choice((f"RENAME TABLE {name} TO {new}", f"ALTER TABLE {name} RENAME {new}"))]
            case "own name":
                return [f"ALTER TABLE {name} RENAME {name}"]
            case "swap" if name != other:
                return [f"RENAME TABLE {name} TO between_, {other} TO {name}, between_ TO {other}"]
            case "temporary":
                rows = f"INSERT INTO {name} VALUES (1)"
                changes = [rows, f"ALTER TABLE {name} ADD x int", f"DROP TEMPORARY TABLE {name}"]
                return [f"CREATE TEMPORARY TABLE {name} (id int)", *changes]
            case "rewrite":
                verb = random.choice(("OPTIMIZE TABLE {}", "ANALYZE TABLE {}", "ALTER TABLE {} ENGINE=InnoDB"))
                return [verb.format(name)]
            case "parts":
                return [self._partition(name, table)]
            case "empty":
                return [f"DELETE FROM {name}", self._alter(name)]
            case "select" if name != other:
                common = [one for one in table.columns if one in self.tables[other].columns]
                names = ", ".join(one for one in common if one not in table.generated)
                return [f"INSERT IGNORE INTO {name} ({names}) SELECT {names} FROM {other}"] if names else ["DO 1"]
            case "index":
                index = self._name("i")
                column = random.choice(list(table.columns))
                made = f"CREATE {random.choice(('', 'UNIQUE '))}INDEX {index} ON {name} ({column})"
                key = f"ALTER TABLE {name} DROP PRIMARY KEY, ADD PRIMARY KEY ({column})"
                gone = f"DROP INDEX {random.choice((index, *table.indexes))} ON {name}"
                return [made, self._row(name), gone, self._row(name), key]
            case "move":
                return [f"RENAME TABLE {name} TO aside_", f"RENAME TABLE aside_ TO {random.choice([name, *absent])}"]
            case "again":
                absent_too = f"DROP TABLE IF EXISTS {name}, nothing"
                return [f"CREATE TABLE IF NOT EXISTS {name} (id int)", absent_too, self._definition_of(name)]
            case "names":
                time = random.choice(("1000000000", "DEFAULT"))
                texts = ("NAMES latin1", "NAMES utf8mb4", "NAMES binary", "collation_connection = ucs2_general_ci")
                return [f"SET {random.choice(texts)}", f"SET timestamp = {time}"]
            case "xa":
                two = ["XA PREPARE 'x'", random.choice(("XA COMMIT 'x'", "XA ROLLBACK 'x'"))]
                end = random.choice((two, ["XA COMMIT 'x' ONE PHASE"]))
                return ["XA START 'x'", self._row(name), self._row(name), "XA END 'x'", *end]
            case "trigger":
                event = random.choice(("AFTER INSERT", "AFTER DELETE", "BEFORE UPDATE"))
                return [f"CREATE TRIGGER {self._name('r')} {event} ON {name} FOR EACH ROW {self._row(other)}"]
            case "reference":
                column, action = random.choice(list(table.columns)), random.choice(("", " ON DELETE CASCADE"))
                foreign = (
                    f"FOREIGN KEY ({column}) REFERENCES {other} ({random.choice(list(self.tables[other].columns))})"
                )
                return [f"ALTER TABLE {name} ADD {foreign}{action}", self._row(other)]
            case "database":
                verb = random.choice(("ALTER DATABASE", f"CREATE DATABASE IF NOT EXISTS {self._database}"))
                return [f"{verb} CHARACTER SET {random.choice(('latin1', 'utf8mb4', 'ucs2'))}"]
        return ["DO 1"]

    def _partition(self, name: str, table: Table) -> str:
        if not table.is_partitioned:
            key = table.key[0] if table.key else "id"
            return f"ALTER {self._ignore()}TABLE {name} {_PARTITIONS.format(key=key)}"
        return f"ALTER TABLE {name} " + self._random.choice(
            (
                "EXCHANGE PARTITION p0 WITH TABLE " + self._random.choice(sorted(self.tables)),
                "TRUNCATE PARTITION p0",
                "TRUNCATE PARTITION ALL",
                "DROP PARTITION p0",
                "REMOVE PARTITIONING",
                "REBUILD PARTITION p1",
                "REORGANIZE PARTITION p1 INTO (PARTITION p1 VALUES LESS THAN (6), "
                "PARTITION p2 VALUES LESS THAN MAXVALUE)",
            )
        )

    def _online(self, name: str) -> list[str]:
        """A copy of the table that takes its place, as tools for online changes do it."""
        random, table = self._random, self.tables[name]
        copy, old = random.choice(((f"_{name}_gho", f"_{name}_del"), (f"_{name}_new", f"_{name}_old")))
        columns = [one for one in table.columns if one not in table.generated]
        gone = random.choice([one for one in columns if one not in table.key] or [""])
        kept = [one for one in columns if one != gone]
        names = ", ".join(kept)
        kinds = [f"ADD {self._new(table.columns)} {self._definition(is_new=True)}"]
        kinds += [f"ADD INDEX {self._name('i')} ({kept[0]})"] if kept else []
        kinds += [f"DROP COLUMN {gone}"] if gone else []
        alter = f"ALTER TABLE {copy} {random.choice(kinds)}"
        fill = f"INSERT IGNORE INTO {copy} ({names}) SELECT {names} FROM {name}"
        keep = f"INSERT IGNORE INTO {copy} ({names}, {gone}) SELECT {names}, {gone} FROM {name}" if gone else fill
        fill = fill if "DROP COLUMN" in alter else keep
        changed = self._row(name)
        swap = random.choice(
            (
                [f"RENAME TABLE {name} TO {old}, {copy} TO {name}"],
                [f"DROP TABLE {name}", f"RENAME TABLE {copy} TO {name}"],
                [f"RENAME TABLE {name} TO {old}", f"RENAME TABLE {copy} TO {name}"],
            )
        )
        end = [f"DROP TABLE IF EXISTS {old}"] if random.random() < 0.7 else []
        made = [f"DROP TABLE IF EXISTS {copy}, {old}", f"CREATE TABLE {copy} LIKE {name}", alter, fill]
        return [*made, *swap, *end, changed]

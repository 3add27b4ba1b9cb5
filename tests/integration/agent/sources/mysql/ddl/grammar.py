"""Random statements that define tables, of nearly the whole grammar, spelt in any way that a server takes."""

import re
from dataclasses import dataclass, field
from random import Random
from typing import Final

_TYPES: Final = (
    *("TINYINT", "INT1(3)", "SMALLINT UNSIGNED", "INT2", "MEDIUMINT", "MIDDLEINT UNSIGNED", "INT", "INTEGER(11)"),
    *("INT4 UNSIGNED ZEROFILL", "BIGINT", "INT8 UNSIGNED", "BOOL", "BOOLEAN", "DECIMAL", "DEC(7)", "NUMERIC(12,4)"),
    *("FIXED(5,2)", "FLOAT", "FLOAT4", "FLOAT(30)", "FLOAT(7,3)", "DOUBLE", "DOUBLE PRECISION", "REAL", "DOUBLE(9,2)"),
    *("BIT", "BIT(9)", "YEAR", "YEAR(4)", "DATE", "TIME", "TIME(3)", "DATETIME", "DATETIME(6)", "TIMESTAMP NULL"),
    *("TIMESTAMP(2) NULL", "CHAR", "CHAR(5)", "CHARACTER(5)", "CHAR(3) BYTE", "CHARACTER VARYING(20)", "VARCHAR(30)"),
    *("CHAR VARYING (7)", "NCHAR(4)", "NATIONAL CHAR(3)", "NATIONAL VARCHAR(9)", "NVARCHAR(5)", "NCHAR VARCHAR(6)"),
    *("VARCHAR(9) BINARY", "CHAR(4) ASCII", "VARCHAR(9) UNICODE", "BINARY", "BINARY(4)", "VARBINARY(300)", "TINYTEXT"),
    *("TEXT", "TEXT(50)", "TEXT(200)", "TEXT(70000)", "MEDIUMTEXT", "LONGTEXT", "LONG", "LONG VARCHAR", "TINYBLOB"),
    *("BLOB", "BLOB(100)", "BLOB(300)", "MEDIUMBLOB", "LONGBLOB", "LONG VARBINARY", "JSON", "ENUM('x','y','it''s')"),
    *("ENUM('a, b','c)','\\\\d')", "SET('a','b','c')", "POINT", "GEOMETRY", "POLYGON", "FLOAT UNSIGNED"),
    *("DECIMAL(8,2) UNSIGNED", "DOUBLE UNSIGNED", "VARCHAR(10) CHARACTER SET latin1", "CHAR(4) CHARSET gbk"),
    *("TEXT COLLATE utf8mb4_bin", "ENUM('ä','ö') CHARACTER SET utf8mb4", "VARCHAR(12) CHARACTER SET binary"),
)
_MARIADB: Final = ("UUID", "INET6", "INET4", "VARCHAR(20) COMPRESSED", "TEXT COMPRESSED")
_MYSQL: Final = ("VECTOR", "VECTOR(3)")
_KEYS: Final = ("INT NOT NULL", "BIGINT NOT NULL", "VARCHAR(20) NOT NULL", "SMALLINT UNSIGNED NOT NULL")
_WORD: Final = re.compile(r"""'(?:[^'\\]|\\.|'')*'|`[^`]*`|/\*.*?\*/|\w+|\s+|.""", re.DOTALL)
_NAMES: Final = ("a", "b", "c", "d1", "e_", "f$", "`g h`", "`first`", "`after`", "`in.dex`", "`käse`", "`x``y`", "k")
_SPACES: Final = (" ", "  ", "\n", "\t", " /* x, ( ' */ ", " /**/ ", " -- it's\n", " # ADD\n", " /*! */ ")


@dataclass(slots=True)
class Grammar:
    """``columns``: of the table at hand, as the server has them. ``is_mariadb``: which server it is."""

    seed: int
    is_mariadb: bool
    random: Random = field(init=False)

    def __post_init__(self) -> None:
        self.random = Random(self.seed)

    def create(self, table: str) -> str:
        names = self.random.sample(_NAMES, self.random.randint(1, 5))
        items = [f"id {self.random.choice(_KEYS)}", *(f"{name} {self._definition()}" for name in names)]
        keys = ["PRIMARY KEY (id)", "PRIMARY KEY USING BTREE (`id`)", "CONSTRAINT pk PRIMARY KEY (id DESC)"]
        items.append(self.random.choice(keys[: 2 if self.is_mariadb else 3]))
        self.random.shuffle(items)
        options = ("", "ENGINE=InnoDB", "DEFAULT CHARSET latin1", "CHARACTER SET = utf8mb4 COLLATE utf8mb4_bin")
        more = ("", "COMMENT 'a, b'", "ROW_FORMAT=DYNAMIC, STATS_PERSISTENT=0")
        verbs = ["CREATE TABLE", "CREATE TABLE IF NOT EXISTS", *(["CREATE OR REPLACE TABLE"] * 2 * self.is_mariadb)]
        verb = self.random.choice(verbs)
        return f"{verb} {table} ({', '.join(items)}) {self.random.choice(options)} {self.random.choice(more)}"

    def alter(self, table: str, columns: list[str], key: list[str]) -> str:
        """Of ``columns``, none of ``key`` goes away alone."""
        parts: list[str] = []
        free, left = [name for name in columns if name not in key], [*columns]
        for _ in range(self.random.choice((1, 1, 2, 3, 4))):
            parts += self._part(free, left, key)
        if self.random.random() < 0.2:
            parts.append(self.random.choice(("ALGORITHM=COPY", "LOCK=SHARED", "ENGINE=InnoDB", "FORCE", "COMMENT 'x'")))
        words = ["ALTER TABLE", *(["ALTER ONLINE TABLE", "ALTER TABLE IF EXISTS"] * self.is_mariadb)]
        verb = self.random.choice(words[:1] * 3 + words)
        if "ONLINE" in verb:
            verb = "ALTER TABLE"
        wait = self.random.choice(("", "", " WAIT 5")) if self.is_mariadb else ""
        return f"{verb} {table}{wait} {', '.join(dict.fromkeys(parts))}"

    def spell(self, statement: str) -> str:
        """In other words that mean the same."""
        pieces = [self._respelt(piece) for piece in _WORD.findall(statement)]
        text = "".join(pieces)
        prefixes = ["", "", "/* app */ ", "-- why\n", "# x\n"]
        if self.is_mariadb:
            prefixes += ["SET STATEMENT max_statement_time=60 FOR "] * 2
            prefixes.append("set /* FOR */ statement lock_wait_timeout=50, sort_buffer_size=(1024*4096) for ")
        suffixes = ["", "", " ", " /* bye */", " # end", " -- end"]
        return self.random.choice(prefixes) + text + self.random.choice(suffixes)

    def _respelt(self, piece: str) -> str:
        if piece.isspace():
            return self.random.choice(_SPACES) if self.random.random() < 0.2 else piece
        if piece.isascii() and piece.replace("_", "").isalpha() and piece.upper() == piece and len(piece) > 1:
            return self.random.choice((piece, piece.lower(), piece.title(), piece.swapcase()))
        return piece

    def _definition(self) -> str:
        kind = self.random.choice(_TYPES + (_MARIADB if self.is_mariadb else _MYSQL))
        attributes = ["", "", "", " COMMENT 'x, (y'", " NULL"]
        is_number = "(" not in kind and re.match(r"(TINY|SMALL|MEDIUM|BIG)?INT|DECIMAL|DOUBLE|FLOAT", kind)
        if is_number:
            attributes += [" DEFAULT 5", " NOT NULL DEFAULT '7'", " DEFAULT (1 + 2)", " CHECK (1 < 2)"]
        if kind.startswith(("VARCHAR(30)", "CHAR(5)")):
            attributes += [" DEFAULT 'it''s, (x'", " NOT NULL", " DEFAULT 'a' 'b'" if self.is_mariadb else ""]
        if not self.is_mariadb:
            attributes += [" COLUMN_FORMAT DYNAMIC"]
        if "COMPRESSED" not in kind:
            attributes += [" INVISIBLE"] if self.is_mariadb and "NULL" not in kind else []
        return kind + self.random.choice(attributes)

    def _place(self, left: list[str]) -> str:
        return self.random.choice(("", "", " FIRST", f" AFTER {self.random.choice(left)}"))

    def _part(self, free: list[str], left: list[str], key: list[str]) -> list[str]:
        fresh = [name for name in _NAMES if name not in left]
        actions = [
            self._add,
            self._add,
            self._change,
            self._change,
            self._drop,
            self._rename,
            self._other,
            self._convert,
        ]
        return self.random.choice(actions)(free, left, fresh, key)

    def _add(self, free: list[str], left: list[str], fresh: list[str], key: list[str]) -> list[str]:
        name = self.random.choice(fresh)
        column = self.random.choice(("", "COLUMN "))
        if self.is_mariadb and self.random.random() < 0.2:
            column += "IF NOT EXISTS "
            name = self.random.choice([name, *left])
        if self.random.random() < 0.15:
            return [f"ADD {column}({name} {self._definition()})"]
        return [f"ADD {column}{name} {self._definition()}{self._place(left)}"]

    def _change(self, free: list[str], left: list[str], fresh: list[str], key: list[str]) -> list[str]:
        old = self.random.choice(left)
        definition = self.random.choice(_KEYS) if old in key else self._definition()
        column = self.random.choice(("", "COLUMN "))
        if self.is_mariadb and self.random.random() < 0.2:
            column += "IF EXISTS "
        place = self._place([name for name in left if name != old] or left)
        left.remove(old)
        if old in free:
            free.remove(old)
        if self.random.random() < 0.5 or old in key:
            left.append(old)
            return [f"MODIFY {column}{old} {definition}{place}"]
        new = self.random.choice([*fresh, old])
        left.append(new)
        return [f"CHANGE {column}{old} {new} {definition}{place}"]

    def _drop(self, free: list[str], left: list[str], fresh: list[str], key: list[str]) -> list[str]:
        if len(free) < 2:
            return ["FORCE"]
        name = self.random.choice(free)
        free.remove(name)
        left.remove(name)
        exists = "IF EXISTS " if self.is_mariadb and self.random.random() < 0.3 else ""
        parts = [f"DROP {self.random.choice(('', 'COLUMN '))}{exists}{name}"]
        if self.random.random() < 0.4:
            parts.append(f"ADD {name} {self._definition()}")
            left.append(name)
        return parts

    def _rename(self, free: list[str], left: list[str], fresh: list[str], key: list[str]) -> list[str]:
        if len(free) > 1 and self.random.random() < 0.4:
            one, two = self.random.sample(free, 2)
            free.remove(one)
            free.remove(two)
            return [f"RENAME COLUMN {one} TO {two}", f"RENAME COLUMN {two} TO {one}"]
        if not free:
            return ["FORCE"]
        old, new = self.random.choice(free), self.random.choice(fresh)
        free.remove(old)
        left.remove(old)
        left.append(new)
        return [f"RENAME COLUMN {old} TO {new}"]

    def _convert(self, free: list[str], left: list[str], fresh: list[str], key: list[str]) -> list[str]:
        options = (
            "CONVERT TO CHARACTER SET latin1",
            "CONVERT TO CHARSET utf8mb4 COLLATE utf8mb4_bin",
            "CHARSET=utf8mb3",
        )
        more = ("DEFAULT CHARACTER SET = latin1", "COLLATE utf8mb4_bin", "CONVERT TO CHARACTER SET ucs2")
        return [self.random.choice(options + more)]

    def _other(self, free: list[str], left: list[str], fresh: list[str], key: list[str]) -> list[str]:
        name = self.random.choice(left)
        index = f"i{self.random.randrange(10**6)}"
        options = [
            f"ADD INDEX {index} (id)",
            f"ADD KEY {index} (id)",
            f"ADD UNIQUE {index} (id)",
            f"ADD CONSTRAINT {index} CHECK (id IS NOT NULL)",
            f"ALTER COLUMN {name} DROP DEFAULT",
            "STATS_PERSISTENT=0",
            "ORDER BY id",
            "PARTITION BY KEY (id) PARTITIONS 2",
            "REMOVE PARTITIONING",
            f"DROP PRIMARY KEY, ADD PRIMARY KEY ({', '.join(key)})",
        ]
        return [self.random.choice(options)]

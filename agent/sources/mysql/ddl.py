"""What a statement that defines tables does to which of them. Pure; sqlglot reads the text.

    statement ──► edits: a table is created, altered, renamed, dropped
              └─► ``Unparsed``: the tables it names have to be looked at

An edit of a table that is known says what its columns are afterwards, as far as a statement can tell, and what rows
that were there hold in new ones (``table_editor``). Indexes, engines, partitions and comments are no edits.

TRUNCATE is no edit either: to the log it is an event of rows.
"""

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from agent.schema import TableSchema
from agent.sources.mysql.column_types import Surroundings
from agent.sources.mysql.statements import plain
from agent.sources.mysql.table_editor import TableEditor

# what it cannot read it says, and the answer is ``Unparsed``
logging.getLogger("sqlglot").setLevel(logging.ERROR)

Name = tuple[str, str]

_NAME: Final = r"(?:`(?:[^`]|``)+`|[\w$\u0080-\uffff]+)"
_TABLE: Final = rf"{_NAME}(?:\s*\.\s*{_NAME})?"
_RENAME: Final = re.compile(r"RENAME\s+TABLES?\s+(?:IF\s+EXISTS\s+)?(.*)", re.IGNORECASE | re.DOTALL)
_PAIR: Final = re.compile(
    rf"\s*({_TABLE})\s*(?:(?:NO)?WAIT(?:\s+\d+)?\s+)?\bTO\s+({_TABLE})\s*(,|;?\s*$)", re.IGNORECASE
)
_ALTER: Final = re.compile(
    rf"ALTER\s+(?:(?:ONLINE|OFFLINE|IGNORE)\s+)*TABLE\s+(?:IF\s+EXISTS\s+)?({_TABLE})\s*(?:(?:NO)?WAIT(?:\s+\d+)?)?",
    re.IGNORECASE,
)
_CREATE: Final = re.compile(rf"CREATE\s+(?:OR\s+REPLACE\s+)?TABLE\s+(?:IF\s+NOT\s+EXISTS\s+)?({_TABLE})", re.IGNORECASE)
#: a REAL is a double here (and a float in another mode), sqlglot takes it for a float
_READ_WRONGLY: Final = re.compile(r"\bREAL\b", re.IGNORECASE)
_LISTED: Final = re.compile(r"\s*ADD\s+(?:COLUMN\s+)?\((.*)\)\s*$", re.IGNORECASE | re.DOTALL)
#: parts of ALTER TABLE that change nothing that a row or a sink shows
_UNSEEN: Final = re.compile(
    r"(?:ENGINE|AUTO_INCREMENT|COMMENT|ROW_FORMAT|KEY_BLOCK_SIZE|STATS_\w+|ALGORITHM|LOCK|FORCE|ORDER\s+BY"
    r"|(?:DIS|EN)ABLE\s+KEYS|PARTITION|REMOVE\s+PARTITIONING|(?:ADD|DROP|REORGANIZE|TRUNCATE|ANALYZE|CHECK|OPTIMIZE"
    r"|REBUILD|COALESCE|EXCHANGE)\s+PARTITION|(?:DISCARD|IMPORT)\s+TABLESPACE)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Created:
    """``like``: it is made like that one. ``schema``: what the statement says of it, None where it does not."""

    table: Name
    like: Name | None = None
    schema: TableSchema | None = None
    if_absent: bool = False


@dataclass(frozen=True, slots=True)
class Dropped:
    table: Name


@dataclass(frozen=True, slots=True)
class Renamed:
    table: Name
    to: Name


@dataclass(frozen=True, slots=True)
class Altered:
    """``schema``: afterwards, under its old name. ``renames``: new column → old; ``untold``: new columns whose values
    in rows that were there nobody can tell. ``loses_key``: the primary key went, and none came."""

    table: Name
    schema: TableSchema
    renames: Mapping[str, str] = field(default_factory=dict)
    added: tuple[str, ...] = ()
    fills: Mapping[str, str] = field(default_factory=dict)
    untold: tuple[str, ...] = ()
    loses_key: bool = False


@dataclass(frozen=True, slots=True)
class DatabaseDropped:
    name: str


@dataclass(frozen=True, slots=True)
class Unparsed:
    """``tables``: what it names, as far as that can be seen; they have to be looked at."""

    tables: tuple[Name, ...]


Edit = Created | Dropped | Renamed | Altered | DatabaseDropped


def parse_ddl(
    statement: str, database: str, known: Mapping[Name, TableSchema], *, is_mariadb: bool
) -> list[Edit] | Unparsed:
    """``known``: tables whose columns are known; others are none of our concern, unless they come to be.

    In order, as if done one after the other.
    """
    statement = plain(statement).strip().rstrip(";")
    if found := _RENAME.match(statement):
        return _renames(found[1], database)
    if found := _ALTER.match(statement):
        table = _name(found[1], database)
        return _alter(table, statement[found.end() :], known.get(table), database, is_mariadb=is_mariadb)
    if found := _CREATE.match(statement):
        return _create(_name(found[1], database), statement, database, is_mariadb=is_mariadb)
    return _other(statement, database)


def _renames(pairs: str, database: str) -> list[Edit] | Unparsed:
    edits: list[Edit] = []
    at = 0
    while found := _PAIR.match(pairs, at):
        edits.append(Renamed(_name(found[1], database), _name(found[2], database)))
        at = found.end()
    if at < len(pairs.rstrip()):
        return Unparsed(tuple(_name(text, database) for text in re.findall(_TABLE, pairs)))
    return edits


def _other(statement: str, database: str) -> list[Edit] | Unparsed:
    """DROP of tables and databases; what else there is (indexes, CREATE DATABASE) changes no row."""
    parsed = _parsed(statement)
    if not isinstance(parsed, exp.Drop):
        return []
    if parsed.args.get("kind") in ("DATABASE", "SCHEMA"):
        found = re.search(rf"({_NAME})\s*$", statement)
        return [DatabaseDropped(_unquoted(found[1]))] if found else []
    if parsed.args.get("kind") != "TABLE" or parsed.args.get("temporary"):
        return []
    return [Dropped(_table(table, database)) for table in parsed.find_all(exp.Table)]


def _create(table: Name, statement: str, database: str, *, is_mariadb: bool) -> list[Edit] | Unparsed:
    parsed = _parsed(statement)
    if not isinstance(parsed, exp.Create):
        return Unparsed((table,))
    is_replaced = bool(parsed.args.get("replace"))
    like = next((_table(item.this, database) for item in parsed.find_all(exp.LikeProperty)), None)
    schema = None
    if isinstance(parsed.this, exp.Schema) and like is None and not _READ_WRONGLY.search(statement):
        schema = _defined(table, parsed.this, is_mariadb=is_mariadb)
    created = Created(table, like, schema, if_absent=bool(parsed.args.get("exists")))
    return [Dropped(table), created] if is_replaced else [created]


def _defined(table: Name, definition: exp.Schema, *, is_mariadb: bool) -> TableSchema | None:
    empty = TableSchema(0, *table, ())
    editor = TableEditor(empty, Surroundings.of((), is_mariadb=is_mariadb))
    for item in definition.expressions:
        if not editor.take(item):
            return None
    return editor.schema


def _alter(
    table: Name, parts: str, known: TableSchema | None, database: str, *, is_mariadb: bool
) -> list[Edit] | Unparsed:
    if known is None or _UNSEEN.match(parts.strip()):
        return _rename_of_unknown(table, parts, database) if known is None else []
    actions = _actions(parts)
    if actions is None:
        return Unparsed((table,))
    editor = TableEditor(known, Surroundings.of(known.columns, is_mariadb=is_mariadb))
    edits: list[Edit] = []
    for action in actions:
        if isinstance(action, exp.AlterRename):
            edits.append(Renamed(table, _table(action.this, database)))
        elif not editor.take(action):
            return Unparsed((table,))
    return [_altered(table, editor), *edits] if editor.is_changed else edits


def _actions(parts: str) -> list[exp.Expr] | None:
    """The parts of an ALTER TABLE; None where they cannot be read for sure."""
    if _READ_WRONGLY.search(parts):
        return None
    if found := _LISTED.match(parts):  # which sqlglot reads in CREATE TABLE only
        created = _parsed(f"CREATE TABLE t ({found[1]})")
        is_list = isinstance(created, exp.Create) and isinstance(created.this, exp.Schema)
        return list(created.this.expressions) if created is not None and is_list else None
    parsed = _parsed(f"ALTER TABLE t {parts}")
    return list(parsed.args.get("actions") or ()) if isinstance(parsed, exp.Alter) else None


def _altered(table: Name, editor: TableEditor) -> Altered:
    columns = editor.columns()
    return Altered(
        table, editor.schema, columns.renames, columns.added, columns.fills, editor.untold, loses_key=editor.loses_key
    )


def _rename_of_unknown(table: Name, parts: str, database: str) -> list[Edit]:
    """A table that is none of ours may become one of ours by its new name."""
    found = re.search(
        rf"(?:^|,)\s*RENAME\s+(?:(?:TO|AS)\s+|=\s*)?(?!COLUMN\b|INDEX\b|KEY\b)({_TABLE})\s*(?:,|$)", parts, re.I
    )
    return [Renamed(table, _name(found[1], database))] if found else []


def _parsed(statement: str) -> exp.Expr | None:
    try:
        return sqlglot.parse_one(statement, dialect="mysql")
    except (SqlglotError, RecursionError):
        return None


def _table(table: exp.Expr, database: str) -> Name:
    return table.text("db") or database, table.name


def _name(text: str, database: str) -> Name:
    parts = [_unquoted(part) for part in re.findall(_NAME, text)]
    return (parts[0], parts[1]) if len(parts) == 2 else (database, parts[0])


def _unquoted(text: str) -> str:
    return text[1:-1].replace("``", "`") if text.startswith("`") else text

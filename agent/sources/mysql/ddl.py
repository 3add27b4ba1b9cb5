"""What a statement that defines tables does to which of them. Pure; sqlglot reads the parts of it.

    statement ──► edits: a table is created, altered, renamed, dropped
              └─► ``Unparsed``: a table that has to be looked at, and what is known of its columns all the same

An edit of a table that is known says what its columns are afterwards, as far as a statement can tell, and what rows
that were there hold in new ones (``table_editor``). An ALTER is read part by part: what cannot be read costs its own
part only. Indexes, engines, partitions and comments are no edits.

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
from agent.sources.comparing import Columns
from agent.sources.mysql.column_types import Surroundings
from agent.sources.mysql.session import UNKNOWN, Session
from agent.sources.mysql.sql_text import masked, parts, plain
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
_CREATE: Final = re.compile(
    rf"CREATE\s+(OR\s+REPLACE\s+)?TABLE\s+(IF\s+NOT\s+EXISTS\s+)?({_TABLE})\s*(?:\(?\s*LIKE\s+({_TABLE}))?",
    re.IGNORECASE,
)
_DROP: Final = re.compile(
    r"DROP\s+TABLES?\s+(?:IF\s+EXISTS\s+)?(.*?)(?:\s+(?:NO)?WAIT(?:\s+\d+)?)?(?:\s+(?:RESTRICT|CASCADE))?$",
    re.IGNORECASE | re.DOTALL,
)
_DROP_DATABASE: Final = re.compile(rf"DROP\s+(?:DATABASE|SCHEMA)\s+(?:IF\s+EXISTS\s+)?({_NAME})$", re.IGNORECASE)
_RENAMED: Final = re.compile(
    rf"RENAME(?:\s+(?:TO|AS)\s+|\s*=\s*|\s+(?!(?:COLUMN|INDEX|KEY)\b)|(?=`))({_TABLE})$", re.IGNORECASE
)
#: a REAL is a double here (and a float in another mode), sqlglot takes it for a float
_READ_WRONGLY: Final = re.compile(r"\bREAL\b", re.IGNORECASE)
_LISTED: Final = re.compile(
    r"ADD\s+(?:COLUMN\s+)?(?P<exists>IF\s+NOT\s+EXISTS\s+)?\((?P<list>.*)\)$", re.IGNORECASE | re.DOTALL
)
#: which sqlglot reads at other places only
_IF_EXISTS: Final = re.compile(r"(?P<verb>(?:MODIFY|CHANGE)\s+(?:COLUMN\s+)?)IF\s+EXISTS\s+", re.IGNORECASE)
_INDEX_DROPPED: Final = re.compile(r"DROP\s+(?:INDEX|KEY|CONSTRAINT)\b", re.IGNORECASE)
_DROP_INDEX: Final = re.compile(rf"DROP\s+INDEX\b.*?\sON\s+({_TABLE})", re.IGNORECASE | re.DOTALL)
_CHANGED: Final = re.compile(rf"CHANGE\s+(?:COLUMN\s+)?(?:IF\s+EXISTS\s+)?({_NAME})\s+({_NAME})", re.IGNORECASE)
_CONVERTED: Final = re.compile(
    r"CONVERT\s+TO\s+(?:CHARSET|CHARACTER\s+SET)\s*=?\s*['\"]?(\w+)['\"]?(?:\s+COLLATE\s*=?\s*\S+)?$", re.IGNORECASE
)
#: parts of ALTER TABLE, or what stands behind one, that change nothing that a row or a sink shows
_UNSEEN: Final = re.compile(
    r"(?:ENGINE|AUTO_INCREMENT|COMMENT|ROW_FORMAT|KEY_BLOCK_SIZE|STATS_\w+|ALGORITHM|LOCK|FORCE|ORDER\s+BY"
    r"|(?:DEFAULT\s+)?(?:CHARSET|CHARACTER\s+SET|COLLATE)|(?:DIS|EN)ABLE\s+KEYS"
    r"|PARTITION|REMOVE\s+PARTITIONING|(?:ADD|DROP|REORGANIZE|TRUNCATE|ANALYZE|CHECK|OPTIMIZE"
    r"|REBUILD|COALESCE|EXCHANGE)\s+PARTITION|(?:DISCARD|IMPORT)\s+TABLESPACE"
    r"|ADD\s+(?:FULLTEXT|SPATIAL|INDEX|KEY|CHECK|FOREIGN)|ADD\s+CONSTRAINT(?:\s+\0+|\s+\S+)?\s+(?:CHECK|FOREIGN)"
    r"|ALTER\s+(?:INDEX|KEY|CHECK|CONSTRAINT)|RENAME\s+(?:INDEX|KEY)|DROP\s+(?:FOREIGN|CHECK)|WITH(?:OUT)?\s+VALIDATION)\b",
    re.IGNORECASE,
)
_ROWS_MOVED: Final = re.compile(
    rf"(?:(?:DROP|TRUNCATE|DISCARD|IMPORT)\s+PARTITION|EXCHANGE\s+PARTITION\s+.*?\sWITH\s+TABLE\s+({_TABLE}))",
    re.IGNORECASE,
)
_PARTITIONS: Final = re.compile(r"\s(?:PARTITION\s+BY|REMOVE\s+PARTITIONING)\b.*", re.IGNORECASE | re.DOTALL)


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
    in rows that were there nobody can tell. ``asks_key``: by which key the server goes now, only it can tell."""

    table: Name
    schema: TableSchema
    renames: Mapping[str, str] = field(default_factory=dict)
    added: tuple[str, ...] = ()
    fills: Mapping[str, str] = field(default_factory=dict)
    untold: tuple[str, ...] = ()
    asks_key: bool = False


@dataclass(frozen=True, slots=True)
class DatabaseDropped:
    name: str


@dataclass(frozen=True, slots=True)
class RowsMoved:
    """Rows of the table came or went with one of its partitions, and no event says which."""

    table: Name


@dataclass(frozen=True, slots=True)
class Unparsed:
    """``table`` has to be looked at. ``columns``: how those that could be read belong to those before."""

    table: Name
    columns: Columns = field(default_factory=Columns)


Edit = Created | Dropped | Renamed | Altered | DatabaseDropped | RowsMoved | Unparsed


@dataclass(frozen=True, slots=True)
class _Names:
    """Tables as a statement spells them."""

    database: str
    folds: bool

    def of(self, text: str) -> Name:
        found = [_unquoted(part) for part in re.findall(_NAME, text)]
        schema_name, name = found if len(found) == 2 else (self.database, found[0])
        return (schema_name.lower(), name.lower()) if self.folds else (schema_name, name)


def parse_ddl(
    statement: str,
    database: str,
    known: Mapping[Name, TableSchema],
    *,
    is_mariadb: bool,
    session: Session = UNKNOWN,
    folds_names: bool = False,
) -> list[Edit]:
    """``known``: tables whose columns are known; others are none of our concern, unless they come to be.

    In order, as if done one after the other. ``folds_names``: the server has all names of tables in lower case.
    """
    names = _Names(database, folds_names)
    statement = plain(statement, is_mariadb=is_mariadb).rstrip(";").rstrip()
    if found := _RENAME.match(statement):
        return _renames(found[1], names)
    if found := _ALTER.match(statement):
        table = names.of(found[1])
        schema = known.get(table)
        around = Surroundings.of(schema.columns if schema else (), is_mariadb=is_mariadb, session=session)
        return _alter(table, statement[found.end() :], schema, names, around)
    if found := _CREATE.match(statement):
        return _create(found, statement, names, is_mariadb=is_mariadb)
    if found := _DROP.match(statement):
        return [Dropped(names.of(text.strip())) for text in parts(found[1]) if re.fullmatch(_TABLE, text)]
    if found := _DROP_DATABASE.match(statement):
        return [DatabaseDropped(names.of(found[1])[1])]
    if (found := _DROP_INDEX.match(statement)) and (schema := known.get(names.of(found[1]))):
        return [Altered(names.of(found[1]), schema, asks_key=True)]
    return []  # other indexes, or CREATE DATABASE


def _renames(pairs: str, names: _Names) -> list[Edit]:
    edits: list[Edit] = []
    at = 0
    while found := _PAIR.match(pairs, at):
        edits.append(Renamed(names.of(found[1]), names.of(found[2])))
        at = found.end()
    if at < len(pairs.rstrip()):
        return [Unparsed(names.of(text)) for text in re.findall(_TABLE, pairs)]
    return edits


def _create(found: re.Match[str], statement: str, names: _Names, *, is_mariadb: bool) -> list[Edit]:
    """A definition that cannot be read is the server's to tell."""
    table = names.of(found[3])
    schema, like = None, names.of(found[4]) if found[4] else None
    statement = _cut(statement)
    if like is None and not _READ_WRONGLY.search(statement):
        parsed = _parsed(statement)
        if isinstance(parsed, exp.Create) and isinstance(parsed.this, exp.Schema):
            schema = _defined(table, parsed.this, is_mariadb=is_mariadb)
    created = Created(table, like, schema, if_absent=bool(found[2]))
    return [Dropped(table), created] if found[1] else [created]


def _defined(table: Name, definition: exp.Schema, *, is_mariadb: bool) -> TableSchema | None:
    editor = TableEditor(TableSchema(0, *table, ()), Surroundings.of((), is_mariadb=is_mariadb, session=UNKNOWN))
    return editor.schema if all(editor.take(item) for item in definition.expressions) else None


def _alter(table: Name, text: str, known: TableSchema | None, names: _Names, around: Surroundings) -> list[Edit]:
    if found := _ROWS_MOVED.match(text.strip()):
        return [RowsMoved(table), *([RowsMoved(names.of(found[1]))] if found[1] else [])]
    pieces = [_cut(part) for part in parts(text)]
    renames = [found for part in pieces if (found := _RENAMED.match(part))]
    to = names.of(renames[-1][1]) if renames else table
    moved: list[Edit] = [Renamed(table, to)] if renames else []
    if known is None:
        return moved
    editor = TableEditor(known, around)
    is_read = True
    for part in pieces:
        if part and not _UNSEEN.match(masked(part)) and not _RENAMED.match(part):
            is_read = _take(editor, part) and is_read
    if not is_read:
        return [*moved, Unparsed(to, editor.columns())]
    return [_altered(table, editor), *moved] if editor.is_changed else moved


def _take(editor: TableEditor, part: str) -> bool:
    """Whether it is understood."""
    if _INDEX_DROPPED.match(part):
        editor.asks_key = True
        return True
    if found := _CONVERTED.match(part):
        return editor.convert(found[1])
    actions = _actions(part)
    if actions and all(editor.take(action) for action in actions):
        return True
    if found := _CHANGED.match(part):  # to what type, the server knows
        editor.rename(_unquoted(found[1]), _unquoted(found[2]))
    return False


def _cut(part: str) -> str:
    """Without what says how the table is partitioned, which needs no comma before it."""
    found = _PARTITIONS.search(masked(part))
    return part[: found.start()] if found else part


def _actions(part: str) -> list[exp.Expr] | None:
    """One part of an ALTER TABLE; None where it cannot be read for sure."""
    if _READ_WRONGLY.search(part):
        return None
    if found := _LISTED.match(part):  # which sqlglot reads in CREATE TABLE only
        created = _parsed(f"CREATE TABLE t ({found['list']})")
        if not isinstance(created, exp.Create) or not isinstance(created.this, exp.Schema):
            return None
        for item in created.this.expressions if found["exists"] else ():
            item.set("exists", True)
        return list(created.this.expressions)
    is_loose = _IF_EXISTS.match(part)
    parsed = _parsed("ALTER TABLE t " + _IF_EXISTS.sub(r"\g<verb>", part, count=1))
    actions = list(parsed.args.get("actions") or ()) if isinstance(parsed, exp.Alter) else []
    for action in actions if is_loose else ():
        action.set("exists", True)
    return actions or None


def _altered(table: Name, editor: TableEditor) -> Altered:
    columns = editor.columns()
    return Altered(
        table, editor.schema, columns.renames, columns.added, columns.fills, editor.untold, asks_key=editor.asks_key
    )


def _parsed(statement: str) -> exp.Expr | None:
    try:
        return sqlglot.parse_one(statement, dialect="mysql")
    except (SqlglotError, RecursionError):
        return None


def _unquoted(text: str) -> str:
    return text[1:-1].replace("``", "`") if text.startswith("`") else text

"""Statement parser: finds which tables a statement defines or changes, and how. Pure.

    statement ──► edits: a table is created, altered, renamed, dropped, or cannot be followed any more
              └─► ``Unparsed``: a table whose definition has to be read, with what is known of its columns

An edit of a known table has its resulting columns, as far as the statement defines them, and the values of new columns
in existing rows (``table_editor``). An ALTER is parsed part by part (``alterations``): an unparsable part does not
affect the others. Indexes, engines, partitions and comments are not edits.

Neither is TRUNCATE: in the log it is an event of rows.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from agent.errors import is_of_table
from agent.rows.schema import TableSchema
from agent.sources.common.schema_diff import Columns
from agent.sources.mysql.ddl.parser import sql_text
from agent.sources.mysql.ddl.parser.alteration_words import take_parts
from agent.sources.mysql.ddl.parser.alterations import (
    AddKey,
    Cascade,
    DropKey,
    Part,
    RenameTo,
    RowsMoved,
    Versioning,
)
from agent.sources.mysql.ddl.parser.column_types import DefinitionContext
from agent.sources.mysql.ddl.parser.creation import Creation, take_creation
from agent.sources.mysql.ddl.parser.cursor import Cursor, Name, UnreadableError
from agent.sources.mysql.ddl.parser.databases import take_database
from agent.sources.mysql.ddl.parser.edits import (
    CASCADES,
    FILLED,
    HASHED,
    IGNORED,
    MEMBERS,
    VERSIONED,
    Altered,
    Created,
    DatabaseDefined,
    DatabaseDropped,
    Dropped,
    Edit,
    Effort,
    Rebuilt,
    Rekeyed,
    Renamed,
    Unfollowed,
    Unparsed,
)
from agent.sources.mysql.ddl.table_editor import TableEditor
from agent.sources.mysql.decode.charsets import collation_of
from agent.sources.mysql.names import lowered
from agent.sources.mysql.values.session import UNKNOWN, Session

_PARTITION_WORDS: Final = ("PARTITION", "PARTITIONING")
#: words of what may refuse rows that a table has, beside its keys; MariaDB checks the text of JSON
_REFUSING: Final = ("CHECK", "JSON", "PARTITION", "PERIOD")
#: ways to alter a table without a copy
_IN_PLACE: Final = ("INPLACE", "INSTANT", "NOCOPY")


@dataclass(frozen=True, slots=True)
class _Statement:
    """One statement during parsing. ``fold``: converts table names to the server's case."""

    cursor: Cursor
    database: str
    known: Mapping[Name, TableSchema]
    is_mariadb: bool
    session: Session
    fold: Callable[[Name], Name]
    copies: Collection[Name]
    collation_of: Callable[[str], int]
    says_default: bool

    def table(self) -> Name:
        return self.fold(self.cursor.table(self.database))

    def around(self, name: Name, schema: TableSchema | None) -> DefinitionContext:
        columns = schema.columns if schema else ()
        session = replace(self.session, second=None) if name in self.copies else self.session
        around = DefinitionContext.of(columns, is_mariadb=self.is_mariadb, session=session)
        own = schema.collation if schema else 0
        database = 0 if own and not self.says_default else self.collation_of(name[0])
        own = own if schema else database
        around = replace(around, collation=own or around.collation, is_sure=own != 0, database_collation=database)
        return replace(around, of_database=schema is None)


def _nobody_knows(database: str) -> int:
    return 0


def parse_ddl(
    statement: str,
    database: str,
    known: Mapping[Name, TableSchema],
    *,
    is_mariadb: bool,
    session: Session = UNKNOWN,
    folds_names: bool = False,
    copies: Collection[Name] = (),
    collation_of: Callable[[str], int] = _nobody_knows,
) -> list[Edit]:
    """Return the edits in order of execution. ``known``: tables whose columns are known; others are ignored unless they
    become relevant.

    ``folds_names``: the server has all table names in lower case. ``copies``: tables whose rows are logged after the
    statement. ``collation_of``: a database's collation, 0 if unknown. An unparsable statement concerns all tables that
    it names.
    """
    fold = folding(folds_names)
    try:
        tokens = sql_text.meant(statement, is_mariadb=is_mariadb)
        says_default = any(token.word == "DEFAULT" for token in tokens)
        cursor = Cursor(tokens)
        read = _Statement(cursor, database, known, is_mariadb, session, fold, copies, collation_of, says_default)
        return list(_edits(read))
    except Exception as error:
        if not (isinstance(error, UnreadableError) or is_of_table(error)):
            raise
        return [Unparsed(name) for name in mentioned(statement, database, known, folds_names=folds_names)]


def mentioned(statement: str, database: str, known: Mapping[Name, object], *, folds_names: bool = False) -> list[Name]:
    """Return the tables of ``known`` that a statement names anywhere. If it cannot be divided into words: those whose
    name is anywhere in its text."""
    try:
        tokens = sql_text.meant(statement)
    except Exception as error:
        if not is_of_table(error):
            raise
        text = statement.replace("``", "`").lower()
        return sorted(name for name in known if name[1].lower() in text)
    fold = folding(folds_names)
    found = {fold((database, token.name)) for token in tokens if token.name}
    for first, dot, second in zip(tokens, tokens[1:], tokens[2:], strict=False):
        if dot.text == ".":
            found.add(fold((first.name, second.name)))
    return sorted(found & known.keys())


def folding(folds_names: bool) -> Callable[[Name], Name]:
    """Return what converts table names to the server's case."""
    return _folded if folds_names else _same


def _folded(name: Name) -> Name:
    return lowered(name[0]), lowered(name[1])


def _same(name: Name) -> Name:
    return name


def _edits(read: _Statement) -> Iterator[Edit]:
    cursor = read.cursor
    match cursor.next().word:
        case "RENAME":
            if cursor.take_one("TABLE", "TABLES"):
                yield from _renames(read)
        case "ALTER":
            yield from _alter(read)
        case "CREATE":
            yield from _create(read)
        case "DROP":
            yield from _drop(read)


def _renames(read: _Statement) -> list[Edit]:
    if_exists = read.cursor.take("IF", "EXISTS")
    edits: list[Edit] = []
    while not edits or read.cursor.symbol(","):
        old = read.table()
        read.cursor.wait()
        read.cursor.expect("TO")
        edits.append(Renamed(old, read.table(), if_exists))
    _end(read.cursor)
    return edits


def _drop(read: _Statement) -> Iterator[Edit]:
    cursor = read.cursor
    if cursor.take_one("DATABASE", "SCHEMA"):
        cursor.take("IF", "EXISTS")
        yield DatabaseDropped(read.fold((cursor.name(), ""))[0])
    elif cursor.take("INDEX"):
        cursor.take("IF", "EXISTS")
        key = DropKey(cursor.name())
        cursor.expect("ON")
        table = read.table()
        yield from _altered(read, table, [key], Effort(_may_copy(cursor)))
    elif cursor.take_one("TABLE", "TABLES"):
        cursor.take("IF", "EXISTS")
        edits = [Dropped(read.table())]
        while cursor.symbol(","):
            edits.append(Dropped(read.table()))
        cursor.wait()
        cursor.take_one("RESTRICT", "CASCADE")
        _end(cursor)
        yield from edits


def _database(read: _Statement, *, is_new: bool, replaces: bool = False) -> Iterator[Edit]:
    name, charset, if_absent = take_database(read.cursor)
    if replaces:
        yield DatabaseDropped(read.fold((name, ""))[0])
    if charset is not None or is_new:
        collation = collation_of(charset) if charset else read.session.server
        yield DatabaseDefined(read.fold((name or read.database, ""))[0], collation, if_absent)


def _create(read: _Statement) -> Iterator[Edit]:
    cursor = read.cursor
    replaces = cursor.take("OR", "REPLACE")
    if cursor.take_one("DATABASE", "SCHEMA"):
        yield from _database(read, is_new=True, replaces=replaces)
        return
    if cursor.peek().word in ("UNIQUE", "FULLTEXT", "SPATIAL", "VECTOR", "INDEX"):
        yield from _create_index(read)
        return
    if not cursor.take("TABLE"):
        return
    if_absent = cursor.take("IF", "NOT", "EXISTS")
    table = read.table()
    if replaces:
        yield Dropped(table)
    creation = take_creation(cursor, read.database, read.session)
    if creation.like is not None:
        yield Created(table, read.fold(creation.like), if_absent=if_absent, replaces=replaces)
    elif not creation.is_sequence:
        editor = TableEditor(TableSchema(0, *table, ()), read.around(table, None))
        schema = _define(creation, editor)
        reason, is_keyless, is_primary = _reason(creation, editor), creation.is_keyless, creation.is_primary
        unsteady, virtual = editor.unsteady, tuple(editor.virtual)
        of_database = schema is not None and editor.of_database
        yield Created(
            table, None, schema, if_absent, reason, is_keyless, replaces, is_primary, unsteady, of_database, virtual
        )


def _reason(creation: Creation, editor: TableEditor) -> str:
    if editor.has_hash:
        return HASHED
    if creation.has_rows:
        return FILLED
    if creation.is_versioned:
        return VERSIONED
    if engines := [part.reason for part in creation.options if isinstance(part, RowsMoved) and part.comes]:
        return engines[-1]
    return CASCADES if creation.cascades else ""


def _define(creation: Creation, editor: TableEditor) -> TableSchema | None:
    """Return the definition; None if it cannot be parsed and has to be read from the server."""
    if creation.parts is None or not editor.alter([*creation.options, *creation.parts]):
        return None
    return editor.keyed(creation.key)


def _create_index(read: _Statement) -> Iterator[Edit]:
    cursor = read.cursor
    is_unique = cursor.take("UNIQUE")
    cursor.take_one("FULLTEXT", "SPATIAL", "VECTOR")
    cursor.expect("INDEX")
    cursor.take("IF", "NOT", "EXISTS")
    name = cursor.name()
    while cursor.take_one("USING", "TYPE"):
        cursor.next()
    cursor.wait()
    cursor.expect("ON")
    table = read.table()
    parts = [AddKey(name, ())] if is_unique else []
    yield from _altered(read, table, parts, Effort(_may_copy(cursor)))


def _alter(read: _Statement) -> Iterator[Edit]:
    cursor = read.cursor
    is_lax = False
    while word := cursor.take_one("ONLINE", "OFFLINE", "IGNORE"):
        is_lax = is_lax or word == "IGNORE"
    if cursor.take_one("DATABASE", "SCHEMA"):
        yield from _database(read, is_new=False)
        return
    if not cursor.take("TABLE"):
        return
    if_exists = cursor.take("IF", "EXISTS")
    table = read.table()
    cursor.wait()
    effort = Effort(_may_copy(cursor), is_lax)
    refuses = any(token.word in _REFUSING for token in cursor.rest)
    parts = take_parts(cursor, read.database, read.session)
    if is_lax and (refuses or any(isinstance(part, AddKey) for part in parts)):
        yield Unfollowed(table, IGNORED, needs_rows=True)
    yield from _altered(read, table, parts, effort, if_exists=if_exists)


def _altered(
    read: _Statement, table: Name, parts: Sequence[Part], effort: Effort, *, if_exists: bool = False
) -> Iterator[Edit]:
    yield from _consequences(read, table, parts)
    to = [table, *(read.fold(part.table) for part in parts if isinstance(part, RenameTo))][-1]
    moved = [Renamed(table, to, if_exists)] if to != table else []
    known = read.known.get(table)
    if known is None:
        yield from moved
        return
    editor = TableEditor(known, read.around(table, known))
    is_read = editor.alter(parts)
    if editor.has_hash:
        yield Unfollowed(table, HASHED)
    if editor.breaks_members:
        yield Unfollowed(table, MEMBERS)
    if not is_read:
        yield from moved
        yield Unparsed(to, _certain(editor), effort)
        return
    if editor.is_changed:
        yield _of_editor(table, editor, effort)
    else:
        if editor.touches_key:
            yield Rekeyed(table, editor.uniques)
        if effort.copies:
            yield Rebuilt(table, effort)
    yield from moved


def _may_copy(cursor: Cursor) -> bool:
    """Return whether the server may copy the table for the rest of a statement: not to rename it, nor where the
    statement rules it out."""
    words = [token.word for token in cursor.rest]
    algorithm = ""
    for at, word in enumerate(words):
        if word == "ALGORITHM":
            algorithm = next((behind for behind in words[at + 1 : at + 3] if behind), "")
    is_rename = words[:1] == ["RENAME"] and words[1:2] not in (["COLUMN"], ["KEY"], ["INDEX"])
    is_alone = not any(token.text == "," or token.word in _PARTITION_WORDS for token in cursor.rest)
    return not (is_rename and is_alone) and algorithm not in _IN_PLACE


def _consequences(read: _Statement, table: Name, parts: Sequence[Part]) -> Iterator[Edit]:
    """Yield effects that no later event shows."""
    for part in parts:
        match part:
            case RowsMoved(reason, other, makes, ends, comes, event, of_partition):
                needs_rows = other is None and not comes
                yield Unfollowed(table, reason, needs_rows=needs_rows, event=event, of_partition=of_partition)
                if other is not None and ends:
                    yield Dropped(read.fold(other))
                elif other is not None and makes:
                    yield Created(read.fold(other), None, None, reason=reason)
                elif other is not None:
                    yield Unfollowed(read.fold(other), reason, of_partition=of_partition)
            case Versioning():
                yield Unfollowed(table, VERSIONED)
            case Cascade():
                yield Unfollowed(table, CASCADES)


def _of_editor(table: Name, editor: TableEditor, effort: Effort) -> Altered:
    columns = editor.columns()
    return Altered(
        table,
        editor.schema,
        columns.renames,
        columns.added,
        columns.fills,
        editor.unknown_fills,
        asks_key=editor.asks_key,
        makes_key=editor.makes_key,
        touches_key=editor.touches_key,
        uniques=editor.uniques,
        required=columns.required,
        recomputed=editor.recomputed,
        numbered=editor.numbered,
        effort=effort,
        unsteady=editor.unsteady,
        of_database=editor.of_database,
        virtual=tuple(editor.virtual),
    )


def _certain(editor: TableEditor) -> Columns:
    """Return the columns without new ones whose values are unknown."""
    columns = editor.columns()
    return replace(columns, added=tuple(name for name in columns.added if name not in editor.unknown_fills))


def _end(cursor: Cursor) -> None:
    if cursor:
        raise UnreadableError(f"{cursor.peek().text} is not known here")

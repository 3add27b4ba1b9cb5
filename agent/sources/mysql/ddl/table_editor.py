"""Table editor: applies the parts of an ALTER TABLE or CREATE TABLE, and returns the resulting columns. Pure.

In existing rows, a new column has its constant default, the implicit default of a NOT NULL column, or NULL; if the
default is not the same value for all rows, it is unknown (``unknown_fills``).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from sqlglot import exp

from agent.rows.schema import Column, TableSchema
from agent.sources.common.schema_diff import Columns
from agent.sources.mysql.ddl.expressions import defaults
from agent.sources.mysql.ddl.expressions.unsteady import is_unsteady, timestamps
from agent.sources.mysql.ddl.parser.alterations import (
    PRIMARY,
    AddColumn,
    AddKey,
    ChangeColumn,
    Convert,
    DropColumn,
    DropKey,
    Part,
    RenameColumn,
    SetDefault,
    Unread,
)
from agent.sources.mysql.ddl.parser.column_types import DefinitionContext, column_of, length_bytes, sized
from agent.sources.mysql.ddl.parser.cursor import UnreadableError
from agent.sources.mysql.ddl.parser.definitions import FIRST, Definition
from agent.sources.mysql.decode import charsets, type_names
from agent.sources.mysql.decode.types import FieldType, is_binary
from agent.sources.mysql.names import lowered
from agent.sources.mysql.retyping import texts
from agent.sources.mysql.retyping.numbers import UnfitError

_BLOBS: Final = frozenset({FieldType.BLOB, FieldType.BLOB_COMPRESSED, FieldType.GEOMETRY})
#: maximum bytes of an InnoDB index
_KEY_BYTES_MAX: Final = 3072
_TIMESTAMPS: Final = frozenset({FieldType.TIMESTAMP, FieldType.TIMESTAMP2})
_SHORT_TEXTS: Final = frozenset({FieldType.STRING, FieldType.VARCHAR})
_TEXTS: Final = _SHORT_TEXTS | {FieldType.BLOB, FieldType.VARCHAR_COMPRESSED, FieldType.BLOB_COMPRESSED}


@dataclass(frozen=True, slots=True)
class _Item:
    """``origin``: the column before the statement; None if it is new."""

    column: Column
    origin: str | None = None


class TableEditor:
    """Starts from ``schema``. ``unknown_fills``: new columns whose values in existing rows are unknown; ``asks_key``:
    the statement does not determine the remaining key.

    All parts of a statement refer to the columns before it, so that two columns may swap names; only positions
    (``AFTER``) and keys use new names.
    """

    def __init__(self, schema: TableSchema, around: DefinitionContext) -> None:
        self._before = schema
        self._around = around
        self._items = [_Item(column, column.name) for column in schema.columns]
        self._key: tuple[str, ...] | None = None
        #: column names that IF NOT EXISTS finds: of the original table, and of parts that have been applied
        self._taken = [column.name for column in schema.columns]
        self._is_defined_anew = False
        #: all texts are converted to one character set, whatever their own definition
        self._converts = False
        self._fills: dict[str, str] = {}
        self._required: set[str] = set()
        #: columns of the primary key that the statement makes: they are NOT NULL, whatever their definition
        self._of_primary: set[str] = set()
        #: what the statement's ALTER COLUMN say; they are of new columns too
        self._defaults: dict[str, exp.Expr | None] = {}
        self.unknown_fills: tuple[str, ...] = ()
        #: new columns that get the statement's time if they are the table's first ``timestamp``
        self._bare_timestamps: dict[str, Definition] = {}
        #: columns that were there and get an expression, or AUTO_INCREMENT
        self.recomputed: tuple[str, ...] = ()
        #: virtual generated columns that it defines, and their expressions
        self.virtual: dict[str, str] = {}
        self.numbered: frozenset[str] = frozenset()
        self.asks_key = False
        #: it may change which key the server uses
        self.touches_key = False
        #: columns, in lower case, of the unique keys that it makes
        self.uniques: tuple[frozenset[str], ...] = ()
        #: columns with members that have other bytes in the character set of a CONVERT, by their names before it
        self._broken: set[str] = set()
        #: it gets a unique key with a hidden column
        self.has_hash = False

    @property
    def schema(self) -> TableSchema:
        columns = [item.column for item in self._items]
        if self._key is not None:
            wanted = {*map(lowered, self._key)}
            columns = [replace(column, is_key=lowered(column.name) in wanted) for column in columns]
        return replace(self._before, columns=tuple(columns), collation=self._around.known_collation)

    @property
    def unsteady(self) -> tuple[str, ...]:
        """Return the virtual columns that it defines, and that have another value whenever they are read."""
        times = timestamps(self.schema)
        return tuple(name for name, expression in self.virtual.items() if is_unsteady(expression, times))

    @property
    def of_database(self) -> bool:
        """Return whether texts without a character set of their own get that of the database."""
        return self._around.of_database

    def keyed(self, key: tuple[str, ...]) -> TableSchema:
        """Return the current table with this key."""
        self._key = key
        return self.schema

    @property
    def is_changed(self) -> bool:
        is_same = self.schema == self._before and all(item.column.name == item.origin for item in self._items)
        is_same = is_same and self._around.known_collation == self._before.collation
        return not is_same or self._is_defined_anew or self._key is not None or self.asks_key

    @property
    def makes_key(self) -> bool:
        """Return whether the statement makes the primary key."""
        return bool(self._key)

    @property
    def breaks_members(self) -> bool:
        """Return whether a column that stays has members that are not what they were."""
        return any(item.origin in self._broken for item in self._items)

    def columns(self) -> Columns:
        """Return how the columns correspond to those before."""
        added = tuple(item.column.name for item in self._items if item.origin is None)
        renames = {
            item.column.name: item.origin
            for item in self._items
            if item.origin is not None and item.origin != item.column.name
        }
        wanted = {*map(lowered, (*self._required, *(self._key or ())))}
        required = frozenset(item.column.name for item in self._items if lowered(item.column.name) in wanted)
        fills = {name: text for name, text in self._fills.items() if name in added}
        return Columns(renames, added, fills, required)

    def alter(self, parts: Sequence[Part]) -> bool:
        """Apply the parts; return whether all are understood. As on the server, columns are first dropped and renamed,
        then placed one after another."""
        keys = [part for part in parts if isinstance(part, AddKey) and part.is_primary]
        self._of_primary = {lowered(name) for key in keys for name in key.columns}
        self._defaults = {lowered(part.name): part.default for part in parts if isinstance(part, SetDefault)}
        steps = [*((step, part) for step in (self._set, self._leave, self._come) for part in parts)]
        done = [_is_done(step, part) for step, part in steps]
        self._fill_first_timestamp()
        return all(done)

    def _fill_first_timestamp(self) -> None:
        """Without explicit defaults the first ``timestamp`` has the default CURRENT_TIMESTAMP."""
        first = next((item.column for item in self._items if item.column.type_id in _TIMESTAMPS), None)
        if first is not None and first.name in self._bare_timestamps:
            definition = replace(self._bare_timestamps[first.name], default=exp.CurrentTimestamp())
            self._fill(definition.node(), first)

    def _set(self, part: Part) -> bool:
        """Apply the character set, which affects all parts."""
        if not isinstance(part, Convert):
            return True
        return self._set_default(part.charset) and (part.is_default or self._convert())

    def _leave(self, part: Part) -> bool:
        """Drop or redefine columns in place."""
        match part:
            case DropColumn():
                return self._drop(part)
            case RenameColumn():
                return self._rename(part.old, part.new) or part.if_exists
            case ChangeColumn():
                return self._change(part)
        return True

    def _come(self, part: Part) -> bool:
        match part:
            case AddColumn():
                return self._add(part)
            case ChangeColumn():
                return self._move(part)
            case AddKey() | DropKey():
                self._set_key(part)
                return True
        return not isinstance(part, Unread)

    def _rename(self, old: str, new: str) -> bool:
        """Rename a column; return whether it exists."""
        at = self._original(old)
        if at is None:
            return False
        self._items[at] = replace(self._items[at], column=replace(self._items[at].column, name=new))
        return True

    def _is_hashed(self, key: AddKey) -> bool:
        """Return whether MariaDB hashes the key's columns, as they are too long for an index."""
        names = {*map(lowered, key.columns)}
        columns = [item.column for item in self._items if lowered(item.column.name) in names]
        has_blob = any(column.type_id in _BLOBS for column in columns)
        longest = sum(column.modifier for column in columns if column.type_id in _SHORT_TEXTS)
        return self._around.is_mariadb and (key.is_hashed or has_blob or longest > _KEY_BYTES_MAX)

    def _set_key(self, part: AddKey | DropKey) -> None:
        self.touches_key = True
        if isinstance(part, AddKey) and not part.is_primary:
            self.has_hash = self.has_hash or self._is_hashed(part)
            self.uniques = (*self.uniques, frozenset(map(lowered, part.columns)))
        if isinstance(part, AddKey) and part.is_primary and part.if_absent and self.schema.key:
            self.asks_key = True  # it may be the primary one
        elif isinstance(part, AddKey) and part.is_primary:
            self._key = part.columns
        elif isinstance(part, DropKey) and part.name.upper() == PRIMARY:
            self._key = self._key or ()
        elif isinstance(part, DropKey) or not self.schema.key:
            self.asks_key = True

    def _set_default(self, charset: str) -> bool:
        """Set the character set of texts that this statement or a later one adds."""
        collation = charsets.collation_of(charset) if charset else self._around.database_collation
        is_of_set = charset.lower().startswith("uca1400")
        if collation:
            self._around = replace(self._around, collation=collation, is_sure=True, of_database=not charset)
        return bool(collation) or is_of_set

    def _convert(self) -> bool:
        """Convert all texts to the current default character set; return whether the result is known."""
        collation = self._around.collation
        if collation == charsets.BINARY_COLLATION:
            return False
        for at, item in enumerate(self._items):
            if (item.column.members or item.column.type_id in _TEXTS) and not is_binary(item.column):
                self._items[at] = replace(item, column=_converted(item.column, collation))
                if item.origin and not _has_same_bytes(item.column, self._items[at].column):
                    self._broken.add(item.origin)
        self._is_defined_anew = self._converts = True
        return True

    def _add(self, part: AddColumn) -> bool:
        definition = part.definition
        default = self._defaults.get(lowered(definition.name), definition.default)
        definition = replace(definition, default=default)
        if part.if_absent and _index(definition.name, self._taken) is not None:
            return True
        self._taken.append(definition.name)
        column = self._column(definition)
        is_required = definition.is_required or lowered(definition.name) in self._of_primary
        self._fill(replace(definition, is_required=is_required).node(), column)
        if definition.is_bare_timestamp and self._around.session.explicit_timestamps is False:
            self._bare_timestamps[column.name] = definition
        return self._place(_Item(column), definition.place)

    def _fill(self, definition: exp.ColumnDef, column: Column) -> None:
        text = defaults.of_new_column(definition, column, self._around.session, is_mariadb=self._around.is_mariadb)
        if text is None:
            return
        if text is defaults.UNKNOWN_FILL:
            self.unknown_fills = (*self.unknown_fills, column.name)
        else:
            self._fills[column.name] = str(text)

    def _change(self, part: ChangeColumn) -> bool:
        definition = part.definition
        at = self._original(part.old)
        if at is None:
            return part.if_exists
        self._is_defined_anew = True  # possibly its character set, which only the server's definition shows
        item = self._items[at]
        self._broken.discard(item.origin or "")
        self._rename(part.old, definition.name)  # of any type
        column = self._column(definition)
        if definition.is_required:
            self._required.add(definition.name)
        if definition.is_numbered:
            self.numbered |= {definition.name}
        if definition.generated:
            self.recomputed = (*self.recomputed, definition.name)
        if item.column.is_key:
            self.touches_key = True
            column, self.asks_key = replace(column, is_key=True), self.asks_key or not definition.is_required
        self._items[at] = _Item(column, item.origin)
        return True

    def _move(self, part: ChangeColumn) -> bool:
        self._taken.append(part.definition.name)
        at = self._original(part.old)
        if at is None or part.definition.place is None:
            return True
        return self._place(self._items.pop(at), part.definition.place, at=at)

    def _drop(self, part: DropColumn) -> bool:
        at = self._original(part.name)
        if at is None:
            return part.if_exists
        self.touches_key = True
        if self._items.pop(at).column.is_key:
            self.asks_key = True
        return True

    def _column(self, definition: Definition) -> Column:
        """Return the column.

        :raises UnreadableError: its type or character set is unknown.
        """
        around = self._around
        is_of_bytes = definition.charset.lower() == "binary" and definition.type.name not in ("ENUM", "SET")
        if definition.charset and not is_of_bytes and not self._converts:
            collation = charsets.collation_of(definition.charset)
            if not collation:
                raise UnreadableError(f"{definition.charset} is no known character set")
            around = replace(around, collation=collation)
        if definition.generated and not definition.is_stored:
            self.virtual[definition.name] = definition.generated
        kind = definition.node().args["kind"]
        assert isinstance(kind, exp.DataType)
        column = column_of(definition.name, kind, around)
        if column is None:
            raise UnreadableError(f"{kind.sql('mysql')} is no known type")
        if self._converts and kind.this is exp.DataType.Type.JSON and column.type_id == FieldType.BLOB:
            column = replace(column, collation=around.collation)  # MariaDB converts the text of JSON like any other
        column = sized(column, definition.type)
        return _compressed(column) if definition.is_compressed else column

    def _place(self, item: _Item, place: str | None, *, at: int | None = None) -> bool:
        """Place the column; return whether the position exists."""
        is_placed = True
        if place == FIRST:
            at = 0
        elif place is not None:
            before = self._at(place)
            is_placed = before is not None
            at = at if before is None else before + 1
        self._items.insert(len(self._items) if at is None else at, item)
        return is_placed

    def _at(self, name: str) -> int | None:
        """Return the current index of the column of this name; names of columns are compared without case."""
        return _index(name, [item.column.name for item in self._items])

    def _original(self, name: str) -> int | None:
        """Return the index of the column that had this name before the statement."""
        return _index(name, [item.origin or "" for item in self._items])


def _compressed(column: Column) -> Column:
    """Add the byte in which MariaDB stores how a value is compressed."""
    if column.type_id == FieldType.VARCHAR:
        return _named(replace(column, type_id=int(FieldType.VARCHAR_COMPRESSED)), column.modifier + 1)
    return _named(replace(column, type_id=int(FieldType.BLOB_COMPRESSED)), column.modifier)


def _is_done(step: Callable[[Part], bool], part: Part) -> bool:
    try:
        return step(part)
    except UnreadableError:
        return False


def _converted(column: Column, collation: int) -> Column:
    """Convert to another character set: with as many characters, or at least as many if the type limits bytes."""
    if column.members:
        return replace(column, collation=collation)
    old, new = (charsets.bytes_per_character(charsets.charset_of(number)) for number in (column.collation, collation))
    column = replace(column, collation=collation)
    if column.type_id in _SHORT_TEXTS:
        return _named(column, column.modifier // old * new)
    if column.type_id == FieldType.VARCHAR_COMPRESSED:
        return _named(column, (column.modifier - 1) // old * new + 1)
    longest = ((1 << 8 * column.modifier) - 1) // old * new
    return _named(column, max(column.modifier, length_bytes(longest))) if new > old else column


def _has_same_bytes(before: Column, after: Column) -> bool:
    """Return whether the members have the same bytes in both character sets."""
    try:
        return all(texts.encoded(member, before) == texts.encoded(member, after) for member in before.members)
    except (UnfitError, KeyError):  # a character that the other one lacks
        return False


def _named(column: Column, modifier: int) -> Column:
    column = replace(column, modifier=modifier)
    return replace(column, type_name=type_names.name_of(column))


def _index(name: str, names: list[str]) -> int | None:
    others = [*map(lowered, names)]
    return others.index(lowered(name)) if lowered(name) in others else None

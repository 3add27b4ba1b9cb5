"""Table editor: applies the parts of one ALTER TABLE or CREATE TABLE, and gives the columns that result. Pure.

What existing rows hold in a new column is its constant default, the implicit one of a NOT NULL column, or NULL;
a default that is not one value for all rows is not known (``unknown_fills``).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from sqlglot import exp

from agent.rows.schema import Column, TableSchema
from agent.sources.common.schema_diff import Columns
from agent.sources.mysql.ddl import defaults
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
    Unread,
)
from agent.sources.mysql.ddl.parser.column_types import DefinitionContext, column_of
from agent.sources.mysql.ddl.parser.cursor import UnreadableError
from agent.sources.mysql.ddl.parser.definitions import FIRST, Definition
from agent.sources.mysql.ddl.parser.type_words import TypeWords
from agent.sources.mysql.decode import charsets, type_names
from agent.sources.mysql.decode.types import FieldType, is_binary

_BLOBS: Final = frozenset({FieldType.BLOB, FieldType.BLOB_COMPRESSED, FieldType.GEOMETRY})
#: bytes of an index of InnoDB
_KEY_BYTES_MAX: Final = 3072
_SHORT_TEXTS: Final = frozenset({FieldType.STRING, FieldType.VARCHAR})
_TEXTS: Final = _SHORT_TEXTS | {FieldType.BLOB, FieldType.VARCHAR_COMPRESSED, FieldType.BLOB_COMPRESSED}


@dataclass(frozen=True, slots=True)
class _Item:
    """``origin``: the column that it was before the statement; None where it is new."""

    column: Column
    origin: str | None = None


class TableEditor:
    """Starts from ``schema``. ``unknown_fills``: new columns whose values in existing rows are not known;
    ``asks_key``: the statement does not say which key is left.

    All parts of one statement speak of the columns as they were before it, so that two may swap their names; only
    places (``AFTER``) and keys go by new names.
    """

    def __init__(self, schema: TableSchema, around: DefinitionContext) -> None:
        self._before = schema
        self._around = around
        self._items = [_Item(column, column.name) for column in schema.columns]
        self._key: tuple[str, ...] | None = None
        #: names of columns that IF NOT EXISTS finds there: those of before, and of parts that have been carried out
        self._taken = [column.name for column in schema.columns]
        self._is_defined_anew = False
        #: all texts go to one character set, whatever they say themselves
        self._converts = False
        self._fills: dict[str, str] = {}
        self._required: set[str] = set()
        self.unknown_fills: tuple[str, ...] = ()
        self.asks_key = False
        #: it has a unique key with a hidden column from here on
        self.has_hash = False

    @property
    def schema(self) -> TableSchema:
        columns = [item.column for item in self._items]
        if self._key is not None:
            wanted = {name.lower() for name in self._key}
            columns = [replace(column, is_key=column.name.lower() in wanted) for column in columns]
        return replace(self._before, columns=tuple(columns), collation=self._around.known_collation)

    def keyed(self, key: tuple[str, ...]) -> TableSchema:
        """The table as it is, by this key."""
        self._key = key
        return self.schema

    @property
    def is_changed(self) -> bool:
        is_same = self.schema == self._before and all(item.column.name == item.origin for item in self._items)
        is_same = is_same and self._around.known_collation == self._before.collation
        return not is_same or self._is_defined_anew or self._key is not None or self.asks_key

    def columns(self) -> Columns:
        """How the columns belong to those before."""
        added = tuple(item.column.name for item in self._items if item.origin is None)
        renames = {
            item.column.name: item.origin
            for item in self._items
            if item.origin is not None and item.origin != item.column.name
        }
        wanted = {name.lower() for name in (*self._required, *(self._key or ()))}
        required = frozenset(item.column.name for item in self._items if item.column.name.lower() in wanted)
        fills = {name: text for name, text in self._fills.items() if name in added}
        return Columns(renames, added, fills, required)

    def alter(self, parts: Sequence[Part]) -> bool:
        """Whether all parts are understood. Columns go and change their names first, as at the server, then they come
        to their places, one after the other."""
        steps = [*((step, part) for step in (self._set, self._leave, self._come) for part in parts)]
        done = [_is_done(step, part) for step, part in steps]
        return all(done)

    def _set(self, part: Part) -> bool:
        """The character set, which counts for all parts."""
        if not isinstance(part, Convert):
            return True
        return self._set_default(part.charset) and (part.is_default or self._convert())

    def _leave(self, part: Part) -> bool:
        """The columns that go, or are another then, at the places where they are."""
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
        """Whether there is such a column."""
        at = self._original(old)
        if at is None:
            return False
        self._items[at] = replace(self._items[at], column=replace(self._items[at].column, name=new))
        return True

    def _is_hashed(self, key: AddKey) -> bool:
        """Whether MariaDB keeps a hash of its columns, as they are too long for an index."""
        names = {name.lower() for name in key.columns}
        columns = [item.column for item in self._items if item.column.name.lower() in names]
        has_blob = any(column.type_id in _BLOBS for column in columns)
        longest = sum(column.modifier for column in columns if column.type_id in _SHORT_TEXTS)
        return self._around.is_mariadb and (key.is_hashed or has_blob or longest > _KEY_BYTES_MAX)

    def _set_key(self, part: AddKey | DropKey) -> None:
        if isinstance(part, AddKey) and not part.is_primary:
            self.has_hash = self.has_hash or self._is_hashed(part)
        if isinstance(part, AddKey) and part.is_primary:
            self._key = part.columns
        elif isinstance(part, DropKey) and part.name.upper() == PRIMARY:
            self._key = self._key or ()
        elif isinstance(part, DropKey) or not self.schema.key:
            self.asks_key = True

    def _set_default(self, charset: str) -> bool:
        """The character set of texts that this statement or a later one adds."""
        collation = charsets.collation_of(charset) if charset else self._around.database_collation
        is_of_set = charset.lower().startswith("uca1400")
        if collation:
            self._around = replace(self._around, collation=collation, is_sure=True)
        return bool(collation) or is_of_set

    def _convert(self) -> bool:
        """All texts to the character set that is the default now. Whether it is known what they are then."""
        collation = self._around.collation
        if collation == charsets.BINARY_COLLATION:
            return False
        for at, item in enumerate(self._items):
            if (item.column.members or item.column.type_id in _TEXTS) and not is_binary(item.column):
                self._items[at] = replace(item, column=_converted(item.column, collation))
        self._is_defined_anew = self._converts = True
        return True

    def _add(self, part: AddColumn) -> bool:
        definition = part.definition
        if part.if_absent and _index(definition.name, self._taken) is not None:
            return True
        self._taken.append(definition.name)
        column, node = self._column(definition), definition.node()
        self._fill(node, column)
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
        self._is_defined_anew = True  # its character set, maybe, which only the server's definition shows
        item = self._items[at]
        self._rename(part.old, definition.name)  # to whatever type
        column = self._column(definition)
        if definition.is_required:
            self._required.add(definition.name)
        if item.column.is_key:
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
        if self._items.pop(at).column.is_key:
            self.asks_key = True
        return True

    def _column(self, definition: Definition) -> Column:
        """:raises UnreadableError: its type or its character set is not known."""
        around = self._around
        if definition.charset and definition.charset.lower() != "binary" and not self._converts:
            collation = charsets.collation_of(definition.charset)
            if not collation:
                raise UnreadableError(f"{definition.charset} is no known character set")
            around = replace(around, collation=collation)
        kind = definition.node().args["kind"]
        assert isinstance(kind, exp.DataType)
        column = column_of(definition.name, kind, around)
        if column is None:
            raise UnreadableError(f"{kind.sql('mysql')} is no known type")
        column = sized(column, definition.type)
        return _compressed(column) if definition.is_compressed else column

    def _place(self, item: _Item, place: str | None, *, at: int | None = None) -> bool:
        """Whether it is where it should be."""
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
        """Where the column of this name is now; names of columns differ in more than case."""
        return _index(name, [item.column.name for item in self._items])

    def _original(self, name: str) -> int | None:
        """Where the column is that had this name before the statement."""
        return _index(name, [item.origin or "" for item in self._items])


def _compressed(column: Column) -> Column:
    """MariaDB's: a byte more says how a value is compressed."""
    if column.type_id == FieldType.VARCHAR:
        return _named(replace(column, type_id=int(FieldType.VARCHAR_COMPRESSED)), column.modifier + 1)
    return _named(replace(column, type_id=int(FieldType.BLOB_COMPRESSED)), column.modifier)


def _is_done(step: Callable[[Part], bool], part: Part) -> bool:
    try:
        return step(part)
    except UnreadableError:
        return False


def sized(column: Column, words: TypeWords) -> Column:
    """With what its type alone does not say: the sign of a FLOAT, the bytes of a TEXT's length, how it is printed."""
    if words.is_unsigned and column.type_id in (FieldType.FLOAT, FieldType.DOUBLE):
        column = replace(column, is_unsigned=True)
    if words.size:
        longest = words.size * charsets.bytes_per_character(charsets.charset_of(column.collation))
        column = replace(column, modifier=_length_bytes(longest))
    if not (words.size or words.is_unsigned or words.display):
        return column
    return replace(column, type_name=type_names.name_of(column, words.display, is_zerofill=words.is_zerofill))


def _converted(column: Column, collation: int) -> Column:
    """In another character set: of as many characters, or, in a type by the bytes of its length, at least as many."""
    if column.members:
        return replace(column, collation=collation)
    old, new = (charsets.bytes_per_character(charsets.charset_of(number)) for number in (column.collation, collation))
    column = replace(column, collation=collation)
    if column.type_id in _SHORT_TEXTS:
        return _named(column, column.modifier // old * new)
    if column.type_id == FieldType.VARCHAR_COMPRESSED:
        return _named(column, (column.modifier - 1) // old * new + 1)
    longest = ((1 << 8 * column.modifier) - 1) // old * new
    return _named(column, max(column.modifier, _length_bytes(longest))) if new > old else column


def _length_bytes(longest: int) -> int:
    """The length's bytes of the smallest type of text that holds so many bytes."""
    return next((width for width in (1, 2, 3) if longest < 1 << 8 * width), 4)


def _named(column: Column, modifier: int) -> Column:
    column = replace(column, modifier=modifier)
    return replace(column, type_name=type_names.name_of(column))


def _index(name: str, names: list[str]) -> int | None:
    lowered = [other.lower() for other in names]
    return lowered.index(name.lower()) if name.lower() in lowered else None

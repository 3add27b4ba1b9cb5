"""The parts of one ALTER TABLE, or of a CREATE TABLE, taken one after the other: what the columns come to. Pure.

What rows that were there hold in a new column is its constant default, the implicit one of a NOT NULL column, or NULL;
a default that is not one value for all rows is *untold*.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from sqlglot import exp

from agent.rows.schema import Column, TableSchema
from agent.sources.common.schema_diff import Columns
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
from agent.sources.mysql.ddl.parser.column_types import Surroundings, column_of
from agent.sources.mysql.ddl.parser.cursor import UnreadableError
from agent.sources.mysql.ddl.parser.definitions import FIRST, Definition
from agent.sources.mysql.ddl.parser.type_words import TypeWords
from agent.sources.mysql.decode import charsets, type_names
from agent.sources.mysql.decode.types import CHARACTER_TYPES, FieldType, is_binary
from agent.sources.mysql.values import defaults

_SHORT_TEXTS: Final = frozenset({FieldType.STRING, FieldType.VARCHAR})


@dataclass(frozen=True, slots=True)
class _Item:
    """``origin``: the column that it was before the statement; None where it is new."""

    column: Column
    origin: str | None = None


class TableEditor:
    """Starts from ``schema``. ``untold``: new columns whose values in rows that were there nobody can tell;
    ``asks_key``: the statement does not tell which key is left.

    All parts of one statement speak of the columns as they were before it, so that two may swap their names; only
    places (``AFTER``) and keys go by new names.
    """

    def __init__(self, schema: TableSchema, around: Surroundings) -> None:
        self._before = schema
        self._around = around
        self._items = [_Item(column, column.name) for column in schema.columns]
        self._key: tuple[str, ...] | None = None
        self._is_defined_anew = False
        self._fills: dict[str, str] = {}
        self._required: set[str] = set()
        self.untold: tuple[str, ...] = ()
        self.asks_key = False

    @property
    def schema(self) -> TableSchema:
        columns = [item.column for item in self._items]
        if self._key is not None:
            wanted = {name.lower() for name in self._key}
            columns = [replace(column, is_key=column.name.lower() in wanted) for column in columns]
        return replace(self._before, columns=tuple(columns))

    def keyed(self, key: tuple[str, ...]) -> TableSchema:
        """The table as it is, by this key."""
        self._key = key
        return self.schema

    @property
    def is_changed(self) -> bool:
        is_same = self.schema == self._before and all(item.column.name == item.origin for item in self._items)
        return not is_same or self._is_defined_anew or self._key is not None or self.asks_key

    def columns(self) -> Columns:
        """How the columns belong to those before."""
        added = tuple(item.column.name for item in self._items if item.origin is None)
        renames = {
            item.column.name: item.origin
            for item in self._items
            if item.origin is not None and item.origin != item.column.name
        }
        required = self._required | set(self._key or ())
        fills = {name: text for name, text in self._fills.items() if name in added}
        return Columns(renames, added, fills, frozenset(item.column.name for item in self._items) & required)

    def alter(self, parts: Sequence[Part]) -> bool:
        """Whether all parts are understood. Columns go and change their names first, as at the server, then they come
        to their places, one after the other."""
        steps = [*((self._leave, part) for part in parts), *((self._come, part) for part in parts)]
        done = [_is_done(step, part) for step, part in steps]
        return all(done)

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
            case Convert(charset, is_default):
                return is_default or self.convert(charset)
        return not isinstance(part, Unread)

    def _rename(self, old: str, new: str) -> bool:
        """Whether there is such a column."""
        at = self._original(old)
        if at is None:
            return False
        self._items[at] = replace(self._items[at], column=replace(self._items[at].column, name=new))
        return True

    def _set_key(self, part: AddKey | DropKey) -> None:
        if isinstance(part, AddKey) and part.is_primary:
            self._key = part.columns
        elif isinstance(part, DropKey) and part.name.upper() == PRIMARY:
            self._key = self._key or ()
        elif isinstance(part, DropKey) or not self.schema.key:
            self.asks_key = True

    def convert(self, charset: str) -> bool:
        """All texts to another character set. Whether that is known, and of which size they are then."""
        collation = charsets.collation_of(charset)
        if not collation or charset.lower() == "binary":
            return False
        for at, item in enumerate(self._items):
            column = item.column
            if column.members or (column.type_id in CHARACTER_TYPES and not is_binary(column)):
                self._items[at] = replace(item, column=_converted(column, collation))
        self._is_defined_anew = True
        return True

    def _add(self, part: AddColumn) -> bool:
        definition = part.definition
        if part.if_absent and self._is_there(definition.name):
            return True
        column, node = self._column(definition), definition.node()
        self._fill(node, column)
        return self._place(_Item(column), definition.place)

    def _is_there(self, name: str) -> bool:
        """By its name before the statement, or as one that came with it."""
        return self._at(name) is not None

    def _fill(self, definition: exp.ColumnDef, column: Column) -> None:
        text = defaults.of_new_column(definition, column, self._around.session)
        if text is None:
            return
        if text is defaults.UNTOLD:
            self.untold = (*self.untold, column.name)
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
        """:raises UnreadableError: nobody knows its type or its character set."""
        around = self._around
        if definition.charset and definition.charset.lower() != "binary":
            collation = charsets.collation_of(definition.charset)
            if not collation:
                raise UnreadableError(f"{definition.charset} is no known character set")
            around = replace(around, collation=collation)
        kind = definition.node().args["kind"]
        assert isinstance(kind, exp.DataType)
        column = column_of(definition.name, kind, around)
        if column is None or definition.is_compressed:
            raise UnreadableError(f"{kind.sql('mysql')} is no known type")
        return sized(column, definition.type)

    def _place(self, item: _Item, place: str | None, *, at: int | None = None) -> bool:
        """Whether it stands where it should."""
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
        column = replace(column, modifier=next(width for width in (1, 2, 3, 4) if longest < 1 << 8 * width))
    if not (words.size or words.is_unsigned or words.display):
        return column
    return replace(column, type_name=type_names.name_of(column, words.display, is_zerofill=words.is_zerofill))


def _converted(column: Column, collation: int) -> Column:
    """A text of as many characters, for which it may become a larger type."""
    if column.members:
        return replace(column, collation=collation)
    old, new = (charsets.bytes_per_character(charsets.charset_of(number)) for number in (column.collation, collation))
    if column.type_id in _SHORT_TEXTS:
        return replace(column, collation=collation, modifier=column.modifier // old * new)
    longest = ((1 << 8 * column.modifier) - 1) // old * new
    width = max(column.modifier, next((size for size in (1, 2, 3) if longest < 1 << 8 * size), 4))
    column = replace(column, collation=collation, modifier=width)
    return replace(column, type_name=type_names.name_of(column))


def _index(name: str, names: list[str]) -> int | None:
    lowered = [other.lower() for other in names]
    return lowered.index(name.lower()) if name.lower() in lowered else None

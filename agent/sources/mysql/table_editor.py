"""The parts of one ALTER TABLE, or of a CREATE TABLE, taken one after the other: what the columns come to. Pure.

What rows that were there hold in a new column is its constant default, the implicit one of a NOT NULL column, or NULL;
a default that is not one value for all rows is *untold*.
"""

from dataclasses import dataclass, replace
from typing import Final

from sqlglot import exp

from agent.schema import Column, TableSchema
from agent.sources.comparing import Columns
from agent.sources.mysql import charsets, defaults
from agent.sources.mysql.column_types import Surroundings, column_of
from agent.sources.mysql.types import CHARACTER_TYPES, FieldType, is_binary

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
        self.untold: tuple[str, ...] = ()
        self.asks_key = False

    @property
    def schema(self) -> TableSchema:
        columns = [item.column for item in self._items]
        if self._key is not None:
            wanted = {name.lower() for name in self._key}
            columns = [replace(column, is_key=column.name.lower() in wanted) for column in columns]
        return replace(self._before, columns=tuple(columns))

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
        return Columns(renames, added, {name: text for name, text in self._fills.items() if name in added})

    def take(self, action: exp.Expr) -> bool:
        """Whether it is understood."""
        match action:
            case exp.ColumnDef():
                return self._add(action)
            case exp.Schema():
                return all(self.take(item) for item in action.expressions)
            case exp.ModifyColumn():
                return self._modify(action)
            case exp.RenameColumn():
                return self.rename(action.this.name, action.args["to"].name) or bool(action.args.get("exists"))
            case exp.Drop():
                return self._drop(action)
            case exp.DropPrimaryKey():
                self._key = self._key or ()
                return True
            case exp.AddConstraint():
                return all(self.take(item) for item in action.expressions)
            case exp.PrimaryKey():
                self._key = tuple(item.name for item in action.expressions)
                return True
            case exp.AlterColumn() | exp.IndexColumnConstraint() | exp.UniqueColumnConstraint() | exp.Constraint():
                return True
            case exp.ForeignKey() | exp.CheckColumnConstraint():
                return True
        return False

    def rename(self, old: str, new: str) -> bool:
        """Whether there is such a column."""
        at = self._original(old)
        if at is None:
            return False
        self._items[at] = replace(self._items[at], column=replace(self._items[at].column, name=new))
        return True

    def convert(self, charset: str) -> bool:
        """All texts to another character set. Whether that is known, and of which size they are then."""
        collation = charsets.collation_of(charset)
        if not collation or charset.lower() == "binary":
            return False
        for at, item in enumerate(self._items):
            column = item.column
            if column.type_id in CHARACTER_TYPES and not is_binary(column) and column.type_id not in _SHORT_TEXTS:
                return False  # a text may become a larger type
            if column.members or (column.type_id in _SHORT_TEXTS and not is_binary(column)):
                self._items[at] = replace(item, column=_converted(column, collation))
        self._is_defined_anew = True
        return True

    def _add(self, definition: exp.ColumnDef) -> bool:
        if definition.args.get("exists") and self._at(definition.name) is not None:
            return True
        column = self._column(definition, definition.name)
        if column is None:
            return False
        self._fill(definition, column)
        return self._place(_Item(column), definition.args.get("position"))

    def _fill(self, definition: exp.ColumnDef, column: Column) -> None:
        text = defaults.of_new_column(definition, column, self._around.session)
        if text is None:
            return
        if text is defaults.UNTOLD:
            self.untold = (*self.untold, column.name)
        else:
            self._fills[column.name] = str(text)

    def _modify(self, action: exp.ModifyColumn) -> bool:
        definition = action.this
        old = action.args["rename_from"].name if action.args.get("rename_from") else definition.name
        at, column = self._original(old), self._column(definition, definition.name)
        if at is None:
            return bool(action.args.get("exists"))
        if column is None:
            return False
        self._is_defined_anew = True  # its character set, maybe, which only the server's definition shows
        item = self._items.pop(at)
        if item.column.is_key:
            column, self.asks_key = replace(column, is_key=True), self.asks_key or not defaults.is_required(definition)
        return self._place(_Item(column, item.origin), definition.args.get("position"), at=at)

    def _drop(self, action: exp.Drop) -> bool:
        if action.args.get("kind") != "COLUMN":
            return False
        for dropped in action.args.get("tables") or ([action.this] if action.this else []):
            at = self._original(dropped.name)
            if at is None:
                return bool(action.args.get("exists"))
            if self._items.pop(at).column.is_key:
                self.asks_key = True
        return True

    def _column(self, definition: exp.ColumnDef, name: str) -> Column | None:
        kind = definition.args.get("kind")
        around = _with_charset(self._around, definition)
        column = column_of(name, kind, around) if around and isinstance(kind, exp.DataType) else None
        if any(isinstance(item.kind, exp.PrimaryKeyColumnConstraint) for item in definition.constraints):
            self._key = (name,)
        return column

    def _place(self, item: _Item, position: exp.Expr | None, *, at: int | None = None) -> bool:
        """Whether it stands where it should: what it comes after may be named by a later part only."""
        is_placed = True
        if position is not None and position.args.get("position") == "FIRST":
            at = 0
        elif position is not None:
            before = self._at(position.this.name)
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


def _with_charset(around: Surroundings, definition: exp.ColumnDef) -> Surroundings | None:
    """As the column itself says; None where nobody knows that character set."""
    kinds = (exp.CharacterSetColumnConstraint, exp.CollateColumnConstraint)
    for constraint in definition.constraints:
        if isinstance(constraint.kind, kinds):
            collation = charsets.collation_of(constraint.kind.this.name)
            if not collation or constraint.kind.this.name.lower() == "binary":
                return None
            around = replace(around, collation=collation)
    return around


def _converted(column: Column, collation: int) -> Column:
    if column.members:
        return replace(column, collation=collation)
    old, new = (charsets.bytes_per_character(charsets.charset_of(number)) for number in (column.collation, collation))
    return replace(column, collation=collation, modifier=column.modifier // old * new)


def _index(name: str, names: list[str]) -> int | None:
    lowered = [other.lower() for other in names]
    return lowered.index(name.lower()) if name.lower() in lowered else None

"""The parts of one ALTER TABLE, or of a CREATE TABLE, taken one after the other: what the columns come to. Pure.

What rows that were there hold in a new column is its constant default, the implicit one of a NOT NULL column, or NULL;
a default that is not one value for all rows is *untold*.
"""

from dataclasses import replace

from sqlglot import exp

from agent.schema import Column, TableSchema
from agent.sources.comparing import Columns
from agent.sources.mysql import defaults
from agent.sources.mysql.column_types import Surroundings, column_of


class TableEditor:
    """Starts from ``schema``. ``untold``: new columns whose values in rows that were there nobody can tell;
    ``loses_key``: the primary key went, and none came."""

    def __init__(self, schema: TableSchema, around: Surroundings) -> None:
        self.schema = schema
        self._before = schema
        self._around = around
        self._origins = {column.name: column.name for column in schema.columns}
        self._fills: dict[str, str] = {}
        self.untold: tuple[str, ...] = ()
        self.loses_key = False
        self._is_key_changed = False

    @property
    def is_changed(self) -> bool:
        return self.schema != self._before or self._is_key_changed or any(a != b for a, b in self._origins.items())

    def columns(self) -> Columns:
        """How the columns belong to those before."""
        names = [column.name for column in self.schema.columns]
        added = tuple(name for name in names if name not in self._origins)
        renames = {name: self._origins[name] for name in names if self._origins.get(name, name) != name}
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
                return self._rename(action.this.name, action.args["to"].name)
            case exp.Drop():
                return self._drop(action)
            case exp.DropPrimaryKey():
                self._set_key(())
                return True
            case exp.AddConstraint():
                return all(self.take(item) for item in action.expressions)
            case exp.PrimaryKey():
                self._set_key(tuple(item.name for item in action.expressions))
                return True
            case exp.AlterColumn() | exp.IndexColumnConstraint() | exp.UniqueColumnConstraint() | exp.Constraint():
                return True
            case exp.ForeignKey() | exp.CheckColumnConstraint():
                return True
        return False

    def _add(self, definition: exp.ColumnDef) -> bool:
        if self._at(definition.name) is not None:
            return bool(definition.args.get("exists"))
        column = self._column(definition, definition.name)
        if column is None:
            return False
        self._place(column, definition.args.get("position"))
        self._origins.pop(column.name, None)
        self._fill(definition, column)
        return True

    def _fill(self, definition: exp.ColumnDef, column: Column) -> None:
        text = defaults.of_new_column(definition, column)
        if text is None:
            return
        if text is defaults.UNTOLD:
            self.untold = (*self.untold, column.name)
        else:
            self._fills[column.name] = str(text)

    def _modify(self, action: exp.ModifyColumn) -> bool:
        definition = action.this
        old = action.args["rename_from"].name if action.args.get("rename_from") else definition.name
        at, column = self._at(old), self._column(definition, definition.name)
        if at is None or column is None:
            return False
        was_key = self.schema.columns[at].is_key
        self._replace([*self.schema.columns[:at], *self.schema.columns[at + 1 :]])
        position = definition.args.get("position")
        self._place(replace(column, is_key=column.is_key or was_key), position, at=at)
        self._follow(old, definition.name)
        return True

    def _rename(self, old: str, new: str) -> bool:
        at = self._at(old)
        if at is None:
            return False
        columns = list(self.schema.columns)
        columns[at] = replace(columns[at], name=new)
        self._replace(columns)
        self._follow(old, new)
        return True

    def _follow(self, old: str, new: str) -> None:
        origin = self._origins.pop(self._spelled(old), None)
        if origin is not None:
            self._origins[new] = origin

    def _spelled(self, name: str) -> str:
        return next((known for known in self._origins if known.lower() == name.lower()), name)

    def _drop(self, action: exp.Drop) -> bool:
        if action.args.get("kind") != "COLUMN":
            return True
        for item in action.args.get("tables") or ([action.this] if action.this else []):
            at = self._at(item.name)
            if at is None:
                return bool(action.args.get("exists"))
            self._origins.pop(self.schema.columns[at].name, None)
            self._replace([*self.schema.columns[:at], *self.schema.columns[at + 1 :]])
        return True

    def _set_key(self, names: tuple[str, ...]) -> None:
        wanted = {name.lower() for name in names}
        self._replace([replace(column, is_key=column.name.lower() in wanted) for column in self.schema.columns])
        self.loses_key, self._is_key_changed = not names, True

    def _column(self, definition: exp.ColumnDef, name: str) -> Column | None:
        kind = definition.args.get("kind")
        column = column_of(name, kind, self._around) if isinstance(kind, exp.DataType) else None
        is_key = any(isinstance(item.kind, exp.PrimaryKeyColumnConstraint) for item in definition.constraints)
        return None if column is None else replace(column, is_key=is_key)

    def _place(self, column: Column, position: exp.Expr | None, *, at: int | None = None) -> None:
        columns = list(self.schema.columns)
        if position is not None and position.args.get("position") == "FIRST":
            at = 0
        elif position is not None and (before := self._at(position.this.name)) is not None:
            at = before + 1
        columns.insert(len(columns) if at is None else at, column)
        self._replace(columns)

    def _at(self, name: str) -> int | None:
        """Names of columns differ in more than case."""
        names = [column.name.lower() for column in self.schema.columns]
        return names.index(name.lower()) if name.lower() in names else None

    def _replace(self, columns: list[Column]) -> None:
        self.schema = replace(self.schema, columns=tuple(columns))

"""Expression SQL: writes a parsed condition in the SQL of a server.

The text of whoever wrote the condition never reaches the server: names are the table's own, quoted; texts and numbers
are constants; and every operation is in parentheses. So a condition cannot do what ``expressions`` does not list.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from sqlglot import exp

from agent.errors import FilterError
from agent.filter.expressions import Expression


@dataclass(frozen=True, slots=True)
class SqlWords:
    """The spelling on a kind of server: names, texts, a comparison in which NULL equals NULL, and a regular
    expression."""

    identifier: Callable[[str], str]
    literal: Callable[[str], str]
    same: str
    matches: str


_OPERATORS: Final[dict[type[exp.Expr], str]] = {
    exp.And: "AND",
    exp.Or: "OR",
    exp.EQ: "=",
    exp.NEQ: "<>",
    exp.GT: ">",
    exp.GTE: ">=",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.Add: "+",
    exp.Sub: "-",
    exp.Mul: "*",
    exp.Mod: "%",
    exp.Like: "LIKE",
    exp.Is: "IS",
}
_FUNCTIONS: Final[dict[type[exp.Expr], str]] = {
    exp.Lower: "lower",
    exp.Upper: "upper",
    exp.Length: "char_length",
    exp.Abs: "abs",
}


def in_sql(expression: Expression, names: Sequence[str], words: SqlWords) -> str:
    """Return the condition in SQL, in parentheses. ``names``: the table's columns.

    :raises FilterError: it names another column.
    """
    return f"({_Writer(expression, names, words).write(expression.tree)})"


@dataclass(frozen=True, slots=True)
class _Writer:
    expression: Expression
    names: Sequence[str]
    words: SqlWords

    def write(self, node: exp.Expr) -> str:
        match node:
            case exp.Paren():
                return self.write(node.this)
            case exp.Column():
                return self.words.identifier(self._name(node.name))
            case exp.Literal():
                return self.words.literal(str(node.this)) if node.is_string else format(Decimal(str(node.this)), "f")
            case exp.Boolean():
                return "TRUE" if node.this else "FALSE"
            case exp.Null():
                return "NULL"
            case exp.Neg():
                return f"(- {self.write(node.this)})"
            case exp.Not():
                return f"(NOT {self.write(node.this)})"
            case exp.NullSafeEQ():
                return f"({self.write(node.this)} {self.words.same} {self.write(node.expression)})"
            case exp.RegexpLike():
                return f"({self.write(node.this)} {self.words.matches} {self.write(node.expression)})"
            case exp.In():
                return f"({self.write(node.this)} IN ({self._list(node.expressions)}))"
            case exp.Between():
                ends = f"{self.write(node.args['low'])} AND {self.write(node.args['high'])}"
                return f"({self.write(node.this)} BETWEEN {ends})"
            case exp.Coalesce():
                return f"coalesce({self._list([node.this, *node.expressions])})"
        if type(node) in _FUNCTIONS:
            return f"{_FUNCTIONS[type(node)]}({self.write(node.this)})"
        return f"({self.write(node.this)} {_OPERATORS[type(node)]} {self.write(node.expression)})"

    def _list(self, nodes: Sequence[exp.Expr]) -> str:
        return ", ".join(map(self.write, nodes))

    def _name(self, written: str) -> str:
        """As ``expressions`` finds columns: the exact name, or else the only one that differs in case."""
        near = [name for name in self.names if name.casefold() == written.casefold()]
        if written in self.names:
            return written
        if len(near) != 1:
            raise FilterError(f"the expression {self.expression.text!r} names {written!r}: there is no such column")
        return near[0]

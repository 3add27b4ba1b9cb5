"""SQL expressions: find the rows of a batch for which a condition is true.

sqlglot parses the text; the tree is evaluated on whole Arrow columns, with SQL's three-valued logic. A quoted literal
takes the type of the column that it is compared with. Anything not listed in ``_KNOWN`` is rejected when the expression
is parsed, never while rows flow.
"""

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import sqlglot
from sqlglot import exp
from sqlglot.errors import ParseError, SqlglotError

from agent.errors import FilterError

Mask = npt.NDArray[np.bool_]

#: each level takes a few stack frames, both when parsing and when evaluating
_DEPTH_MAX: Final = 100
_LENGTH_MAX: Final = 20_000
_INT64_MAX: Final = 2**63 - 1
#: of a decimal in Arrow; longer numbers are floats
_DECIMAL_DIGITS_MAX: Final = 76
#: of a double
_EXPONENT_MAX: Final = 308


@dataclass(frozen=True, slots=True)
class Expression:
    """A parsed condition. ``columns``: the names that it reads, as written. ``tree``: of what ``_KNOWN`` lists."""

    text: str
    columns: tuple[str, ...]
    tree: exp.Expr

    def matches(self, rows: pa.RecordBatch) -> Mask:
        """Return a mask of the rows for which the condition is true; NULL is not true.

        :raises FilterError: it cannot be evaluated over columns of these types.
        """
        try:
            value = _evaluate(self.tree, rows)
            if not isinstance(value, pa.Array):
                value = pa.repeat(value, rows.num_rows)
            found = pc.fill_null(value.cast(pa.bool_()), False)
        except (pa.ArrowException, TypeError) as error:
            reason = str(error).splitlines()[0][:160]
            raise FilterError(
                f"the expression {self.text!r} does not fit its columns: {reason}; compare each with its own type"
            ) from error
        mask: Mask = found.to_numpy(zero_copy_only=False)
        return mask


def _place(error: SqlglotError) -> str:
    """Return where parsing failed, if known. The parser's own message names its classes, so it is not shown."""
    [first, *_] = error.errors if isinstance(error, ParseError) and error.errors else [{}]
    return f" at character {first['col']}" if first.get("line") == 1 and first.get("col") else ""


def parse(text: str) -> Expression:
    """:raises FilterError: the text is not one SQL condition, or uses unsupported parts."""
    if len(text) > _LENGTH_MAX:
        raise FilterError(f"the expression {text[:40]!r}… is longer than {_LENGTH_MAX} characters; write a shorter one")
    try:
        trees = [tree for tree in sqlglot.parse(text, dialect="mysql") if tree is not None]
    except RecursionError:
        raise _too_deep(text) from None
    except SqlglotError as error:
        raise FilterError(
            f"the expression {text!r} cannot be read{_place(error)}; write one condition in SQL"
        ) from None
    if len(trees) != 1:
        raise FilterError(f"the expression {text!r} is not one condition; join conditions with AND or OR")
    _refuse_deep(trees[0], text)
    _refuse_unknown(trees[0], text)
    columns = dict.fromkeys(column.name for column in trees[0].find_all(exp.Column))
    return Expression(text, tuple(columns), trees[0])


def _refuse_deep(tree: exp.Expr, text: str) -> None:
    level: list[exp.Expr] = [tree]
    for _ in range(_DEPTH_MAX):
        level = [inner for node in level for inner in node.iter_expressions()]
        if not level:
            return
    raise _too_deep(text)


def _too_deep(text: str) -> FilterError:
    return FilterError(
        f"the expression {text[:40]!r}… has more than {_DEPTH_MAX} levels; join fewer conditions, or write IN (…)"
    )


def _refuse_unknown(tree: exp.Expr, text: str) -> None:
    for node in tree.walk():
        if type(node) not in _KNOWN:
            what = node.sql(dialect="mysql")
            raise FilterError(f"the expression {text!r} uses {what!r}, which is not supported; see docs/operating.md")
        if isinstance(node, exp.Literal) and not node.is_string and not _is_number(str(node.this)):
            raise FilterError(
                f"the expression {text[:80]!r} has {str(node.this)[:20]!r}, which is no number up to 1e{_EXPONENT_MAX}"
            )
        if isinstance(node, exp.In) and not node.expressions and not node.args.get("query"):
            raise FilterError(f"the expression {text!r} has an empty list; name at least one value in IN (…)")
        if isinstance(node, exp.Column) and node.table:
            raise FilterError(f"the expression {text!r} names {node.sql()!r}; write columns without a table's name")


def _is_number(text: str) -> bool:
    try:
        return abs(Decimal(text).adjusted()) <= _EXPONENT_MAX
    except InvalidOperation:
        return False


def _evaluate(node: exp.Expr, rows: pa.RecordBatch) -> Any:
    """Return an array of the rows' length, or a scalar."""
    match node:
        case exp.Paren():
            return _evaluate(node.this, rows)
        case exp.Column():
            return rows.column(_column_index(node.name, rows.schema))
        case exp.Literal():
            return _literal(node)
        case exp.Boolean():
            return pa.scalar(bool(node.this))
        case exp.Null():
            return pa.scalar(None)
        case exp.Neg():
            return pc.negate(_evaluate(node.this, rows))
        case exp.Not():
            return pc.invert(_evaluate(node.this, rows).cast(pa.bool_()))
        case exp.Is():
            return _is(_evaluate(node.this, rows), node.expression)
        case exp.NullSafeEQ():
            return _null_safe_equal(*_alike(_evaluate(node.this, rows), _evaluate(node.expression, rows)))
        case exp.In():
            return _any_equal(_evaluate(node.this, rows), [_evaluate(item, rows) for item in node.expressions])
        case exp.Between():
            value = _evaluate(node.this, rows)
            low = pc.greater_equal(*_alike(value, _evaluate(node.args["low"], rows)))
            return pc.and_kleene(low, pc.less_equal(*_alike(value, _evaluate(node.args["high"], rows))))
        case exp.Like():
            return pc.match_like(_evaluate(node.this, rows), _text(node.expression))
        case exp.RegexpLike():
            return pc.match_substring_regex(_evaluate(node.this, rows), _text(node.expression))
        case exp.Coalesce():
            values = [node.this, *node.expressions]
            return pc.coalesce(*(_evaluate(item, rows) for item in values))
    if type(node) in _FUNCTIONS:
        return _FUNCTIONS[type(node)](_evaluate(node.this, rows))
    operands = _evaluate(node.this, rows), _evaluate(node.expression, rows)
    return _BINARY[type(node)](*operands)


def _column_index(name: str, schema: pa.Schema) -> int:
    """Return the column's index: an exact match, or else the only one that differs in case (MySQL ignores case).

    :raises TypeError: there is none.
    """
    if (at := schema.get_field_index(name)) >= 0:
        return int(at)
    near = [at for at, known in enumerate(schema.names) if known.casefold() == name.casefold()]
    if len(near) != 1:
        raise TypeError(f"there is no column {name}")
    return near[0]


def _literal(node: exp.Literal) -> pa.Scalar:
    if node.is_string:
        return pa.scalar(str(node.this))
    text = str(node.this)
    if text.isdigit() and int(text) <= _INT64_MAX:
        return pa.scalar(int(text))
    number = Decimal(text)
    digits, exponent = len(number.as_tuple().digits), int(number.as_tuple().exponent)
    fits = max(digits + exponent, digits, -exponent) <= _DECIMAL_DIGITS_MAX
    return pa.scalar(number if fits else float(text))


def _text(node: exp.Expr) -> str:
    if not (isinstance(node, exp.Literal) and node.is_string):
        raise TypeError("a pattern is a text in quotes")
    return str(node.this)


def _alike(left: Any, right: Any) -> tuple[Any, Any]:
    """Cast a text to the type of the other side; compare a boolean with numbers as 0 and 1."""
    for value, other in ((left, right), (right, left)):
        if pa.types.is_boolean(value.type) and pa.types.is_integer(other.type):
            return left.cast(pa.int64()), right.cast(pa.int64())
        if isinstance(value, pa.Scalar) and pa.types.is_string(value.type) and not _is_text(other.type):
            typed = value.cast(other.type)
            return (typed, right) if value is left else (left, typed)
    return left, right


def _is_text(arrow: pa.DataType) -> bool:
    return bool(pa.types.is_string(arrow) or pa.types.is_large_string(arrow) or pa.types.is_null(arrow))


def _is(value: Any, what: exp.Expr) -> Any:
    if isinstance(what, exp.Null):
        return pc.is_null(value)
    if not isinstance(what, exp.Boolean):
        raise TypeError("IS is followed by NULL, TRUE or FALSE")
    flag = value.cast(pa.bool_())
    return pc.fill_null(flag if what.this else pc.invert(flag), False)


def _null_safe_equal(left: Any, right: Any) -> Any:
    both = pc.and_(pc.is_null(left), pc.is_null(right))
    return pc.or_(both, pc.fill_null(pc.equal(left, right), False))


def _any_equal(value: Any, items: list[Any]) -> Any:
    found = pc.equal(*_alike(value, items[0]))
    for item in items[1:]:
        found = pc.or_kleene(found, pc.equal(*_alike(value, item)))
    return found


def _compared(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda left, right: function(*_alike(left, right))


def _arithmetic(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """As in SQL, integers are added up as wide ones, however narrow their columns are."""
    return lambda left, right: function(_widened(left), _widened(right))


def _widened(value: Any) -> Any:
    if pa.types.is_uint64(value.type):
        return value.cast(pa.decimal128(20, 0))
    return value.cast(pa.int64()) if pa.types.is_integer(value.type) else value


def _modulo(left: Any, right: Any) -> Any:
    """Return the remainder with the dividend's sign, NULL for a divisor of 0, as in MySQL."""
    right = pc.if_else(pc.equal(right, 0), pa.scalar(None, right.type), right)
    quotient = pc.divide(left, right)
    if pa.types.is_floating(quotient.type) or pa.types.is_decimal(quotient.type):
        quotient = pc.trunc(quotient)
    return pc.subtract(left, pc.multiply(quotient, right))


def _logical(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda left, right: function(left.cast(pa.bool_()), right.cast(pa.bool_()))


_BINARY: Final[dict[type[exp.Expr], Callable[[Any, Any], Any]]] = {
    exp.And: _logical(pc.and_kleene),
    exp.Or: _logical(pc.or_kleene),
    exp.EQ: _compared(pc.equal),
    exp.NEQ: _compared(pc.not_equal),
    exp.GT: _compared(pc.greater),
    exp.GTE: _compared(pc.greater_equal),
    exp.LT: _compared(pc.less),
    exp.LTE: _compared(pc.less_equal),
    exp.Add: _arithmetic(pc.add_checked),
    exp.Sub: _arithmetic(pc.subtract_checked),
    exp.Mul: _arithmetic(pc.multiply_checked),
    exp.Mod: _arithmetic(_modulo),
}
_FUNCTIONS: Final[dict[type[exp.Expr], Callable[[Any], Any]]] = {
    exp.Lower: pc.utf8_lower,
    exp.Upper: pc.utf8_upper,
    exp.Length: pc.utf8_length,
    exp.Abs: pc.abs,
}
_KNOWN: Final = frozenset(
    {
        *_BINARY,
        *_FUNCTIONS,
        *(exp.Paren, exp.Column, exp.Identifier, exp.Literal, exp.Boolean, exp.Null, exp.Neg, exp.Not, exp.Is),
        *(exp.NullSafeEQ, exp.In, exp.Between, exp.Like, exp.RegexpLike, exp.Coalesce),
    }
)

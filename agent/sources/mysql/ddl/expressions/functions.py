"""Functions of constants: those that have the same result on every server and in every session. Pure.

Texts are ASCII, so that neither the character set of the statement nor that of a column changes them.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

from sqlglot import exp

Value = str | bytes | int | Decimal | float | None
#: the value of an argument
Reader = Callable[[exp.Expr], Value]

#: no default needs more
_LENGTH_MAX: Final = 1 << 20
_INT64: Final = 1 << 63


class NotConstantError(ValueError):
    """The value depends on more than the statement, or is unknown."""


class Json(str):
    """The text of a JSON document, as servers write it."""

    __slots__ = ()


def call(node: exp.Expr, read: Reader) -> Value:
    """Return the result of a function.

    :raises NotConstantError: it is unknown.
    """
    name = node.name.lower() if isinstance(node, exp.Anonymous) else ""
    if name == "json_array":
        return _dumped([_item(one, read) for one in node.expressions])
    if isinstance(node, exp.JSONObject):
        return _dumped(_members(node, read))
    if isinstance(node, exp.Coalesce):
        return _first([read(one) for one in (node.this, *node.expressions)])
    found = _FUNCTIONS.get(type(node))
    if found is None:
        raise NotConstantError
    result: Value = found(node, read)
    if isinstance(result, str) and len(result) > _LENGTH_MAX:
        raise NotConstantError
    return result


def document(value: Value) -> Json:
    """Return a value as the JSON document that MySQL makes of it; a text is parsed as one.

    :raises NotConstantError: it is none, or one that servers write in different ways.
    """
    if isinstance(value, Json):
        return value
    if not isinstance(value, str):
        raise NotConstantError
    try:
        return _dumped(json.loads(value, parse_float=_refuse, parse_constant=_refuse, object_pairs_hook=_sorted))
    except (ValueError, RecursionError):
        raise NotConstantError from None


def _refuse(text: str) -> Any:
    raise NotConstantError


def _text(node: exp.Expr | None, read: Reader) -> str:
    return _as_text(read(node) if node is not None else None)


def _as_text(value: Value) -> str:
    if not isinstance(value, str | int) or (isinstance(value, str) and not value.isascii()):
        raise NotConstantError
    return str(value)


def _whole(node: exp.Expr | None, read: Reader) -> int:
    value = read(node) if node is not None else None
    if not isinstance(value, int):
        raise NotConstantError
    return value


def _count(node: exp.Expr | None, read: Reader) -> int:
    """Return a number of characters: negative ones are none."""
    count = max(_whole(node, read), 0)
    if count > _LENGTH_MAX:
        raise NotConstantError
    return count


def _repeated(node: exp.Expr, read: Reader) -> str:
    text, times = _text(node.this, read), _count(node.args["times"], read)
    if len(text) * times > _LENGTH_MAX:
        raise NotConstantError
    return text * times


def _right(node: exp.Expr, read: Reader) -> str:
    text, count = _text(node.this, read), _count(node.expression, read)
    return text[max(len(text) - count, 0) :]


def _substring(node: exp.Expr, read: Reader) -> str:
    text, start = _text(node.this, read), _whole(node.args.get("start"), read)
    length = node.args.get("length")
    begin = start - 1 if start > 0 else len(text) + start
    if start == 0 or begin < 0:
        return ""
    return text[begin:] if length is None else text[begin : begin + _count(length, read)]


def _padded(node: exp.Expr, read: Reader) -> str:
    text, length = _text(node.this, read), _count(node.expression, read)
    fill = _text(node.args["fill_pattern"], read) if node.args.get("fill_pattern") is not None else ""
    if length <= len(text):
        return text[:length]
    if not fill:
        raise NotConstantError  # NULL, an empty text or spaces, depending on the server
    missing = length - len(text)
    padding = (fill * (missing // len(fill) + 1))[:missing]
    return padding + text if node.args.get("is_left") else text + padding


def _replaced(node: exp.Expr, read: Reader) -> str:
    text, old, new = (_text(one, read) for one in (node.this, node.expression, node.args.get("replacement")))
    return text.replace(old, new) if old else text


def _trimmed(node: exp.Expr, read: Reader) -> str:
    if node.args.get("expression") is not None:
        raise NotConstantError
    text = _text(node.this, read)
    position = str(node.args.get("position") or "BOTH").upper()
    text = text.lstrip(" ") if position != "TRAILING" else text
    return text.rstrip(" ") if position != "LEADING" else text


def _joined(node: exp.Expr, read: Reader) -> Value:
    """Return CONCAT_WS: arguments that are NULL are left out."""
    separator, *values = map(read, node.expressions)
    if separator is None:
        return None
    return _as_text(separator).join(_as_text(value) for value in values if value is not None)


def _hex(node: exp.Expr, read: Reader) -> str:
    value = read(node.this)
    match value:
        case bytes():
            return value.hex().upper()
        case str() if value.isascii():
            return value.encode().hex().upper()
        case int() if 0 <= value < 2 * _INT64:
            return f"{value:X}"
    raise NotConstantError


def _absolute(node: exp.Expr, read: Reader) -> Value:
    value = read(node.this)
    if not isinstance(value, int | Decimal) or value == -_INT64:
        raise NotConstantError
    return -value if value < 0 else value


_FUNCTIONS: Final[Mapping[type[exp.Expr], Callable[[Any, Reader], Value]]] = {
    exp.Repeat: _repeated,
    exp.Space: lambda node, read: " " * _count(node.this, read),
    exp.Left: lambda node, read: _text(node.this, read)[: _count(node.expression, read)],
    exp.Right: _right,
    exp.Reverse: lambda node, read: _text(node.this, read)[::-1],
    exp.Substring: _substring,
    exp.Pad: _padded,
    exp.Replace: _replaced,
    exp.Trim: _trimmed,
    exp.ConcatWs: _joined,
    exp.Hex: _hex,
    exp.Abs: _absolute,
}


def _first(values: Sequence[Value]) -> Value:
    """Return COALESCE of values of one type."""
    present = [value for value in values if value is not None]
    if not present or any(type(value) is not type(present[0]) for value in present):
        raise NotConstantError  # all of them determine the type of the result
    value: Value = present[0]
    return value


def _members(node: exp.JSONObject, read: Reader) -> dict[str, Any]:
    pairs = []
    for one in node.expressions:
        if not isinstance(one, exp.JSONKeyValue):
            raise NotConstantError
        pairs.append((_text(one.this, read), _item(one.expression, read)))
    return _object(pairs)


def _object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """MySQL sorts the keys, and MariaDB keeps them as written: they have to be sorted."""
    found = _sorted(pairs)
    if list(found.items()) != list(pairs):
        raise NotConstantError
    return found


def _sorted(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """As MySQL does: shorter keys first, and of several values of a key the last."""
    return dict(sorted(dict(pairs).items(), key=lambda pair: (len(pair[0]), pair[0])))


def _item(node: exp.Expr, read: Reader) -> Any:
    if isinstance(node, exp.Boolean):
        raise NotConstantError  # true, or 1, depending on the server
    value = read(node)
    return json.loads(value) if isinstance(value, Json) else value


def _dumped(value: Any) -> Json:
    if not _is_plain(value):
        raise NotConstantError
    return Json(json.dumps(value))


def _is_plain(value: Any) -> bool:
    """Return whether servers write the value as Python does: without fractions, and without escapes."""
    match value:
        case None | bool():
            return True
        case int():
            return -_INT64 <= value < 2 * _INT64
        case str():
            return value.isascii() and value.isprintable() and not {'"', "\\", "/"} & {*value}
        case list():
            return all(map(_is_plain, value))
        case dict():
            return all(_is_plain(part) for pair in value.items() for part in pair)
    return False

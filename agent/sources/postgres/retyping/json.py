"""JSON conversion: a ``json`` document as PostgreSQL keeps and writes it as ``jsonb``.

Of equal keys the last one counts; keys come by their length in bytes, then by their bytes; numbers are written without
an exponent, with the digits that they had.
"""

import json
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa

from agent.errors import DecodeError
from agent.sources.postgres.retyping.numbers import mapped

_ESCAPES: Final = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_ESCAPES_OF: Final = str.maketrans({chr(code): f"\\u{code:04x}" for code in range(32)} | _ESCAPES)
_decoder: Final = json.JSONDecoder(parse_float=Decimal, parse_int=Decimal, strict=True)


def as_jsonb(values: pa.Array) -> pa.Array:
    """:raises DecodeError: a document is nested too deeply to be read here."""
    return mapped(values, _document, pa.string())


def _document(text: Any) -> str:
    try:
        return _written(_decoder.decode(text.strip(" \t\n\r")))
    except (RecursionError, ValueError) as error:
        raise DecodeError(f"a document cannot be read: {str(error)[:80]}") from None


def _written(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case str():
            return _quoted(value)
        case Decimal():
            return f"{value:f}".removeprefix("-") if value == 0 else f"{value:f}"
        case list():
            return "[" + ", ".join(map(_written, value)) + "]"
    items = sorted(value.items(), key=lambda item: (len(item[0].encode()), item[0].encode()))
    return "{" + ", ".join(f"{_quoted(key)}: {_written(item)}" for key, item in items) + "}"


def _quoted(text: str) -> str:
    return '"' + text.translate(_ESCAPES_OF) + '"'

"""Request body: JSON with one meaning, whoever reads it.

Python's parser accepts more than JSON, and more than can be written down again: other encodings, NaN, a name twice, one
half of a surrogate pair, any depth. A body with one of these is refused, before anything else looks at it.
"""

import json
import math
import re
from collections.abc import Iterable
from typing import Any, NoReturn

#: the deepest body of ours has 5: the list of an event filter
DEPTH_MAX = 32
_CURE = "send JSON as in /docs"
_HALF = re.compile("[\ud800-\udfff]")


class BodyError(ValueError):
    """One line with cause and cure, without the body's content."""


def read(content: bytes) -> Any:
    """Return what the body says; None if it is empty.

    :raises BodyError: it is not JSON, or not of one meaning.
    """
    if not content:
        return None
    try:
        found = json.loads(content.decode(), parse_constant=_no_constant, object_pairs_hook=_object)
    except UnicodeDecodeError:
        raise BodyError(f"the body is not UTF-8; {_CURE}") from None
    except RecursionError:
        raise _too_deep() from None
    except BodyError:
        raise
    except ValueError as error:
        # a number of thousands of digits, too, which Python does not convert
        where = f": {error.msg} at character {error.pos}" if isinstance(error, json.JSONDecodeError) else ""
        raise BodyError(f"the body is not JSON{where}; {_CURE}") from None
    _check(found)
    return found


def _check(found: Any) -> None:
    """Check texts, numbers and depth, level by level: the depth of a body is not that of this function."""
    level: list[Any] = [found]
    for _ in range(DEPTH_MAX + 1):
        for value in level:
            if isinstance(value, float) and not math.isfinite(value):
                raise BodyError("the body has a number that is too large; send a smaller one")
        _check_texts(value for value in level if isinstance(value, str))
        level = [inner for value in level for inner in _inner(value)]
        if not level:
            return
    raise _too_deep()


def _inner(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        _check_texts(value)
        return value.values()
    return value if isinstance(value, list) else ()


def _check_texts(texts: Iterable[str]) -> None:
    for text in texts:
        if not text.isascii() and _HALF.search(text):
            raise BodyError(
                "the body has one half of a surrogate pair (\\ud800 to \\udfff); send both, or another text"
            )


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise BodyError("the body has a name twice in one object; send each once")
    return found


def _no_constant(name: str) -> NoReturn:
    raise BodyError(f"the body has {name}, which is not JSON; send a number")


def _too_deep() -> BodyError:
    return BodyError(f"the body is nested more than {DEPTH_MAX} deep; {_CURE}")

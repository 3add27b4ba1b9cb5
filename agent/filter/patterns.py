"""User patterns: regular expressions from a changefeed's configuration, matched within a time limit.

Some patterns take time that doubles with each character of the text. A match that reaches the limit is an error of the
setting that has the pattern, and other threads of the process run meanwhile. The syntax is that of Python's ``re``.
"""

import re
from typing import Final

import regex

from agent.errors import FilterError, SourceConfigError
from reactor.errors import WeirError

#: CPU seconds of the process; a name takes microseconds, a long statement milliseconds
LIMIT_S: Final = 0.25
_SHOWN_MAX: Final = 200
_PART: Final = r"""
    \\.                                      # an escaped character
    | \(\?\#[^)]*\)                          # a comment
    | (?P<set>\[\^?\]?(?:\\.|[^\]\\])*\])
    | \{(?:\d+(?:,\d*)?|,\d*)\}              # a repetition
    | (?P<brace>\{)
"""
_PARTS: Final = re.compile(_PART, re.VERBOSE | re.DOTALL)
#: of a pattern with ``(?x)``
_VERBOSE_PARTS: Final = re.compile(_PART + r"| \#[^\n]*", re.VERBOSE | re.DOTALL)
_BRACKET: Final = re.compile(r"\\.|\[", re.DOTALL)


class Pattern:
    """A compiled pattern. ``setting``: what has it, for errors, which are of the class ``error``."""

    def __init__(self, text: str, *, setting: str, error: type[WeirError], ignores_case: bool = False) -> None:
        """:raises WeirError: ``text`` is no regular expression."""
        self._shown = f"{setting} {text[:_SHOWN_MAX]!r}"
        self._error = error
        try:
            known = re.compile(text, re.IGNORECASE if ignores_case else 0)
            flags = regex.VERSION0 | (regex.IGNORECASE if ignores_case else 0)
            self._compiled = regex.compile(_plain(text, _VERBOSE_PARTS if known.flags & re.VERBOSE else _PARTS), flags)
        except (re.error, regex.error, RecursionError, OverflowError) as problem:
            raise error(f"{self._shown} is no regular expression ({problem}); correct it") from None

    def matches(self, text: str) -> bool:
        """Return whether the pattern matches the whole text.

        :raises WeirError: it takes too long.
        """
        try:
            return self._compiled.fullmatch(text, timeout=LIMIT_S, concurrent=True) is not None
        except TimeoutError:
            raise self._slow(text) from None

    def is_in(self, text: str) -> bool:
        """Return whether the pattern matches a part of the text.

        :raises WeirError: it takes too long.
        """
        try:
            return self._compiled.search(text, timeout=LIMIT_S, concurrent=True) is not None
        except TimeoutError:
            raise self._slow(text) from None

    def _slow(self, text: str) -> WeirError:
        return self._error(
            f"{self._shown} takes longer than {LIMIT_S:g} s to be matched against {text[:64]!r}; simplify it: "
            "repetitions inside of repetitions, as in (a+)+, take time that doubles with each character"
        )


def for_tables(text: str) -> Pattern:
    return Pattern(text, setting="a filter rule's regular expression", error=SourceConfigError)


def for_statements(text: str) -> Pattern:
    return Pattern(text, setting="ignore-sql", error=FilterError, ignores_case=True)


def _plain(text: str, parts: re.Pattern[str]) -> str:
    """Return the pattern, which ``re`` takes, with a backslash before what is text to ``re`` and more to ``regex``: a
    brace that begins no repetition (``a{e}``), a bracket in a set (``[[:alpha:]]``)."""

    def escaped(part: re.Match[str]) -> str:
        if part["set"]:
            return "[" + _BRACKET.sub(lambda one: one[0] if one[0][0] == "\\" else r"\[", part[0][1:])
        return r"\{" if part["brace"] else part[0]

    return parts.sub(escaped, text)

"""URI options: reads the parameters of a source URI, for all sources.

A password can be referenced instead of written: ``env:NAME`` or ``file:/path``. References are resolved here, as late
as possible, and never stored resolved. Errors never repeat a value that may be secret.
"""

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import SplitResult, parse_qsl

from agent.errors import SourceConfigError
from reactor.files import read_bounded

PORT_MAX: Final = 65_535
TIMEOUT_MAX_S: Final = 3_600


def refuse_unknown(options: Mapping[str, str], known: Collection[str]) -> None:
    """Check for unknown parameters.

    :raises SourceConfigError: the source does not have a parameter.
    """
    if unknown := sorted(options.keys() - set(known)):
        raise SourceConfigError(
            f"the source URI has the unknown parameter {unknown[0]!r}; known are {', '.join(sorted(known))}"
        )


def refuse_unescaped(parts: SplitResult) -> None:
    """Check for unescaped delimiters: what was parsed as host, path or parameters may be a part of the password, and
    errors would show it.

    :raises SourceConfigError: a character that delimits URI parts is not escaped.
    """
    names = (name for name, _ in parse_qsl(parts.query, keep_blank_values=True))
    if "@" in parts.path or parts.fragment or any("@" in name for name in names):
        raise SourceConfigError(
            "the source URI has an @, /, ? or # that is not escaped, perhaps in its password; write %40 for @, "
            "%2F for /, %3F for ? and %23 for #"
        )


def number(options: Mapping[str, str], name: str, default: int, *, most: int) -> int:
    """Return the parameter as a number.

    :raises SourceConfigError: it is not a number from 1 to ``most``.
    """
    text = options.get(name, "")
    if not text:
        return default
    found = int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0
    if not 1 <= found <= most:
        raise SourceConfigError(f"{name} of the source URI must be a number from 1 to {most}; correct it")
    return found


def password(reference: str | None, inline: str) -> str:
    """Return the password. ``reference``: the parameter, if given; ``inline``: the password before the host.

    :raises SourceConfigError: the reference cannot be resolved.
    """
    if reference is None:
        return inline
    scheme, separator, rest = reference.partition(":")
    if separator and scheme == "env":
        if rest not in os.environ:
            raise SourceConfigError(f"the source URI takes its password from the variable {rest}, which is not set")
        return os.environ[rest]
    if separator and scheme == "file":
        try:
            return read_bounded(Path(rest)).decode().rstrip("\r\n")
        except (OSError, ValueError) as error:  # no text in UTF-8
            raise SourceConfigError(f"the password file {rest} cannot be read; check path and permissions") from error
    return reference

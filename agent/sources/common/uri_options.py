"""URI options: reads the parameters of a source URI, for all sources.

Passwords, certificates and keys can be referenced instead of written: ``env:NAME`` or ``file:/path``. References are
resolved here, as late as possible, and never stored resolved. Errors never repeat a value that may be secret.
"""

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import SplitResult, parse_qsl

from agent.errors import SourceConfigError
from agent.references import reference_in
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
    return inline if reference is None else _looked_up(reference, "password")


def looked_up(options: Mapping[str, str], name: str) -> str:
    """Return the parameter, or what it refers to; empty if it is not given.

    :raises SourceConfigError: the reference cannot be resolved.
    """
    return _looked_up(options.get(name, ""), name)


def _looked_up(value: str, name: str) -> str:
    kind, place = reference_in(value)
    if kind == "env":
        if place not in os.environ:
            raise SourceConfigError(f"the source URI takes its {name} from the variable {place}, which is not set")
        return os.environ[place]
    if kind == "file":
        try:
            return read_bounded(Path(place)).decode().rstrip("\r\n")
        except (OSError, ValueError) as error:  # no text in UTF-8
            raise SourceConfigError(f"the {name} file {place} cannot be read; check path and permissions") from error
    return value

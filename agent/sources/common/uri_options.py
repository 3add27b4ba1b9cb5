"""URI options: read the parameters of a source URI, as all sources do.

A password can be named instead of written: ``env:NAME`` or ``file:/path``. Such a reference is resolved here, at the
last moment, and never stored resolved. No text repeats a value that may be secret.
"""

import os
from collections.abc import Collection, Mapping
from pathlib import Path

from agent.errors import SourceConfigError


def refuse_unknown(options: Mapping[str, str], known: Collection[str]) -> None:
    """:raises SourceConfigError: a parameter that the source does not have."""
    if unknown := sorted(options.keys() - set(known)):
        raise SourceConfigError(
            f"the source URI has the unknown parameter {unknown[0]!r}; known are {', '.join(sorted(known))}"
        )


def number(options: Mapping[str, str], name: str, default: int) -> int:
    """:raises SourceConfigError: it is none."""
    text = options.get(name, "")
    if text and not text.isdecimal():
        raise SourceConfigError(f"{name} {text!r} of the source URI is not a number")
    return int(text) if text else default


def password(reference: str | None, inline: str) -> str:
    """``reference``: the parameter, if there is one; ``inline``: what comes before the host.

    :raises SourceConfigError: it names nothing here.
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
            return Path(rest).read_text().rstrip("\r\n")
        except OSError as error:
            raise SourceConfigError(f"the password file {rest} cannot be read; check path and permissions") from error
    return reference

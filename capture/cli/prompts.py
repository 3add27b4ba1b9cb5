"""Prompts: read secrets outside the command line, where other users and the shell history would see them."""

import getpass
import sys

from capture.errors import ConfigError


def secret_line(what: str) -> str:
    """Read a line without echo, or the next one of standard input if that is no terminal.

    :raises ConfigError: there is none.
    """
    given = getpass.getpass(f"{what}: ") if sys.stdin.isatty() else sys.stdin.readline().rstrip("\r\n")
    if not given:
        raise ConfigError(f"no {what} was given; write it on standard input, in one line")
    return given


def given_uri(uri: str, what: str) -> str:
    """Return the URI; ``-`` reads it from standard input."""
    return secret_line(what) if uri == "-" else uri

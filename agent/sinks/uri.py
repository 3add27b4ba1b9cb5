"""Sink URIs: parses ``delta+file:///dir?option=value``, ``delta+s3://bucket/prefix?AWS_REGION=…``, ``blackhole://``.

The scheme names the sink (and, after a ``+``, its storage). Options unknown to the sink are passed to the storage;
their values may be references, ``env:NAME`` or ``file:/path``, which are resolved here and never stored.

A URI that a server names, to a reader on another machine, has no access to that machine (``parse_named_uri``): whoever
answers as the server could have the reader's variables and files sent to a host of its choice.
"""

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

from agent.errors import SinkUriError
from agent.ports.sink import SinkUri
from agent.references import is_local, reference_in
from reactor.files import read_bounded

#: shown in place of a value that may be a secret
MASK: Final = "***"
#: up to the last @: a password may contain unescaped characters that divide URIs
_PASSWORD = re.compile(r"(://[^/?#:]*:).*@", re.DOTALL)


def parse_sink_uri(text: str) -> SinkUri:
    """:raises SinkUriError: not a URI, or one of its references cannot be resolved."""
    uri = _parsed(text)
    return replace(uri, options={name: _resolved(name, value) for name, value in uri.options.items()})


def parse_given_uri(text: str) -> SinkUri:
    """Return a URI as it was given, references included.

    :raises SinkUriError: not a URI.
    """
    return _parsed(text)


def parse_named_uri(text: str) -> SinkUri:
    """Return a URI that a server names, without what it hides, and without references and files of this machine.

    :raises SinkUriError: not a URI.
    """
    uri = _parsed(text)
    known = {name: value for name, value in uri.options.items() if value != MASK and not is_local(name, value)}
    return replace(uri, options=known)


def _parsed(text: str) -> SinkUri:
    try:
        parts = urlsplit(text)
    except ValueError:
        raise SinkUriError(f"sink {masked(text)!r} is malformed; write for instance delta+file:///lake") from None
    if not parts.scheme:
        raise SinkUriError(f"sink {masked(text)!r} is not a URI; write for instance delta+file:///lake")
    _, _, storage = parts.scheme.partition("+")
    given = parse_qsl(parts.query, keep_blank_values=True)
    options = dict(given)
    if len(options) < len(given):
        raise SinkUriError(f"sink {masked(text)!r} has an option twice; give it once")
    if storage not in ("", "file") and not parts.netloc:
        raise SinkUriError(f"sink {masked(text)!r} names no bucket or host; write {parts.scheme}://NAME/…")
    if storage != "file":
        return SinkUri(parts.scheme, storage, f"{storage}://{parts.netloc}{parts.path}".rstrip("/"), options)
    if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
        raise SinkUriError(
            f"sink {masked(text)!r} must name an absolute directory: {parts.scheme}:///dir (three slashes)"
        )
    return SinkUri(parts.scheme, storage, os.path.normpath(unquote(parts.path)), options)


def masked(text: str) -> str:
    """Return the URI for display: without password and option values."""
    base, mark, query = _PASSWORD.sub(rf"\1{MASK}@", text).partition("?")
    names = [part.partition("=")[0] for part in query.split("&")] if mark else []
    return base + mark + "&".join(f"{name}={MASK}" for name in names)


def _resolved(name: str, value: str) -> str:
    kind, where = reference_in(value)
    if kind == "env":
        if where not in os.environ:
            raise SinkUriError(
                f"sink option {name} refers to the variable {where}, which is not set; set it on every capture"
            )
        return os.environ[where]
    if kind == "file":
        try:
            return read_bounded(Path(where)).decode().strip()
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or "it holds no text"
            raise SinkUriError(f"sink option {name} refers to {where}, which cannot be read ({why})") from error
    return value

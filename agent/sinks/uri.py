"""Sink URIs: ``delta+file:///dir?option=value``, ``delta+s3://bucket/prefix?AWS_REGION=…``, ``blackhole://``.

The scheme says which sink (and, behind a ``+``, on which storage). Options a sink does not know itself go to the
storage as they are; their values may be references, ``env:NAME`` or ``file:/path``, which are read here and stored
nowhere.
"""

import os
import re
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

from agent.errors import SinkUriError
from agent.ports.sink import SinkUri

_PASSWORD = re.compile(r"(//[^/@]*:)[^/@]*@")


def parse_sink_uri(text: str) -> SinkUri:
    """:raises SinkUriError: not a URI, or a reference in it that leads nowhere."""
    try:
        parts = urlsplit(text)
    except ValueError:
        raise SinkUriError(f"sink {masked(text)!r} is malformed; write for instance delta+file:///lake") from None
    if not parts.scheme:
        raise SinkUriError(f"sink {masked(text)!r} is not a URI; write for instance delta+file:///lake")
    _, _, storage = parts.scheme.partition("+")
    options = {name: _resolved(name, value) for name, value in parse_qsl(parts.query, keep_blank_values=True)}
    if storage not in ("", "file") and not parts.netloc:
        raise SinkUriError(f"sink {masked(text)!r} names no bucket; write {parts.scheme}://bucket/prefix")
    if storage != "file":
        return SinkUri(parts.scheme, storage, f"{storage}://{parts.netloc}{parts.path}".rstrip("/"), options)
    if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
        raise SinkUriError(
            f"sink {masked(text)!r} must name an absolute directory: {parts.scheme}:///dir (three slashes)"
        )
    return SinkUri(parts.scheme, storage, os.path.normpath(unquote(parts.path)), options)


def masked(text: str) -> str:
    """The URI as it may be shown: no password, no option's value."""
    base, mark, query = text.partition("?")
    names = [part.partition("=")[0] for part in query.split("&")] if mark else []
    return _PASSWORD.sub(r"\1***@", base) + mark + "&".join(f"{name}=***" for name in names)


def _resolved(name: str, value: str) -> str:
    kind, _, where = value.partition(":")
    if kind == "env":
        if where not in os.environ:
            raise SinkUriError(
                f"sink option {name} refers to the variable {where}, which is not set; set it on every capture"
            )
        return os.environ[where]
    if kind == "file" and where:
        try:
            return Path(where).read_text().strip()
        except OSError as error:
            raise SinkUriError(
                f"sink option {name} refers to {where}, which cannot be read ({error.strerror})"
            ) from error
    return value

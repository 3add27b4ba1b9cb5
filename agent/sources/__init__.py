"""Sources by their scheme, and what depends on the dialect of a table. A source knows no other one."""

import importlib
from typing import Protocol, cast
from urllib.parse import urlsplit

from agent.errors import SourceConfigError, SourceError
from agent.ports.source import Position, Scope, Source

#: scheme → module and class; imported when asked for, so that nobody pays for a source they do not use
_SOURCES = {
    "postgresql": ("agent.sources.postgres.source", "PostgresSource"),
    "postgres": ("agent.sources.postgres.source", "PostgresSource"),
    "mysql": ("agent.sources.mysql.source", "MysqlSource"),
    "mariadb": ("agent.sources.mysql.source", "MysqlSource"),
}


class _SourceClass(Protocol):
    def __call__(self, uri: str, scope: Scope) -> Source: ...


def open_source(uri: str, scope: Scope) -> Source:
    """The source that ``uri`` names. Opening reaches for nothing yet: see ``Source.check``.

    :raises SourceConfigError: malformed, or a scheme that there is no source for.
    """
    try:
        scheme = urlsplit(uri).scheme
    except ValueError:
        raise SourceConfigError("the source URI is malformed; write postgresql://user:password@host:port/db") from None
    if scheme not in _SOURCES:
        raise SourceConfigError(f"there is no source for {scheme or 'no scheme'}://; there are {', '.join(_SOURCES)}")
    module, name = _SOURCES[scheme]
    source = cast("_SourceClass", getattr(importlib.import_module(module), name))
    return source(uri, scope)


def place_name(uri: str, log: Position) -> str:
    """A place in the log of the source that ``uri`` names, as its own tools write it; empty where none is known."""
    if not log.ts:
        return ""
    if urlsplit(uri).scheme in ("mysql", "mariadb"):
        from agent.sources.mysql.position.positions import SourcePosition

        try:
            return str(SourcePosition.from_json(log.text).needed)
        except SourceError:
            return ""  # whoever has to continue there says what is wrong with it
    from agent.sources.postgres.server.lsn import format_lsn

    return format_lsn(log.ts)

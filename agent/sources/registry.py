"""Source registry: finds the source for a URI's scheme, and the code that reads a table's events by its dialect.

Plugins (``agent.ports.plugin``) provide both. The modules of a dialect are imported when its first table is read, since
their kernels take a while to load.
"""

from collections.abc import Collection, Mapping
from functools import cache
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
from pydantic import ValidationError

from agent.errors import DecodeError, PluginError, SourceConfigError
from agent.ports import plugin as plugins
from agent.ports.dialect import Dialect
from agent.ports.plugin import SourcePlugin
from agent.ports.snapshot import Chunks
from agent.ports.source import Position, Scope, Source
from agent.rows.changes import Changes
from agent.rows.schema import TableSchema
from agent.rows.schema_change import WrittenConversion
from reactor.records.changefeed import ChangefeedConfig


def open_source(uri: str, scope: Scope) -> Source:
    """Return the source for ``uri``. Opening does no I/O: see ``Source.check``.

    :raises SourceConfigError: the URI is malformed, or no source has this scheme.
    """
    return _plugin(_scheme(uri)).open(uri, scope)


def check_settings(uri: str, config: ChangefeedConfig) -> None:
    """Check the ``[source]`` section of the configuration.

    :raises SourceConfigError: the source for ``uri`` has no such setting, or not with that value.
    """
    scheme = _scheme(uri)
    kind = _plugin(scheme).settings
    given = config.source_settings
    if unknown := sorted(given.keys() - kind.model_fields.keys()):
        known = ", ".join(sorted(kind.model_fields)).replace("_", "-")
        there = f"it knows {known}" if known else "it has none"
        raise SourceConfigError(
            f"{scheme} has no setting {unknown[0].replace('_', '-')} ([source] of the configuration); {there}"
        )
    try:
        kind.model_validate(given)
    except ValidationError as error:
        [wrong, *_] = error.errors(include_input=False, include_url=False)
        name = ".".join(map(str, wrong["loc"])).replace("_", "-")
        raise SourceConfigError(f"{name} below [source] of the configuration is wrong: {wrong['msg']}") from None


def place_name(uri: str, log: Position) -> str:
    """Return a log position in the notation of the source's own tools; empty if unknown."""
    return dialect(_plugin(urlsplit(uri).scheme).dialect).place_name(log) if log.ts else ""


def decode(schema: TableSchema, batch: pa.RecordBatch, key: Collection[str] = ()) -> Changes:
    """See ``Dialect.decode``."""
    return dialect(schema.dialect).decode(schema, batch, key)


def arrow_schema(schema: TableSchema) -> pa.Schema:
    """See ``Dialect.arrow_schema``."""
    return dialect(schema.dialect).arrow_schema(schema)


def fill_value(schema: TableSchema, name: str, text: str) -> pa.Scalar:
    """See ``Dialect.fill_value``."""
    return dialect(schema.dialect).fill_value(schema, name, text)


def conversions(
    before: TableSchema, after: TableSchema, origins: Mapping[str, str], context: Mapping[str, str]
) -> Mapping[str, WrittenConversion]:
    """See ``Dialect.conversions``."""
    return dialect(after.dialect).conversions(before, after, origins, context)


def read_chunks(schema: TableSchema, fields: dict[str, Any]) -> Chunks:
    """See ``Dialect.read_chunks``."""
    return dialect(schema.dialect).read_chunks(fields)


@cache
def dialect(name: str) -> Dialect:
    """Return the dialect of this name.

    :raises DecodeError: no usable plugin provides it.
    """
    try:
        plugin = plugins.sources().get(name)
    except PluginError as error:
        raise DecodeError(f"tables of dialect {name!r} cannot be read: {error}") from error
    if plugin is None or plugin.dialect != name:
        raise DecodeError(f"there is no source of dialect {name!r}; install its package on every capture")
    return plugin.reader()


def _scheme(uri: str) -> str:
    try:
        return urlsplit(uri).scheme
    except ValueError:
        raise SourceConfigError("the source URI is malformed; write scheme://user:password@host:port/db") from None


def _plugin(scheme: str) -> SourcePlugin:
    installed = plugins.sources()
    try:
        plugin = installed.get(scheme)
    except PluginError as error:
        raise SourceConfigError(f"the source for {scheme}:// cannot be used: {error}") from error
    if plugin is None or scheme not in plugin.schemes:
        there = ", ".join(f"{name}://" for name in installed.schemes())
        wrong = f"there is no source for {scheme}://" if scheme else "the source URI has no scheme"
        raise SourceConfigError(f"{wrong}; there are {there}")
    return plugin

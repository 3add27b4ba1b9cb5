"""Iceberg lake: a sink's catalog, opened from its URI, and the places of tables in it.

==================  ==================================================================================================
``iceberg+file``    a directory with its catalog beside the tables: ``catalog.db``, an SQLite file
``iceberg+sql``     the tables ``iceberg_tables`` and ``iceberg_namespace_properties`` of a database, as Iceberg's JDBC
                    catalog has them
``iceberg+rest``    an Iceberg REST catalog, which chooses where tables are stored
``iceberg+glue``    the Glue catalog of a region of AWS
==================  ==================================================================================================

A table is ``{schema}.{table}`` in the catalog, in the parts of ``TableRecord.path``: as directories are named, so names
of every character work. Its files are below a directory with the Ts of its snapshot in its name, since a table that is
dropped or renamed keeps its directory.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit
from uuid import uuid4

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NamespaceAlreadyExistsError, NoSuchNamespaceError, NoSuchTableError
from pyiceberg.table import Table
from sqlalchemy import URL
from sqlalchemy.exc import IntegrityError

from agent.errors import RESYNC, SinkPassingError, SinkUriError, TableForeignError, TableHeldError
from agent.ports.sink import SinkUri
from agent.sinks.common.directory import refuse_unwritable
from agent.sinks.iceberg.options import IcebergOptions
from agent.sinks.iceberg.table.catalogs import open_catalogs
from agent.sinks.iceberg.table.errors import option_errors, storage_errors
from agent.sinks.iceberg.table.io import LakeFileIO, OwnFileIO, is_below, names_code
from reactor.records.tables.table import TableRecord

_DATABASE: Final = "catalog.db"
_PART_BYTES_MAX: Final = 255
#: a directory's name must be one path for everybody who reads it from a URL
_NOT_IN_URL: Final = re.compile(r"[?#%\x00-\x1f\x7f]")
_OF_GLUE: Final = re.compile(r"[a-z0-9_]{1,255}/[a-z0-9_]{1,255}")
_URL: Final = re.compile(r"(file:///|[a-z][a-z0-9+.-]*://[^/])", re.IGNORECASE)
#: properties that are Weir's to give, or structures, which a URI cannot have
_NOT_OPTIONS: Final = frozenset({"auth", "name", "ssl", "uri"})
#: no header may have it
_NOT_IN_HEADER: Final = re.compile(r"[^\x20-\x7e\xa0-\xff]|^ | $")
_OF_SQL: Final = frozenset({"dialect", "user", "password", "catalog"})
#: catalog files that this process has seen
_seen: set[str] = set()


@dataclass(frozen=True, slots=True)
class Lake:
    """``storage``: file, sql, rest, glue. ``properties``: of pyiceberg's catalog; may hold secrets, so not in the repr.
    ``format_version``: of tables that are created."""

    storage: str
    location: str
    name: str
    warehouse: str
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    format_version: int = 2

    def __str__(self) -> str:
        return self.location

    @classmethod
    def of(cls, uri: SinkUri) -> "Lake":
        """:raises SinkUriError: an option is missing, or not one of this storage."""
        options = IcebergOptions.model_validate(uri.options)
        _refuse_unfit(uri, options.rest)
        match uri.storage:
            case "file":
                made = _file_lake(uri, options)
            case "sql":
                made = _sql_lake(uri, options)
            case "glue":
                made = _glue_lake(uri, options)
            case _:
                made = _rest_lake(uri, options)
        return replace(made, format_version=int(options.format_version))

    @property
    def database(self) -> str:
        """The file of the embedded catalog."""
        return os.path.join(self.location, _DATABASE)

    def catalog(self) -> Catalog:
        """Return the open catalog.

        :raises SinkError: it cannot be reached.
        """
        key = (os.getpid(), self.storage, self.location, self.name, tuple(sorted(self.properties.items())))
        is_file = self.storage == "file"
        with storage_errors(self, "open the catalog"), option_errors(self, "open the catalog"):
            found = open_catalogs.opened(key, self._opened, database=self.database if is_file else "")
        if is_file:
            _seen.add(self.location)
        return found

    def _opened(self) -> Catalog:
        properties: dict[str, Any] = dict(self.properties)
        if self.storage == "rest":
            return _rest_catalog(self.name, properties)
        if self.storage == "glue":
            from agent.sinks.iceberg.table.catalogs.glue import LakeGlueCatalog

            return LakeGlueCatalog(self.name, **properties)
        from agent.sinks.iceberg.table.catalogs.sql import KeepingSqlCatalog

        return KeepingSqlCatalog(self.name, **properties)

    def is_away(self) -> bool:
        """Return whether the embedded catalog is missing, as in a directory that is not mounted."""
        return self.storage == "file" and not os.path.exists(self.database)

    def make(self) -> None:
        """Create the embedded catalog if there is none.

        :raises SinkPassingError: this process has seen one, and it is gone.
        """
        if not self.is_away():
            return
        if self.location in _seen:
            raise self.away_error()
        with storage_errors(self, "make the directory of"):
            os.makedirs(self.location, exist_ok=True)
        open_catalogs.close_at(self.location)
        self.catalog()

    def away_error(self) -> SinkPassingError:
        return SinkPassingError(
            f"the sink directory {self.location} is not the one that was written: its {_DATABASE} is gone; mount it, "
            "or bring it back, it is tried again"
        )

    def check(self) -> None:
        """:raises SinkError: tables cannot be stored here."""
        if self.storage == "file":
            refuse_unwritable(Path(self.location))
            if self.is_away():
                return
        with storage_errors(self, "list the namespaces of"):
            self.catalog().list_namespaces()
        if self.storage in ("sql", "glue"):  # a REST catalog says only with a table where it is stored
            io, probe = LakeFileIO(dict(self.properties)), f"{self.warehouse}/.weir-probe-{uuid4().hex}"
            with storage_errors(self.warehouse, "write to"), option_errors(self.warehouse, "write to"):
                with io.new_output(probe).create() as stream:
                    stream.write(b"probe")
                io.delete(probe)

    def place(self, table: TableRecord) -> "TablePlace":
        return self.place_at(table.path)

    def place_at(self, path: str) -> "TablePlace":
        namespace, _, name = path.partition("/")
        return TablePlace(self, namespace, name)

    def unfit(self, tables: Sequence[TableRecord]) -> Iterator[tuple[TableRecord, str]]:
        """Yield the tables that cannot be stored here, with the reasons."""
        for table in tables:
            if self.storage == "glue" and not _OF_GLUE.fullmatch(table.path):
                yield (
                    table,
                    f"table {table.path[:60]!r} cannot be in Glue, whose names have lower-case letters, digits and _; "
                    "rename it at the source, or leave it out by a filter rule",
                )
            elif max(len(part.encode()) for part in table.path.split("/")) > _PART_BYTES_MAX:
                yield (
                    table,
                    f"table {table.path[:60]!r}… cannot be in an Iceberg catalog: its name takes more than "
                    f"{_PART_BYTES_MAX} bytes; rename it at the source, or leave it out by a filter rule",
                )


@dataclass(frozen=True, slots=True)
class TablePlace:
    """A table's name in its catalog."""

    lake: Lake
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}.{self.name} in {self.lake}"

    @property
    def identifier(self) -> tuple[str, str]:
        return self.namespace, self.name

    def renamed(self, name: str) -> "TablePlace":
        """Return another place in the same namespace."""
        return TablePlace(self.lake, self.namespace, name)

    def location(self, label: str) -> str | None:
        """Return the directory for a new table; None: the catalog chooses."""
        if self.lake.storage == "rest":
            return None
        name = f"{self.name}-{label}"
        if len(name.encode()) > _PART_BYTES_MAX:
            name = f"{self.name[:40]}-{blake2b(self.name.encode(), digest_size=8).hexdigest()}-{label}"
        return f"{self.lake.warehouse}/{self.namespace}/{name}"

    def open(self) -> Table | None:
        """Return the current table; None if there is none.

        :raises SinkError: the catalog or the table's metadata cannot be read.
        """
        if self.lake.is_away():
            return None
        with storage_errors(self, "open the Iceberg table"):
            try:
                table = self.lake.catalog().load_table(self.identifier)
            except (NoSuchTableError, NoSuchNamespaceError):
                return None
        self._keep_to_its_directory(table)
        return table

    def _keep_to_its_directory(self, table: Table) -> None:
        """:raises TableHeldError: the table is not in the sink's directory."""
        home, warehouse = table.metadata.location, self.lake.warehouse
        is_ours = self.lake.storage == "rest" or is_below(warehouse, home) or _is_below_linked(warehouse, home)
        if self.lake.storage == "file" and not is_ours:
            raise TableHeldError(
                f"the metadata of {self} says that the table is in {home[:200]!r}, which is not in the sink's "
                "directory; undo what another writer has changed, then resume the changefeed"
            )
        assert isinstance(table.io, LakeFileIO), "catalogs are ours"
        table.io = table.io.of_table(home, removes=is_ours)

    def opened(self) -> Table:
        """:raises TableForeignError: there is no table.
        :raises SinkPassingError: the sink as a whole is unavailable.
        """
        table = self.open()
        if table is None and self.lake.is_away():
            raise self.lake.away_error()
        if table is None:
            raise TableForeignError(
                f"there is no Iceberg table {self}: it was removed, or never loaded; bring it back with its history "
                f"and resume the changefeed, or {RESYNC}"
            )
        return table

    def make_namespace(self) -> None:
        """Create the namespace if the catalog has none of this name."""
        # another writer may be faster; the SQL catalog then has two rows of one key
        faster = suppress(NamespaceAlreadyExistsError, IntegrityError)
        with storage_errors(self, "make the namespace of"), faster:
            if not self.lake.catalog().namespace_exists(self.namespace):
                self.lake.catalog().create_namespace(self.namespace)

    def rename_to(self, new: "TablePlace") -> None:
        """:raises SinkError: the catalog refuses."""
        new.make_namespace()
        with storage_errors(self, f"rename to {new.namespace}.{new.name}"):
            self.lake.catalog().rename_table(self.identifier, new.identifier)


def _is_below_linked(directory: str, location: str) -> bool:
    """Return whether a local directory is in another one, which may have moved and left a link."""
    paths = [os.path.realpath(path.removeprefix("file://")) for path in (directory, location)]
    return directory.startswith("file://") and is_below(f"file://{paths[0]}", f"file://{paths[1]}")


def _rest_catalog(name: str, properties: Mapping[str, Any]) -> Catalog:
    from pyiceberg.catalog.rest import RestCatalog

    class LakeRestCatalog(OwnFileIO, RestCatalog):
        """pyiceberg's, with file access of ours: its server may not name another, but says where files are."""

        TELLS_ACCESS = True

    return LakeRestCatalog(name, **properties)


def _file_lake(uri: SinkUri, options: IcebergOptions) -> Lake:
    known = {"retention_seconds", "readers", "format_version", "soft_delete", "synced_at"}
    if unknown := sorted({*options.rest, *(options.model_fields_set - known)} - known):
        raise SinkUriError(f"unknown option {unknown[0]!r}: {uri.scheme}:// knows {', '.join(sorted(known))}")
    if found := _NOT_IN_URL.search(uri.location):
        raise SinkUriError(f"sink directory {uri.location} has the character {found[0]!a} in it; choose another one")
    warehouse = f"file://{uri.location}"
    database = f"sqlite:///{os.path.join(uri.location, _DATABASE)}?timeout=30"
    return Lake("file", uri.location, "weir", warehouse, {"uri": database, "warehouse": warehouse})


def _sql_lake(uri: SinkUri, options: IcebergOptions) -> Lake:
    parts = _with_port(uri)
    if parts.username is not None:
        raise SinkUriError(f"{uri.scheme}:// takes user and password as options (user=…&password=env:NAME)")
    if not options.warehouse:
        raise SinkUriError(f"{uri.scheme}:// needs warehouse=, where the tables go: /directory or s3://bucket/prefix")
    database = parts.path if options.dialect.startswith("sqlite") else parts.path.removeprefix("/")
    is_sqlite = options.dialect.startswith("sqlite")
    url = URL.create(
        options.dialect,
        username=options.user or None,
        password=options.password or None,
        host=None if is_sqlite else parts.hostname,
        port=None if is_sqlite else parts.port,
        database=database,
        query={"timeout": "30"} if is_sqlite else {},
    )
    warehouse = _warehouse(options)
    properties = {"uri": url.render_as_string(hide_password=False), "warehouse": warehouse, **_of_store(options.rest)}
    return Lake("sql", uri.location, options.catalog, warehouse, properties)


def _with_port(uri: SinkUri) -> SplitResult:
    """:raises SinkUriError: the port is none."""
    parts = urlsplit(uri.location)
    try:
        _ = parts.port
    except ValueError:
        raise SinkUriError(
            f"the port in {uri.scheme}://{parts.netloc.rpartition('@')[2]} is not a number up to 65535; correct it"
        ) from None
    return parts


def _refuse_unfit(uri: SinkUri, given: Mapping[str, str]) -> None:
    """:raises SinkUriError: an option is not the user's to give, or cannot be sent."""
    for name, value in given.items():
        if name in _NOT_OPTIONS or names_code(name):
            raise SinkUriError(f"option {name!r} cannot be given in the URI of {uri.scheme}://; leave it out")
        if uri.storage == "rest" and _NOT_IN_HEADER.search(value):
            raise SinkUriError(f"the value of option {name!r} has a character that cannot be sent; correct it")


def _warehouse(options: IcebergOptions) -> str:
    warehouse = options.warehouse.rstrip("/")
    if not warehouse.startswith("/"):
        if not _URL.match(warehouse):
            raise SinkUriError(
                f"warehouse {warehouse!r} is neither a directory nor a URL; write /directory or s3://bucket/prefix"
            )
        return warehouse
    if found := _NOT_IN_URL.search(warehouse):
        raise SinkUriError(f"warehouse {warehouse} has the character {found[0]!a} in it; choose another directory")
    return f"file://{warehouse}"


def _glue_lake(uri: SinkUri, options: IcebergOptions) -> Lake:
    region = uri.location.removeprefix("glue://")
    if find_spec("boto3") is None:
        raise SinkUriError(f"{uri.scheme}:// needs boto3, which is not installed: pip install 'weir-cdc[glue]'")
    if not options.warehouse:
        raise SinkUriError(f"{uri.scheme}:// needs warehouse=, where the tables go: s3://bucket/prefix")
    if not re.fullmatch("[a-z0-9-]+", region):
        raise SinkUriError(f"{uri.scheme}:// names a region, for instance {uri.scheme}://eu-central-1?warehouse=s3://…")
    if unknown := sorted((_OF_SQL | {"tls"}) & options.model_fields_set):
        raise SinkUriError(f"option {unknown[0]!r} is not one of {uri.scheme}")
    given = {"s3.region": region, **_of_store(options.rest)}
    warehouse = _warehouse(options)
    return Lake("glue", uri.location, "glue", warehouse, {"glue.region": region, "warehouse": warehouse, **given})


def _rest_lake(uri: SinkUri, options: IcebergOptions) -> Lake:
    if _with_port(uri).username is not None:
        raise SinkUriError(f"{uri.scheme}:// takes credentials as options (credential=env:NAME or token=env:NAME)")
    if unknown := sorted(_OF_SQL & options.model_fields_set):
        raise SinkUriError(f"option {unknown[0]!r} is one of iceberg+sql, and not of {uri.scheme}")
    scheme = "https" if options.tls == "true" else "http"
    properties = {"uri": f"{scheme}{uri.location.removeprefix('rest')}", **_of_store(options.rest)}
    if options.warehouse:
        properties["warehouse"] = options.warehouse
    return Lake("rest", uri.location, options.catalog, options.warehouse, properties)


def _of_store(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options, with those of an S3 store that the environment has, as for other sinks. Without a region
    pyiceberg would ask Amazon for the bucket's, also where the store is another's."""
    found = dict(options)
    for name, variable in (("s3.endpoint", "AWS_ENDPOINT_URL"), ("s3.region", "AWS_REGION")):
        if variable in os.environ:
            found.setdefault(name, os.environ[variable])
    if "s3.endpoint" in found:
        found.setdefault("s3.region", "us-east-1")
    return found

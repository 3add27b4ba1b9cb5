"""An Iceberg REST catalog for tests: the calls that a sink makes, answered from an SQLite catalog in a directory.

It chooses where tables are stored, as REST catalogs do.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import unquote, urlsplit

from pydantic import TypeAdapter
from pyiceberg import exceptions
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, SortOrder
from pyiceberg.table.update import TableRequirement, TableUpdate

from agent.sinks.iceberg.table.metadata import files as metadata_files

_UPDATES = TypeAdapter(tuple[TableUpdate, ...])
_REQUIREMENTS = TypeAdapter(tuple[TableRequirement, ...])
_CODES: dict[type[Exception], int] = {
    exceptions.NoSuchTableError: 404,
    exceptions.NoSuchNamespaceError: 404,
    exceptions.TableAlreadyExistsError: 409,
    exceptions.NamespaceAlreadyExistsError: 409,
    exceptions.CommitFailedException: 409,
}


class _Catalog(SqlCatalog):
    """PyIceberg's, which writes metadata of version 3 too."""

    _write_metadata = staticmethod(metadata_files.write)


@contextmanager
def running(
    directory: Path, *, token: str = "", warehouse: str = "", config: Any = None, **properties: str
) -> Iterator[int]:
    """Yield the port. ``token``: what clients must send. ``warehouse``: where the tables go; empty: beside the
    catalog. ``config``: what clients are to use. ``properties``: of the access to it."""
    place = warehouse or f"file://{directory}/tables"
    catalog = _Catalog("rest", uri=f"sqlite:///{directory}/rest.db?timeout=30", warehouse=place, **properties)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:
            pass

        def do_GET(self) -> None:
            self._do("GET")

        def do_HEAD(self) -> None:
            self._do("HEAD")

        def do_POST(self) -> None:
            self._do("POST")

        def _do(self, method: str) -> None:
            size = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(size)) if size else {}
            if token and self.headers.get("Authorization") != f"Bearer {token}":
                self._say(401, _error("NotAuthorized", "no token", 401))
                return
            try:
                path = urlsplit(self.path).path
                found = config if config and path == "/v1/config" else _answer(catalog, method, path, body)
            except tuple(_CODES) as error:
                code = _CODES[type(error)]
                self._say(code, _error(type(error).__name__.replace("Error", "Exception"), str(error), code))
                return
            self._say(204 if found is None else 200, found)

        def _say(self, code: int, what: Any) -> None:
            text = b"" if what is None else (what if isinstance(what, str) else json.dumps(what)).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(text)

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()
    catalog.close()


def _error(kind: str, message: str, code: int) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "code": code}}


def _answer(catalog: SqlCatalog, method: str, path: str, body: dict[str, Any]) -> Any:
    match [unquote(part) for part in path.removeprefix("/v1/").split("/")]:
        case ["config"]:
            return {"defaults": {}, "overrides": {}}
        case ["namespaces"] if method == "GET":
            return {"namespaces": [list(found) for found in catalog.list_namespaces()]}
        case ["namespaces"]:
            catalog.create_namespace(tuple(body["namespace"]))
            return {"namespace": body["namespace"], "properties": {}}
        case ["namespaces", name]:
            if not catalog.namespace_exists(name):
                raise exceptions.NoSuchNamespaceError(name)
            return None if method == "HEAD" else {"namespace": [name], "properties": {}}
        case ["namespaces", name, "tables"]:
            return _table(_created(catalog, name, body))
        case ["namespaces", name, "tables", table] if method == "GET":
            return _table(catalog.load_table((name, table)))
        case ["namespaces", name, "tables", table]:
            requirements = _REQUIREMENTS.validate_python(body["requirements"])
            updates = _UPDATES.validate_python(body["updates"])
            catalog.commit_table(catalog.load_table((name, table)), requirements, updates)
            return _table(catalog.load_table((name, table)))
        case ["tables", "rename"]:
            source, target = body["source"], body["destination"]
            catalog.rename_table((*source["namespace"], source["name"]), (*target["namespace"], target["name"]))
            return None
        case other:
            raise AssertionError(f"no such call: {method} {other}")


def _created(catalog: SqlCatalog, namespace: str, body: dict[str, Any]) -> Table:
    spec, order = body.get("partition-spec"), body.get("write-order")
    return catalog.create_table(
        (namespace, body["name"]),
        Schema.model_validate(body["schema"]),
        partition_spec=PartitionSpec.model_validate(spec) if spec else UNPARTITIONED_PARTITION_SPEC,
        sort_order=SortOrder.model_validate(order) if order else UNSORTED_SORT_ORDER,
        properties=body["properties"],
    )


def _table(table: Table) -> Any:
    metadata = json.loads(metadata_files.to_json(table.metadata))
    return {"metadata-location": table.metadata_location, "metadata": metadata, "config": {}}

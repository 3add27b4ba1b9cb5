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
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.update import TableRequirement, TableUpdate

_UPDATES = TypeAdapter(tuple[TableUpdate, ...])
_REQUIREMENTS = TypeAdapter(tuple[TableRequirement, ...])
_CODES: dict[type[Exception], int] = {
    exceptions.NoSuchTableError: 404,
    exceptions.NoSuchNamespaceError: 404,
    exceptions.TableAlreadyExistsError: 409,
    exceptions.NamespaceAlreadyExistsError: 409,
    exceptions.CommitFailedException: 409,
}


@contextmanager
def running(directory: Path, *, token: str = "") -> Iterator[int]:
    """Yield the port. ``token``: what clients must send."""
    catalog = SqlCatalog(
        "rest", uri=f"sqlite:///{directory}/rest.db?timeout=30", warehouse=f"file://{directory}/tables"
    )

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
                found = _answer(catalog, method, urlsplit(self.path).path, body)
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
            schema = Schema.model_validate(body["schema"])
            return _table(catalog.create_table((name, body["name"]), schema, properties=body["properties"]))
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


def _table(table: Table) -> Any:
    metadata = json.loads(table.metadata.model_dump_json())
    return {"metadata-location": table.metadata_location, "metadata": metadata, "config": {}}

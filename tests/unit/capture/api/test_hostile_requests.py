"""Hostile requests: every route of the API's own description is sent what no caller of good will sends.

Each is answered with 4xx, one line with cause and cure; it is in the audit trail; and it never reaches the cluster. The
values are generated from the description, so a new route or field is tested as soon as it is there.
"""

import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from capture.api.access import Caller, is_recorded
from capture.api.guard import BODY_BYTES_MAX, Guard
from capture.api.http import create_app
from reactor.errors import WeirError
from reactor.records.access import AuditRecord, Role
from tests.unit.capture.fakes import MemoryAccess, MemoryCluster

JSON = "application/json"
#: what a field needs in a request that is good
GOOD = {
    "changefeed_id": "feed",
    "source_uri": "postgresql://h/d",
    "sink_uri": "delta+file:///lake",
    "table": "public.t",
    "capture_id": "capture-1",
    "name": "reader",
    "session": "s",
    "role": "viewer",
    "ts": 5,
    "after_ts": 5,
}


class Untouched:
    """Stands for ``Cluster`` and ``Subscriptions``; writes down every call, and answers it with an error."""

    is_owner = True

    def __init__(self) -> None:
        self.calls: list[str] = []

    def answers(self, changefeed_id: str = "") -> bool:
        return True

    async def wait_for_owner(self, changefeed_id: str) -> None: ...

    def __getattr__(self, name: str) -> Callable[..., Awaitable[None]]:
        async def call(*_: object, **__: object) -> None:
            self.calls.append(name)
            raise ReachedError("reached; see what it is")

        return call


class ReachedError(WeirError):
    """The request was taken for a good one."""


class StoredAccess(MemoryAccess):
    """Stores entries as the cluster does: they are encoded. Tokens are made and revoked by ``cluster``."""

    def __init__(self, cluster: Untouched) -> None:
        super().__init__(admin=Caller("root", Role.ADMIN, "r"))
        self._cluster = cluster

    async def begin(self, caller: Caller, method: str, path: str, source: str, *, detail: str = "") -> str:
        entry = await super().begin(caller, method, path, source, detail=detail)
        record = AuditRecord.model_validate(self.entries[-1].model_dump() | {"detail": detail})
        assert AuditRecord.decode(record.encode(), key="entry") == record
        assert (path + detail).isprintable()
        return entry

    async def create(self, *_: object) -> Any:
        await self._cluster.create()

    async def revoke(self, *_: object) -> Any:
        await self._cluster.revoke()


class Target:
    """The application, and what it did."""

    def __init__(self) -> None:
        self.cluster = Untouched()
        self.access = StoredAccess(self.cluster)
        self.app = create_app(self.cluster, self.access, subscriptions=self.cluster, names=("weir",))  # type: ignore[arg-type]

    @asynccontextmanager
    async def client(self) -> AsyncIterator[httpx.AsyncClient]:
        transport = httpx.ASGITransport(self.app)
        headers = {"authorization": "Bearer admin"}
        async with httpx.AsyncClient(transport=transport, base_url="http://weir", headers=headers) as client:
            yield client

    async def refuses(self, client: httpx.AsyncClient, what: str, method: str, path: str, **request: Any) -> None:
        """Check that the request is refused, written down, and reaches nothing."""
        before = len(self.access.entries)
        answer = await client.request(method, path, **request)
        assert 400 <= answer.status_code < 500, (what, answer.status_code, answer.text[:300])
        assert self.cluster.calls == [], (what, answer.text[:300])
        text = answer.json()["error_msg"]
        assert text.isprintable(), what
        assert ";" in text, (what, text)
        assert len(text) <= 2_000, what
        if method != "GET" and is_recorded(answer.request.url.path):
            assert len(self.access.entries) == before + 1, what
            assert self.access.entries[-1].status == answer.status_code, what


def _description() -> dict[str, Any]:
    app = create_app(MemoryCluster(), MemoryAccess(), subscriptions=Untouched())  # type: ignore[arg-type]
    assert isinstance(app, Guard)
    return app._app.openapi()  # type: ignore[attr-defined, no-any-return]


DESCRIPTION = _description()
ROUTES = [
    (method.upper(), path, operation)
    for path, operations in DESCRIPTION["paths"].items()
    for method, operation in operations.items()
    if not path.endswith(("/health", "/ready"))
]
WITH_BODY = [route for route in ROUTES if "requestBody" in route[2]]
CHANGES = [route for route in ROUTES if route[0] != "GET"]


def named(routes: list[tuple[str, str, Any]]) -> pytest.MarkDecorator:
    ids = [f"{method} {path.removeprefix('/api/v2')}" for method, path, _ in routes]
    return pytest.mark.parametrize(("method", "path", "operation"), routes, ids=ids)


def filled(path: str) -> str:
    for name, value in {"changefeed_id": "feed", "capture_id": "capture-1", "token_id": "t", "name": "reader"}.items():
        path = path.replace(f"{{{name}}}", value)
    assert "{" not in path
    return path


def _is_required(parameter: dict[str, Any]) -> bool:
    return bool(parameter["in"] == "query" and parameter.get("required"))


def shape(schema: dict[str, Any]) -> dict[str, Any]:
    """Return what a reference leads to, with its alternatives but ``null``."""
    if "$ref" in schema:
        return shape(DESCRIPTION["components"]["schemas"][schema["$ref"].rpartition("/")[2]])
    return schema


def kinds(schema: dict[str, Any]) -> list[dict[str, Any]]:
    schema = shape(schema)
    options = [shape(one) for one in schema.get("anyOf", [schema])]
    return [one for one in options if one.get("type") != "null"]


def body_of(operation: dict[str, Any]) -> dict[str, Any]:
    [found] = kinds(operation["requestBody"]["content"][JSON]["schema"])
    return found


def good(schema: dict[str, Any]) -> dict[str, Any]:
    return {name: GOOD[name] for name in schema.get("required", ())}


def fields(schema: dict[str, Any], *above: str) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """All fields of a body, those of objects and of objects in lists too, with the way to them."""
    for name, field in schema.get("properties", {}).items():
        yield (*above, name), field
        for kind in kinds(field):
            if kind.get("type") == "object":
                yield from fields(kind, *above, name)
            if kind.get("type") == "array" and shape(kind["items"]).get("type") == "object":
                yield from fields(shape(kind["items"]), *above, name, "[]")


def with_field(body: dict[str, Any], way: tuple[str, ...], value: Any) -> dict[str, Any]:
    """Return the body with a value at the end of the way, and what has to be beside it."""
    for step in reversed(way[1:]):
        if step == "[]":
            needed = {"matcher": ["*.*"], "columns": ["*"]} if "column_selectors" in way else {}
            value = [needed | value]
        else:
            value = {step: value}
    return body | {way[0]: value}


WRONG: dict[str, list[Any]] = {
    "integer": [True, "5", 5.5, [], {}, 2**63, 2**70, -(2**70), -1, "x", 10**400],
    "number": [True, "1", [], {}, -1.0, 0, 10**400],
    "boolean": [0, 1, "true", "yes", [], {}],
    "string": [0, 1.5, True, [], {}, "x" * 70_000],
    "array": ["x", 1, True, {}, [1], [[]], [None], ["x" * 70_000], ["a.b"] * 20_001],
    "object": ["x", 1, True, [], [{}], {"no such field": 1}],
}
UNBOUNDED_BELOW = {"diff_sample", "expires_seconds", "wait_seconds"}


def wrong(field: dict[str, Any]) -> Iterator[Any]:
    """Values that are of none of the field's types, or out of their bounds."""
    found = kinds(field)
    types = {kind["type"] for kind in found if "type" in kind}
    for kind in found:
        for value in WRONG[kind.get("type", "string")]:
            if not any(fits(value, one) for one in found):
                yield value
        if "enum" in kind or "const" in kind:
            yield "no such value"
    assert types, field


def fits(value: Any, kind: dict[str, Any]) -> bool:
    match kind.get("type"):
        case "integer" if isinstance(value, int) and not isinstance(value, bool):
            return bool(kind.get("minimum", 0) <= value <= kind.get("maximum", 2**62))
        case "number" if isinstance(value, int | float) and not isinstance(value, bool):
            least, above = kind.get("minimum"), kind.get("exclusiveMinimum", -1)
            return bool((least is None or value >= least) and value > above and value <= kind.get("maximum", 2**62))
        case "boolean":
            return isinstance(value, bool)
        case "string" if isinstance(value, str):
            return "enum" not in kind and "const" not in kind and len(value) <= kind.get("maxLength", 60_000)
        case "array" if isinstance(value, list):
            return value == [] or (shape(kind["items"])["type"] == "object" and value == [{}] and not _needs(kind))
        case "object" if isinstance(value, dict):
            return not value or (
                value == {"no such field": 1} and "additionalProperties" in kind and "properties" not in kind
            )
    return False


def _needs(kind: dict[str, Any]) -> bool:
    return bool(shape(kind["items"]).get("required"))


def raw_bodies(good_body: dict[str, Any]) -> Iterator[tuple[str, bytes, str]]:
    """Bodies that are not JSON of one meaning, by name, each with its content type."""
    text = json.dumps(good_body)
    inside = text[:-1] + (", " if good_body else "")
    for depth in (50, 900, 1_100, 100_000):
        yield f"lists, {depth} deep", f'{inside}"table": {"[" * depth}{"]" * depth}}}'.encode(), JSON
        opened, closed = '{"a":' * depth, "}" * depth
        yield f"objects, {depth} deep", f'{inside}"x": {opened}1{closed}}}'.encode(), JSON
    yield "lists without an end", b"[" * 500_000, JSON
    for number in ("NaN", "Infinity", "-Infinity", "1e400", "-1e400", "9" * 5_000):
        yield f"number {number[:9]}", f'{inside}"ts": {number}}}'.encode(), JSON
    for escape in (r"\ud800", r"\udfff", r"a\udc00\ud800"):
        yield f"surrogate {escape} in a value", f'{inside}"table": "{escape}.b"}}'.encode(), JSON
        yield f"surrogate {escape} in a name", f'{inside}"{escape}": 1}}'.encode(), JSON
    yield "a name twice", f'{inside}"table": "a.b", "table": "a.b"}}'.encode(), JSON
    yield (
        "a name twice below",
        f'{inside}"config": {{"force_replicate": true, "force_replicate": false}}}}'.encode(),
        JSON,
    )
    for encoding in ("utf-8-sig", "utf-16", "utf-16-be", "utf-32"):
        yield encoding, text.encode(encoding), JSON
    yield "no UTF-8", f'{inside}"table": "'.encode() + b"\xff\xfe" + b'"}', JSON
    yield "more behind it", f"{text} {text}".encode(), JSON
    yield "no JSON", b"table=a.b", JSON
    yield "a single quote", text.replace('"', "'").encode() + b"'", JSON
    yield "NUL", b"\x00", JSON
    for value in ("[]", '"x"', "1", "true", '[{"table": "a.b"}]'):
        yield value, value.encode(), JSON
    yield "an unknown field", f'{inside}"no such field": 1}}'.encode(), JSON
    yield "an unknown field with controls", f'{inside}"a\\nb\\u001b[31m{"x" * 9_000}": 1}}'.encode(), JSON
    yield "too large", b'{"table": "' + b"x" * BODY_BYTES_MAX + b'"}', JSON
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "", "text/json"):
        yield f"content type {kind!r}", text.encode(), kind


@pytest.mark.sample(0.1)
@named(CHANGES)
async def test_bodies_that_are_no_json_of_one_meaning(method: str, path: str, operation: dict[str, Any]) -> None:
    target = Target()
    sample = good(body_of(operation)) if "requestBody" in operation else {}
    async with target.client() as client:
        for what, content, kind in raw_bodies(sample):
            headers = {"content-type": kind}
            await target.refuses(client, what, method, filled(path), content=content, headers=headers)


@pytest.mark.sample(0.1)
@named(WITH_BODY)
async def test_values_of_another_type_or_out_of_bounds(method: str, path: str, operation: dict[str, Any]) -> None:
    target, schema = Target(), body_of(operation)
    async with target.client() as client:
        for way, field in fields(schema):
            for value in wrong(field):
                body = with_field(good(schema), way, value)
                what = f"{'.'.join(way)} = {str(body)[:150]}"
                await target.refuses(client, what, method, filled(path), json=body)
        for name in good(schema):
            await target.refuses(client, f"without {name}", method, filled(path), json=good(schema) | {name: None})
            rest = {key: value for key, value in good(schema).items() if key != name}
            await target.refuses(client, f"without {name}", method, filled(path), json=rest)


def _reads(value: object, parameter: dict[str, Any]) -> bool:
    """Return whether the text of a query is a value of this parameter."""
    for kind in kinds(parameter):
        match kind["type"]:
            case "boolean" if value == "true":
                return True
            case "string" if value == kind.get("const"):
                return True
            case "string" if not {"const", "enum"} & kind.keys():
                if len(str(value)) >= kind.get("minLength", 0) and re.search(kind.get("pattern", ""), str(value)):
                    return True
    return False


@pytest.mark.sample(0.1)
@named(ROUTES)
async def test_paths_and_queries(method: str, path: str, operation: dict[str, Any]) -> None:
    """What a route does not know it would ignore: a dry run that is asked for in the wrong place is none."""
    target = Target()
    body: dict[str, Any] = {"json": good(body_of(operation))} if "requestBody" in operation else {}
    known = {one["name"]: one["schema"] for one in operation.get("parameters", ()) if one["in"] == "query"}
    queries = ["dry_run=true", "x=1", "%ff=1", "=", "x" * 900]
    wrong = ("", "true", "NaN", "inf", "-1", 2**70, "0x10", "[]")
    queries += [f"{name}={value}" for name, one in known.items() for value in wrong if not _reads(value, one)]
    queries += [f"{name}=1&{name}=1" for name in known]
    parts = [
        "x" * 2_000,
        "a%00b",
        "a%0ab",
        "a%1b[31mb",
        "%ff",
        "%ed%a0%80",
        "%e2%80%ae",
        "a%2f..%2fb%0d",
        "%2e%2e",
        "%2e",
    ]
    async with target.client() as client:
        for query in queries:
            await target.refuses(client, query[:50], method, f"{filled(path)}?{query}", **body)
        start, _, rest = path.partition("{")
        for part in parts if rest else []:
            where = start + part + filled(rest.partition("}")[2])
            answer = await client.request(method, where, **body)
            assert 400 <= answer.status_code < 500 or target.cluster.calls, where
            if part not in ("%ff", "%ed%a0%80"):  # these are read as the replacement character, which is one
                assert target.cluster.calls == [], where
            target.cluster.calls.clear()


@pytest.mark.sample(0.2)
@named(ROUTES)
async def test_good_requests_pass(method: str, path: str, operation: dict[str, Any]) -> None:
    """Without this, all tests of this file would pass if everything were refused."""
    target = Target()
    body: dict[str, Any] = {"json": good(body_of(operation))} if "requestBody" in operation else {}
    asked = {one["name"]: str(GOOD[one["name"]]) for one in operation.get("parameters", ()) if _is_required(one)}
    async with target.client() as client:
        answer = await client.request(method, filled(path), params=asked, **body)
        for name in (one["name"] for one in operation.get("parameters", ()) if one["in"] == "query"):
            other = await client.request(method, filled(path), params=asked | {name: asked.get(name, "1")}, **body)
            assert "does not know" not in other.text, name
    is_own = method == "GET" and path.endswith(("/tokens", "/audit"))
    assert answer.status_code == 200 if is_own else target.cluster.calls, answer.text
    for way, field in fields(body_of(operation)) if body else ():
        for kind in kinds(field):
            if kind["type"] == "string" and not {"enum", "const", "pattern"} & kind.keys():
                assert "maxLength" in kind, way
            if kind["type"] == "integer":
                assert {"minimum", "maximum"} <= kind.keys(), way

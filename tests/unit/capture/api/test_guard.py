"""Guard: every route but health and documentation needs a token of the right role, and a request of the right form."""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import anyio
import httpx
import pytest
from structlog.testing import capture_logs

from capture.api import guard
from capture.api.access import Caller, needed_role
from capture.api.http import create_app
from reactor.errors import StoreUnreachableError
from reactor.records.access import Role
from tests.unit.capture.api.test_forwarding import served
from tests.unit.capture.fakes import MemoryAccess, MemoryCluster

VIEWER, OPERATOR = Caller("eye", Role.VIEWER, "v"), Caller("hand", Role.OPERATOR, "o")
SERVER = Caller("server b", Role.ADMIN, "s", is_server=True)
JSON = {"content-type": "application/json"}


def access() -> MemoryAccess:
    return MemoryAccess(viewer=VIEWER, operator=OPERATOR, server=SERVER)


@asynccontextmanager
async def asked(
    one: MemoryAccess | None = None, cluster: MemoryCluster | None = None
) -> AsyncIterator[httpx.AsyncClient]:
    app = create_app(cluster or MemoryCluster(), one or access(), names=("weir",))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://weir:8300") as client:
        yield client


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def routes() -> Iterator[tuple[str, str]]:
    """All that are served, with something in the place of their parameters."""
    app = create_app(MemoryCluster(), access())._app
    for path, methods in app.openapi()["paths"].items():  # type: ignore[attr-defined]
        for method in methods:
            yield method.upper(), path.replace("{changefeed_id}", "feed").replace("{", "").replace("}", "")
    yield "GET", "/metrics"


PUBLIC = {"/api/v2/health", "/api/v2/ready"}


async def test_every_route_but_health_needs_a_token() -> None:
    async with asked() as client:
        for method, path in routes():
            answer = await client.request(method, path)
            assert (answer.status_code == 401) is (path not in PUBLIC), (method, path)
            if answer.status_code == 401:
                assert answer.headers["www-authenticate"] == "Bearer"
                assert answer.json()["error_code"] == "Unauthenticated"


async def test_who_is_turned_away_is_in_the_log_once() -> None:
    """Whoever guesses tokens, or asks for more than a role may, is seen; and does not fill the log."""
    with capture_logs() as lines:
        async with asked() as client:
            for _ in range(3):
                await client.get("/api/v2/tokens", headers=bearer("guess"))
                await client.get("/api/v2/tokens", headers=bearer("viewer"))
                await client.get("/api/v2/status", headers={"host": "evil.example"})
            for number in range(200):
                await client.get(f"/api/v2/{number}", headers=bearer("viewer"))
    found = [line for line in lines if line["event"] == "request refused"]
    assert [(line["reason"], line.get("sender")) for line in found[:3]] == [
        ("Unauthenticated", None),
        ("Forbidden", "eye"),
        ("HostRefused", None),
    ]
    assert len(found) == 100
    assert "guess" not in str(lines)


@pytest.mark.parametrize("path", ["/health", "/ready", "/api/v2/health", "/docs", "/openapi.json"])
async def test_health_and_documentation_are_public(path: str) -> None:
    async with asked() as client:
        assert (await client.get(path)).status_code == 200
        assert (await client.post(path)).status_code == 401


async def test_the_documentation_needs_no_internet_and_knows_tokens() -> None:
    async with asked() as client:
        page = (await client.get("/docs")).text
        assert "https://" not in page.replace("https://fastapi.tiangolo.com", "")
        assert (await client.get("/static-offline-docs/swagger-ui-bundle.js")).status_code == 200
        schema = (await client.get("/openapi.json")).json()
        assert schema["security"] == [{"token": []}]
        assert schema["paths"]["/api/v2/health"]["get"]["security"] == []


@pytest.mark.parametrize(
    "header",
    ["", "Bearer", "Bearer ", "Bearer wrong", "Basic c2VjcmV0", "secret", f"Bearer {'x' * 10_000}", "Bearer secret x"],
)
async def test_whatever_is_no_token_is_refused(header: str) -> None:
    async with asked() as client:
        answer = await client.get("/api/v2/changefeeds", headers={"authorization": header})
        assert answer.status_code == 401
        assert "secret" not in answer.text


def test_each_route_has_a_role_and_what_nobody_thought_of_needs_the_most() -> None:
    needed = {f"{method} {path}": needed_role(method, path) for method, path in routes() if path not in PUBLIC}
    viewers = {route for route, role in needed.items() if role is Role.VIEWER}
    admins = {route for route, role in needed.items() if role is Role.ADMIN}
    assert viewers == {
        "GET /api/v2/status",
        "GET /api/v2/captures",
        "GET /api/v2/owned",
        "GET /api/v2/changefeeds",
        "GET /api/v2/changefeeds/feed",
        "GET /api/v2/changefeeds/feed/tables",
        "GET /api/v2/changefeeds/feed/table_files",
        "GET /api/v2/changefeeds/feed/sync_points",
        "GET /metrics",
    }
    tokens = {"GET /api/v2/tokens", "POST /api/v2/tokens", "DELETE /api/v2/tokens/token_id", "GET /api/v2/audit"}
    assert admins == tokens | {"POST /api/v2/secret/rotate"}
    for method, path in (("POST", "/api/v2/new"), ("GET", "/api/v2/new"), ("PATCH", "/"), ("GET", "/api/v2//tokens")):
        assert needed_role(method, path) is Role.ADMIN


async def test_roles_are_kept() -> None:
    one = access()
    async with asked(one) as client:
        for token, path, method, status in (
            ("viewer", "/api/v2/changefeeds", "GET", 200),
            ("viewer", "/api/v2/owner/resign", "POST", 403),
            ("viewer", "/api/v2/changefeeds/x/diff", "GET", 403),
            ("operator", "/api/v2/owner/resign", "POST", 200),
            ("operator", "/api/v2/tokens", "GET", 403),
            ("operator", "/api/v2/audit", "GET", 403),
            ("secret", "/api/v2/audit", "GET", 200),
        ):
            answer = await client.request(method, path, headers=bearer(token))
            assert answer.status_code == status, (token, path)
    assert [entry.name for entry in one.entries] == ["hand"]


async def test_a_token_is_made_used_and_revoked() -> None:
    async with asked() as client:
        asked_for = {"role": "viewer", "name": "grafana", "expires_in_seconds": 60}
        made = await client.post("/api/v2/tokens", headers=bearer("secret"), json=asked_for)
        assert made.status_code == 201
        token = made.json()["token"]
        assert (await client.get("/metrics", headers=bearer(token))).status_code == 200
        assert token not in (await client.get("/api/v2/tokens", headers=bearer("secret"))).text
        gone = await client.delete(f"/api/v2/tokens/{made.json()['id']}", headers=bearer("secret"))
        assert gone.status_code == 200
        assert (await client.get("/metrics", headers=bearer(token))).status_code == 401
        assert (await client.delete("/api/v2/tokens/none", headers=bearer("secret"))).status_code == 404


@pytest.mark.parametrize(
    ("host", "is_taken"),
    [
        ("weir:8300", True),
        ("WEIR", True),
        ("localhost:1", True),
        ("127.0.0.1:8300", True),
        ("[::1]:8300", True),
        ("10.1.2.3", True),
        ("evil.example:8300", False),
        ("weir.evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("localhost.evil.example", False),
        ("", False),
        ("]:[", False),
    ],
)
async def test_only_this_servers_names_are_served(host: str, is_taken: bool) -> None:
    """A page whose name was turned to this address (DNS rebinding) comes with its own name."""
    async with asked() as client:
        for path in ("/api/v2/changefeeds", "/health"):
            answer = await client.get(path, headers={"host": host} | bearer("secret"))
            assert (answer.status_code == 200) is is_taken
            assert is_taken or answer.json()["error_code"] == "HostRefused"


@pytest.mark.parametrize(
    ("origin", "is_taken"),
    [
        ("http://weir:8300", True),
        ("https://weir:8300", False),
        ("http://weir", False),
        ("http://evil.example", False),
        ("null", False),
    ],
)
async def test_pages_of_other_sites_are_refused(origin: str, is_taken: bool) -> None:
    async with asked() as client:
        answer = await client.post("/api/v2/owner/resign", headers={"origin": origin} | bearer("secret"))
        assert (answer.status_code == 200) is is_taken


@pytest.mark.parametrize("path", ["/health", "/docs", "/api/v2/changefeeds", "/api/v2/nothing"])
@pytest.mark.parametrize("headers", [{}, bearer("secret"), bearer("secret") | {"host": "evil.example"}], ids=str)
async def test_no_answer_can_be_framed_or_loaded_by_another_page(path: str, headers: dict[str, str]) -> None:
    async with asked() as client:
        answer = await client.get(path, headers=headers)
    assert answer.headers["x-frame-options"] == "DENY"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cross-origin-resource-policy"] == "same-origin"


async def test_what_a_form_can_send_is_refused() -> None:
    one = access()
    async with asked(one) as client:
        body = json.dumps({"ts": 5})
        for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""):
            path = "/api/v2/changefeeds/feed/rewind"
            answer = await client.post(path, content=body, headers=bearer("secret") | {"content-type": kind})
            assert answer.status_code == 415
            assert (await client.post(path, content=body, headers={"content-type": kind})).status_code == 401
    assert [(entry.name, entry.status) for entry in one.entries] == [("admin", 415)] * 4, (
        "what nobody sent is not there"
    )


async def test_large_bodies_are_refused_and_not_read() -> None:
    async with asked() as client:
        read = 0

        async def endless() -> AsyncIterator[bytes]:
            nonlocal read
            for _ in range(10_000):
                read += 65_536
                yield b" " * 65_536

        told = JSON | {"content-length": "10"}
        answer = await client.post("/api/v2/changefeeds", content=endless(), headers=bearer("secret") | told)
        assert answer.status_code == 413
        assert read < 3 * guard.BODY_BYTES_MAX
        headers = bearer("secret") | JSON | {"content-length": str(200 << 20)}
        assert (await client.post("/api/v2/changefeeds", content=b"", headers=headers)).status_code == 413
        unknown = await client.post("/api/v2/changefeeds", content=endless(), headers=told)
        assert unknown.status_code == 401


async def test_a_body_that_does_not_come_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "_BODY_TIMEOUT_S", 0.05)
    sent = []

    async def never() -> dict[str, object]:
        await anyio.sleep_forever()
        raise AssertionError

    async def send(message: dict[str, object]) -> None:
        sent.append(message)

    headers = [(b"host", b"weir"), (b"authorization", b"Bearer secret")]
    scope = {"type": "http", "method": "POST", "path": "/api/v2/owner/resign", "scheme": "http", "headers": headers}
    await create_app(MemoryCluster(), access(), names=("weir",))(scope, never, send)  # type: ignore[arg-type]
    assert sent[0]["status"] == 408


@pytest.mark.parametrize("token", ["wrong", "secret"])
async def test_a_refusal_is_read_by_a_caller_that_sends_its_body_first(token: str) -> None:
    """A connection that is closed with data in flight is reset, and the answer may be lost."""
    size = 200_000 if token == "wrong" else guard.BODY_BYTES_MAX + 200_000
    async with served(MemoryCluster()) as address:
        host, _, port = address.partition(":")
        for _ in range(10):
            async with await anyio.connect_tcp(host, int(port)) as stream:
                head = f"POST /api/v2/owner/resign HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {token}\r\n"
                head += f"Content-Type: application/json\r\nContent-Length: {size}\r\n\r\n"
                await stream.send(head.encode())
                for _ in range(10):
                    await stream.send(b" " * (size // 10))
                    await anyio.lowlevel.checkpoint()
                answer = await stream.receive()
                assert answer.split()[1] == (b"401" if token == "wrong" else b"413")


async def test_a_header_that_is_there_twice_is_refused() -> None:
    async with asked() as client:
        headers = [("authorization", "Bearer viewer"), ("authorization", "Bearer secret")]
        assert (await client.get("/api/v2/audit", headers=headers)).status_code == 400


async def test_every_change_is_written_down_with_its_outcome() -> None:
    one = access()
    with capture_logs() as logs:
        async with asked(one) as client:
            await client.post("/api/v2/owner/resign", headers=bearer("operator"))
            await client.delete("/api/v2/changefeeds/none", headers=bearer("secret"))
            await client.get("/api/v2/changefeeds", headers=bearer("secret"))
            await client.post("/api/v2/owner/resign", headers=bearer("viewer"))
    assert [(entry.name, entry.method, entry.path, entry.status) for entry in one.entries] == [
        ("hand", "POST", "/api/v2/owner/resign", 200),
        ("admin", "DELETE", "/api/v2/changefeeds/none", 404),
    ]
    assert [line["status"] for line in logs if line["event"] == "audit"] == [200, 404]


async def test_what_cannot_be_written_down_is_not_done() -> None:
    one, cluster = access(), MemoryCluster()
    one.breaks_with = StoreUnreachableError("etcd does not answer; try again")
    async with asked(one, cluster) as client:
        body = {"changefeed_id": "feed", "source_uri": "postgresql://h/d", "sink_uri": "delta+file:///lake"}
        answer = await client.post("/api/v2/changefeeds", headers=bearer("secret"), json=body)
        assert answer.status_code == 503
    assert cluster.specs == {}


async def test_another_capture_is_believed_where_a_request_came_from() -> None:
    one = access()
    async with asked(one) as client:
        for forwarder in ("server", "viewer", "nonsense"):
            headers = bearer("operator") | {"weir-forwarder": forwarder, "weir-forwarded-for": "10.9.8.7"}
            await client.post("/api/v2/owner/resign", headers=headers)
    sources = [entry.source for entry in one.entries]
    assert sources[0].startswith("10.9.8.7 by ")
    assert not any("10.9.8.7" in source for source in sources[1:])


@pytest.mark.parametrize(
    "host",
    [
        "evil.example@weir",
        "weir/evil.example",
        "weir:8300:1",
        "weir:999999",
        "evil.example\\@weir",
        "weir#x",
        "[weir",
        "",
    ],
)
async def test_a_host_is_a_name_or_an_address_and_no_more(host: str) -> None:
    async with asked() as client:
        assert (await client.get("/health", headers={"host": host})).status_code == 403


async def test_a_body_has_a_length() -> None:
    async with asked() as client:
        for more in ({}, {"content-length": "2"}):
            headers = bearer("secret") | JSON | more | {"transfer-encoding": "chunked"}
            answer = await client.post("/api/v2/changefeeds", content=b"{}", headers=headers)
            assert (answer.status_code, answer.headers["connection"]) == (411, "close")


async def test_headers_are_bounded_together() -> None:
    async with asked() as client:
        answers = [await client.get("/health", headers={"x": "y" * size}) for size in (15_000, 17_000)]
    assert [answer.status_code for answer in answers] == [200, 431]

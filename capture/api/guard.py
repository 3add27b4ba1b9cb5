"""Guard: the checks that every request must pass before a route sees it, as ASGI middleware.

    Host     one of this server's names, or an address: prevents DNS rebinding
    Origin   none, or this server's own: no page of another site may call
    token    Authorization: Bearer …; which a form or an image of a page cannot send
    role     by ``capture.api.access.needed_role``
    headers  at most 16 KiB
    path     at most 1,024 characters, all of them printable, without . and ..
    body     JSON of one meaning (``capture.api.requests.body``), at most 1 MiB, within a deadline, of a length that is
             told before: chunks, and two lengths at once, have servers and proxies disagree about where it ends
    trail    every change is recorded before, and its outcome after, also if its path or body is refused

Health and the documentation pages need no token. A rejection names the reason, never the request's content; that
somebody was turned away is logged once.
"""

import json
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, MutableMapping
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_address
from typing import Any

import anyio
import structlog

from capture.api.access import TOKEN_LENGTH_MAX, Access, Caller, is_recorded, needed_role
from capture.api.requests.body import BodyError, read
from capture.api.requests.shown import one_line
from capture.security.refusals import Refusals
from reactor.errors import WeirError

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

BODY_BYTES_MAX = 1024 * 1024
_HEADER_BYTES_MAX = 16 * 1024
_TOO_LARGE = f"a body has at most {BODY_BYTES_MAX} bytes; send less at once"
_BODY_TIMEOUT_S = 10.0
#: for the rest of a body that is refused
_DISCARD_TIMEOUT_S = 1.0
_READS = ("GET", "HEAD")
_PUBLIC = ("/health", "/ready", "/api/v2/health", "/api/v2/ready", "/docs", "/openapi.json", "/favicon.ico")
_PUBLIC_FILES = "/static-offline-docs/"
#: fields of a body that go into the trail, none of them secret
_NAMED, _NAMED_MAX = ("table", "ts"), 200
_PATH_LENGTH_MAX, _PATH_RECORDED_MAX = 1024, 300
#: another capture's own token, and the origin of the request that it forwards
FORWARDER, FORWARDED_FOR = b"weir-forwarder", b"weir-forwarded-for"

#: with or without a port
_HOST = re.compile(r"(\[[^\[\]/@]+\]|[^\[\]/@\\?#:\s]+)(:\d{1,5})?")

#: no page of another site shows an answer in a frame, or loads it as a script or an image
_OWN_PAGES = (
    (b"x-frame-options", b"DENY"),
    (b"x-content-type-options", b"nosniff"),
    (b"cross-origin-resource-policy", b"same-origin"),
)

#: where the application finds the decision about that
IS_FORWARDED = "weir.is-forwarded"

_log = structlog.get_logger()


class _RefusedError(Exception):
    def __init__(self, status: int, code: str, text: str, *, caller: str = "") -> None:
        super().__init__(text)
        self.caller = caller
        self.status = status
        self.code = code


@dataclass(frozen=True, slots=True)
class Names:
    """The names of this server, besides addresses."""

    names: frozenset[str]

    @classmethod
    def of(cls, hosts: Iterable[str]) -> "Names":
        return cls(frozenset(host.lower().rstrip(".") for host in hosts) | {"localhost"})

    def has(self, host: str) -> bool:
        try:
            ip_address(host)
        except ValueError:
            return host.lower().rstrip(".") in self.names
        return True


class Guard:
    """``is_forwarded``: whether another capture will answer a method and a path, and record it; ``status_of``: HTTP
    status of an error."""

    def __init__(
        self,
        app: App,
        *,
        access: Access,
        names: Collection[str],
        is_forwarded: Callable[[str, str], bool],
        status_of: Callable[[WeirError], int],
    ) -> None:
        self._app = app
        self._is_forwarded = is_forwarded
        self._access = access
        self._names = Names.of(names)
        self._status_of = status_of
        self._refusals = Refusals("request refused")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
                return
            return await self._app(scope, receive, send)
        receive = incoming = _Incoming(receive)
        send = _for_own_pages(_after_body(incoming, send))
        try:
            caller = await self._admit(scope)
        except _RefusedError as error:
            self._refusals.note(error.code, str(error), host=_host_of(scope), sender=error.caller)
            return await _answer(send, error.status, error.code, str(error))
        except WeirError as error:
            return await _answer(send, self._status_of(error), error.code, str(error))
        scope[IS_FORWARDED] = self._is_forwarded(scope["method"], scope["path"])
        answer: Callable[[Send], Awaitable[None]]
        detail, is_recorded_there = "", scope[IS_FORWARDED]
        try:
            _check_path(scope["path"])
            body = await _body(scope, receive)
            detail = _detail(read(body))
            answer = partial(self._app, scope, _replay(body, receive))
        except (_RefusedError, BodyError) as error:
            answer, is_recorded_there = partial(_refuse, error), False
        is_read = scope["method"] in _READS or not is_recorded(scope["path"])
        if caller is None or is_read or is_recorded_there:
            return await answer(send)
        await self._change(scope, caller, answer, send, detail=detail)

    async def _admit(self, scope: Scope) -> Caller | None:
        """Return the caller; None for public paths.

        :raises _RefusedError: the request is rejected.
        """
        _check_framing(scope)
        headers = _Headers(scope)
        self._check_host(headers)
        self._check_origin(headers, scope["scheme"])
        method, path = scope["method"], scope["path"]
        if method in _READS and (path in _PUBLIC or path.startswith(_PUBLIC_FILES)):
            return None
        caller = await self._caller(headers)
        needed = needed_role(method, path)
        if not caller.role.includes(needed):
            text = (
                f"{caller.name} is {caller.role}, and {method} {one_line(path, 200)} needs role {needed}; ask an admin"
            )
            raise _RefusedError(403, "Forbidden", text, caller=caller.name)
        scope["caller"] = caller
        return caller

    def _check_host(self, headers: "_Headers") -> None:
        host = _bare(headers.one(b"host"))
        if not self._names.has(host):
            text = f"this server is not called {host[:100]!r}; use its address, or add it to setting api-hosts"
            raise _RefusedError(403, "HostRefused", text)

    def _check_origin(self, headers: "_Headers", scheme: str) -> None:
        origin = headers.one(b"origin")
        if origin and origin.lower() != f"{scheme}://{headers.one(b'host')}".lower():
            raise _RefusedError(
                403,
                "OriginRefused",
                "pages of other sites may not call this server; call it from its own /docs, or a program",
            )

    async def _caller(self, headers: "_Headers") -> Caller:
        kind, _, token = headers.one(b"authorization").partition(" ")
        token = token.strip()
        if kind.lower() != "bearer" or not token:
            text = "this needs a token: Authorization: Bearer …; `weir token create` makes one, --token-file names it"
            raise _RefusedError(401, "Unauthenticated", text)
        caller = await self._access.caller(token) if len(token) <= TOKEN_LENGTH_MAX else None
        if caller is None:
            text = "the token is unknown, expired or revoked; take another with --token-file or WEIR_TOKEN"
            raise _RefusedError(401, "Unauthenticated", text)
        return caller

    async def _change(
        self, scope: Scope, caller: Caller, answer: Callable[[Send], Awaitable[None]], send: Send, *, detail: str
    ) -> None:
        status = 500

        async def watch(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        source = await self._source(scope)
        method, path = scope["method"], one_line(scope["path"], _PATH_RECORDED_MAX)
        try:
            entry = await self._access.begin(caller, method, path, source, detail=detail)
        except WeirError as error:
            return await _answer(send, self._status_of(error), error.code, str(error))
        try:
            await answer(watch)
        finally:
            _log.info(
                "audit",
                name=caller.name,
                role=caller.role,
                method=method,
                path=path,
                detail=detail,
                source=source,
                status=status,
            )
            with anyio.CancelScope(shield=True):
                await self._access.end(entry, status)

    async def _source(self, scope: Scope) -> str:
        """Return the request's origin: a forwarding capture's statement about it is trusted."""
        host = _host_of(scope)
        headers = _Headers(scope)
        forwarder = headers.one(FORWARDER)
        if not forwarder:
            return host
        by = await self._access.caller(forwarder)
        return f"{headers.one(FORWARDED_FOR)[:64]} by {host}" if by is not None and by.is_server else host


class _Incoming:
    """The incoming side of a request. ``is_over``: all of its body was received."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self.is_over = False

    async def __call__(self) -> MutableMapping[str, Any]:
        message = await self._receive()
        self.is_over = message["type"] != "http.request" or not message.get("more_body")
        return message

    async def discard(self) -> None:
        """Receive the rest, within limits."""
        size = 0
        with anyio.move_on_after(_DISCARD_TIMEOUT_S):
            while not self.is_over and size < BODY_BYTES_MAX:
                size += len((await self()).get("body", b""))


class _Headers:
    """The headers of one request, by name in lower case."""

    def __init__(self, scope: Scope) -> None:
        self._headers: list[tuple[bytes, bytes]] = scope["headers"]

    def one(self, name: bytes) -> str:
        """:raises _RefusedError: the header occurs twice."""
        found = [value for known, value in self._headers if known == name]
        if len(found) > 1:
            raise _RefusedError(400, "InvalidRequest", f"header {name.decode()} is there twice; send it once")
        return found[0].decode("latin-1").strip() if found else ""


def _host_of(scope: Scope) -> str:
    client = scope.get("client")
    return str(client[0]) if client else ""


def _bare(host: str) -> str:
    """Remove port and brackets; return an empty text if it is more than a host."""
    found = _HOST.fullmatch(host)
    return found[1].strip("[]") if found else ""


def _check_framing(scope: Scope) -> None:
    """:raises _RefusedError: the headers are too long, or do not tell where the body ends."""
    headers: list[tuple[bytes, bytes]] = scope["headers"]
    if sum(len(name) + len(value) for name, value in headers) > _HEADER_BYTES_MAX:
        raise _RefusedError(
            431, "HeadersTooLarge", f"headers have at most {_HEADER_BYTES_MAX} bytes together; send fewer"
        )
    if any(name == b"transfer-encoding" for name, _ in headers):
        raise _RefusedError(
            411, "LengthRequired", "a body is sent as a whole; send Content-Length, and no Transfer-Encoding"
        )


async def _body(scope: Scope, receive: Receive) -> bytes:
    """Read the whole body.

    :raises _RefusedError: it is too large, too slow, or not JSON.
    """
    headers = _Headers(scope)
    length = headers.one(b"content-length")
    if length.isdecimal() and int(length) > BODY_BYTES_MAX:
        raise _RefusedError(413, "BodyTooLarge", _TOO_LARGE)
    parts, size = [], 0
    with anyio.move_on_after(_BODY_TIMEOUT_S) as scope_:
        while True:
            message = await receive()
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > BODY_BYTES_MAX:
                raise _RefusedError(413, "BodyTooLarge", _TOO_LARGE)
            if message["type"] != "http.request" or not message.get("more_body"):
                break
    if scope_.cancelled_caught:
        raise _RefusedError(408, "BodyTooSlow", f"the body did not arrive within {_BODY_TIMEOUT_S:g} s; send it again")
    kind = headers.one(b"content-type").partition(";")[0].strip().lower()
    if size and kind != "application/json":
        raise _RefusedError(415, "InvalidRequest", "a body must be JSON; send it with Content-Type: application/json")
    return b"".join(parts)


def _check_path(path: str) -> None:
    """:raises _RefusedError: it is no path of ours."""
    if len(path) > _PATH_LENGTH_MAX:
        raise _RefusedError(400, "InvalidRequest", f"a path has at most {_PATH_LENGTH_MAX} characters; correct the id")
    if {".", ".."} & set(path.split("/")):
        raise _RefusedError(400, "InvalidRequest", "a path has no parts . and ..; name the route itself")
    if not path.isprintable():
        raise _RefusedError(400, "InvalidRequest", "the path has a character that cannot be shown; correct the id")


def _detail(body: Any) -> str:
    """Return which table and Ts the body names."""
    named = ((name, body.get(name)) for name in _NAMED) if isinstance(body, dict) else ()
    return ", ".join(
        f"{name} {one_line(str(value), _NAMED_MAX)}" for name, value in named if isinstance(value, str | int)
    )


def _replay(body: bytes, receive: Receive) -> Receive:
    """Replay the body once; then pass on what the connection receives."""
    left = [body]

    async def again() -> MutableMapping[str, Any]:
        if left:
            return {"type": "http.request", "body": left.pop(), "more_body": False}
        return await receive()

    return again


def _after_body(incoming: _Incoming, send: Send) -> Send:
    """Let an answer that came before the request's end be read: a connection that is closed with data in flight is
    reset, and what the caller has not read by then is lost."""

    async def answer(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.body" and not message.get("more_body") and not incoming.is_over:
            await send({**message, "more_body": True})
            await incoming.discard()
            message = {"type": "http.response.body", "body": b""}
        await send(message)

    return answer


def _for_own_pages(send: Send) -> Send:
    """Add the headers with which a browser keeps answers from pages of other sites."""

    async def add(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), *_OWN_PAGES]
        await send(message)

    return add


async def _refuse(error: _RefusedError | BodyError, send: Send) -> None:
    if isinstance(error, _RefusedError):
        return await _answer(send, error.status, error.code, str(error))
    return await _answer(send, 400, "InvalidRequest", str(error))


async def _answer(send: Send, status: int, code: str, text: str) -> None:
    """Answer and close the connection: rejected data may still be in flight."""
    content = json.dumps({"error_code": code, "error_msg": text}).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(content)).encode()),
        (b"connection", b"close"),
    ]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})

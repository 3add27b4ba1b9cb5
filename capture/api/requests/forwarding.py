"""Forwarder: sends requests on to the capture that answers them: the changefeed's owner, or the controller."""

import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import httpx
import structlog
from fastapi import Request, Response

from capture.api import port as views
from capture.api.departure import leave_with_caller
from capture.api.guard import FORWARDED_FOR, FORWARDER, IS_FORWARDED
from capture.api.requests.errors import error_response, json_error
from capture.security.secrets import mask
from reactor.errors import NotOwnerError, WeirError
from reactor.tls import tls_failure, words_of

PREFIX = "/api/v2"
FORWARDED_FROM = "weir-forwarded-from"
_OF_THE_OWNER = (f"{PREFIX}/changefeeds", f"{PREFIX}/captures", f"{PREFIX}/owner", f"{PREFIX}/secret")
#: headers of one connection, which are not forwarded
_HOP_HEADERS = frozenset(
    {"connection", "content-length", "host", "keep-alive", "transfer-encoding", "content-encoding"}
)
#: a request goes from a capture that does not know the changefeed yet to the controller, and from there to its owner
_HOPS_MAX = 2
#: how often to check who is owner during a request to it, and how long one that has resigned may still answer
_OWNER_POLL_S, _LAST_WORDS_S = 0.25, 2.0
_log = structlog.get_logger()


class Forwarder:
    """Forwards requests to the owner of the changefeed that they name, or to the controller; converts every error to
    our JSON."""

    def __init__(self, cluster: views.Cluster, own_token: Callable[[], str], ca_file: Path | None) -> None:
        self._cluster = cluster
        self._own_token = own_token
        self._ca_file = ca_file

    def is_forwarded(self, method: str, path: str) -> bool:
        return path.startswith(_OF_THE_OWNER) and not self._cluster.answers(_changefeed_in(method, path))

    async def handle(self, request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
        try:
            if changefeed := _changefeed_in(request.method, request.url.path):
                await self._cluster.wait_for_owner(changefeed)
            if not (request.scope[IS_FORWARDED] or self.is_forwarded(request.method, request.url.path)):
                return await call_next(request)
            if len(request.headers.get(FORWARDED_FROM, "").split(",")) >= _HOPS_MAX:
                raise NotOwnerError("the owner has just changed; try again")
            return await self._forward(request)
        except WeirError as error:
            return error_response(error)
        except Exception as error:
            _log.exception("request failed", method=request.method, path=request.url.path)
            text = f"{type(error).__name__}: {mask(str(error))}; see this capture's log"
            return json_error(500, "Internal", text)

    async def _forward(self, request: Request) -> Response:
        """Forward with the caller's own token: the owner authenticates it itself."""
        changefeed = _changefeed_in(request.method, request.url.path)
        owner = await self._cluster.owner_endpoint(changefeed)
        headers = {name: value for name, value in request.headers.items() if name not in _HOP_HEADERS}
        before, me = headers.get(FORWARDED_FROM), (await self._cluster.status()).id
        headers[FORWARDED_FROM] = f"{before},{me}" if before else me
        if token := self._own_token():
            headers[FORWARDER.decode()] = token
            headers[FORWARDED_FOR.decode()] = request.client.host if request.client else ""
        body = await request.body()
        # comparing large tables may take long; a dead owner is detected when connecting
        timeout = httpx.Timeout(None, connect=5.0)
        answer: httpx.Response | None = None
        reason = "another has taken its place"
        try:
            async with (
                httpx.AsyncClient(timeout=timeout, trust_env=False, verify=self._verification(owner)) as client,
                anyio.create_task_group() as tasks,
            ):
                tasks.start_soon(self._leave_when_replaced, owner, changefeed, tasks.cancel_scope)
                tasks.start_soon(leave_with_caller, request, tasks.cancel_scope)
                answer = await client.request(
                    request.method,
                    f"{owner.url}{request.url.path}",
                    params=request.query_params,
                    headers=headers,
                    content=body,
                    extensions={"sni_hostname": owner.node} if owner.node else {},
                )
                tasks.cancel_scope.cancel()
        except* httpx.TransportError as errors:
            tls = tls_failure(errors.exceptions[0])
            reason = words_of(tls) if tls else type(errors.exceptions[0]).__name__
        if answer is None:
            text = f"the owner at {owner.address} does not answer ({reason}); try again when another is elected"
            return json_error(503, "OwnerUnreachable", text)
        kept = {name: value for name, value in answer.headers.items() if name not in _HOP_HEADERS}
        return Response(answer.content, status_code=answer.status_code, headers=kept)

    def _verification(self, owner: views.Endpoint) -> ssl.SSLContext | bool:
        """The certificate must be that of the owner's node. Without encryption there is nothing to verify: building a
        TLS context is most of a client's cost."""
        return ssl.create_default_context(cafile=self._ca_file) if owner.node else False

    async def _leave_when_replaced(self, owner: views.Endpoint, changefeed: str, scope: anyio.CancelScope) -> None:
        """Cancel when another capture is owner: a hanging process accepts requests, and never answers."""
        is_owners = True
        while is_owners:
            await anyio.sleep(_OWNER_POLL_S)
            is_owners = await self._is_owners(owner, changefeed)
        await anyio.sleep(_LAST_WORDS_S)
        scope.cancel()

    async def _is_owners(self, owner: views.Endpoint, changefeed: str) -> bool:
        try:
            return await self._cluster.owner_endpoint(changefeed) == owner
        except WeirError:
            return False


def _changefeed_in(method: str, path: str) -> str:
    """Return the changefeed that a request is about; empty if it is for the controller."""
    match (method, *path.removeprefix(PREFIX).split("/")):
        case ["POST", "", "changefeeds", "check"]:
            return ""
        case [_, "", "changefeeds", _, "move_owner"]:
            return ""
        case [_, "", "changefeeds", changefeed, *_]:
            return changefeed
    return ""

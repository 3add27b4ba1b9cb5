"""HTTP API v2: FastAPI routes over the ``Cluster`` port, for the command line, scripts and monitoring.

Questions about changefeeds belong to the owner: any other capture forwards them to it, once. Errors are
``{"error_code", "error_msg"}``: 400 for what the caller can correct, 404 and 409 for ids, 503 for what passes by
itself, 500 for our own faults. What is wrong is decided elsewhere; here it only gets its status.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Annotated

import anyio
import httpx
import structlog
from fastapi import APIRouter, Body, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException

from capture.api import metrics
from capture.api import port as views
from capture.errors import (
    CaptureNotFoundError,
    ChangefeedExistsError,
    ChangefeedNotFoundError,
    JobRefusedError,
    StillRunningError,
)
from capture.security.secrets import mask
from capture.version import installed_version
from reactor.errors import NotOwnerError, WeirError
from reactor.views import ChangefeedView, TableView

_log = structlog.get_logger()

PREFIX = "/api/v2"
FORWARDED_FROM = "weir-forwarded-from"
_OF_THE_OWNER = (f"{PREFIX}/changefeeds", f"{PREFIX}/captures", f"{PREFIX}/owner")
#: Headers of one connection, which are not passed on.
_HOP_HEADERS = frozenset(
    {"connection", "content-length", "host", "keep-alive", "transfer-encoding", "content-encoding"}
)
#: how often it is looked who is owner while one is asked, and how long one that has resigned may still answer
_OWNER_LOOK_S, _LAST_WORDS_S = 0.25, 2.0
_STATUS: dict[type[WeirError], int] = {
    ChangefeedNotFoundError: 404,
    CaptureNotFoundError: 404,
    ChangefeedExistsError: 409,
    JobRefusedError: 409,
    NotOwnerError: 503,
    StillRunningError: 202,
}


class ResumeBody(BaseModel):
    model_config = ConfigDict(extra="forbid")

    overwrite_checkpoint_ts: views.PositionTs | None = None


class RewindBody(BaseModel):
    model_config = ConfigDict(extra="forbid")

    ts: views.PositionTs


class MoveTableBody(BaseModel):
    """``table``: schema.name"""

    model_config = ConfigDict(extra="forbid")

    table: str
    capture_id: str


class SplitBody(BaseModel):
    """``table``: schema.name; ``spans``: 1 joins it, none: as many as the captures share well"""

    model_config = ConfigDict(extra="forbid")

    table: str
    spans: Annotated[int, Field(ge=1)] | None = None


def create_app(cluster: views.Cluster) -> FastAPI:
    """The application; serve it with ``capture.server``."""
    forwarder = _Forwarder(cluster)

    app = FastAPI(title="Weir", version=installed_version())
    app.include_router(_member_routes(cluster))
    app.include_router(_changefeed_routes(cluster))
    app.include_router(_operator_routes(cluster))
    app.add_api_route("/metrics", partial(_metrics, cluster), include_in_schema=False)
    app.add_exception_handler(WeirError, _on_weir_error)
    app.add_exception_handler(RequestValidationError, _on_invalid_request)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.middleware("http")(forwarder.handle)
    return app


def _member_routes(cluster: views.Cluster) -> APIRouter:
    """What every capture answers itself."""
    router = APIRouter(prefix=PREFIX, tags=["cluster"])

    @router.get("/health")
    async def health(response: Response) -> views.HealthView:
        view = await cluster.health()
        response.status_code = 200 if view.healthy else 503
        return view

    @router.get("/status")
    async def status() -> views.StatusView:
        return await cluster.status()

    @router.get("/captures")
    async def captures() -> list[views.CaptureView]:
        return await cluster.captures()

    return router


def _changefeed_routes(cluster: views.Cluster) -> APIRouter:
    """What the owner answers."""
    router = APIRouter(prefix=f"{PREFIX}/changefeeds", tags=["changefeeds"])

    @router.get("")
    async def list_() -> list[ChangefeedView]:
        return await cluster.list()

    @router.post("", status_code=201)
    async def create(spec: views.ChangefeedSpec) -> ChangefeedView:
        return await cluster.create(spec)

    @router.get("/{changefeed_id}")
    async def query(changefeed_id: str) -> ChangefeedView:
        return await cluster.query(changefeed_id)

    @router.delete("/{changefeed_id}", status_code=204)
    async def remove(changefeed_id: str) -> None:
        await cluster.remove(changefeed_id)

    @router.post("/{changefeed_id}/pause")
    async def pause(changefeed_id: str) -> ChangefeedView:
        return await cluster.pause(changefeed_id)

    @router.post("/{changefeed_id}/resume")
    async def resume(changefeed_id: str, body: Annotated[ResumeBody | None, Body()] = None) -> ChangefeedView:
        overwrite = body.overwrite_checkpoint_ts if body is not None else None
        return await cluster.resume(changefeed_id, overwrite_checkpoint_ts=overwrite)

    @router.get("/{changefeed_id}/tables")
    async def tables(changefeed_id: str) -> list[TableView]:
        return await cluster.tables(changefeed_id)

    @router.get("/{changefeed_id}/diff")
    async def diff(changefeed_id: str) -> list[views.TableDiff]:
        return await cluster.diff(changefeed_id)

    return router


def _operator_routes(cluster: views.Cluster) -> APIRouter:
    """What only somebody who runs the cluster asks for; the owner answers."""
    router = APIRouter(prefix=PREFIX, tags=["operators"])

    @router.put("/changefeeds/{changefeed_id}")
    async def update(changefeed_id: str, asked: views.ChangefeedUpdate) -> views.UpdateView:
        return await cluster.update(changefeed_id, asked)

    @router.post("/changefeeds/{changefeed_id}/rewind")
    async def rewind(changefeed_id: str, body: RewindBody) -> views.RewindView:
        return await cluster.rewind(changefeed_id, body.ts)

    @router.post("/changefeeds/{changefeed_id}/move_table", status_code=202)
    async def move_table(changefeed_id: str, body: MoveTableBody) -> views.MoveView:
        return await cluster.move_table(changefeed_id, body.table, body.capture_id)

    @router.post("/changefeeds/{changefeed_id}/split", status_code=202)
    async def split(changefeed_id: str, body: SplitBody) -> views.CutView:
        return await cluster.split(changefeed_id, body.table, body.spans)

    @router.post("/changefeeds/{changefeed_id}/rebalance", status_code=202)
    async def rebalance(changefeed_id: str) -> None:
        await cluster.rebalance(changefeed_id)

    @router.post("/captures/{capture_id}/drain", status_code=202)
    async def drain(capture_id: str) -> views.DrainView:
        return await cluster.drain(capture_id)

    @router.post("/owner/resign")
    async def resign_owner() -> views.ResignView:
        return await cluster.resign_owner()

    return router


class _Forwarder:
    """Takes what only the owner can answer to the owner; and lets no error out as anything but our JSON."""

    def __init__(self, cluster: views.Cluster) -> None:
        self._cluster = cluster

    async def handle(self, request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
        try:
            if not request.url.path.startswith(_OF_THE_OWNER) or self._cluster.is_owner:
                return await call_next(request)
            if FORWARDED_FROM in request.headers:
                raise NotOwnerError("the owner has just changed; try again")
            return await self._forward(request)
        except WeirError as error:
            return _error_response(error)
        except Exception as error:
            _log.exception("request failed", method=request.method, path=request.url.path)
            text = f"{type(error).__name__}: {mask(str(error))}; see this capture's log"
            return _json_error(500, "Internal", _one_line(text))

    async def _forward(self, request: Request) -> Response:
        address = await self._cluster.owner_address()
        headers = {name: value for name, value in request.headers.items() if name not in _HOP_HEADERS}
        headers[FORWARDED_FROM] = (await self._cluster.status()).id
        target = f"http://{address}{request.url.path}"
        # A comparison of large tables takes as long as it takes; an owner that is gone shows at connecting. Nothing is
        # verified because nothing is encrypted: building a TLS context is most of what a client costs.
        timeout = httpx.Timeout(None, connect=5.0)
        answer: httpx.Response | None = None
        reason = "another has taken its place"
        try:
            async with (
                httpx.AsyncClient(timeout=timeout, trust_env=False, verify=False) as client,
                anyio.create_task_group() as tasks,
            ):
                tasks.start_soon(self._leave_when_replaced, address, tasks.cancel_scope)
                answer = await client.request(
                    request.method, target, params=request.query_params, headers=headers, content=await request.body()
                )
                tasks.cancel_scope.cancel()
        except* httpx.TransportError as errors:
            reason = type(errors.exceptions[0]).__name__
        if answer is None:
            text = f"the owner at {address} does not answer ({reason}); try again when another is elected"
            return _json_error(503, "OwnerUnreachable", text)
        kept = {name: value for name, value in answer.headers.items() if name not in _HOP_HEADERS}
        return Response(answer.content, status_code=answer.status_code, headers=kept)

    async def _leave_when_replaced(self, address: str, scope: anyio.CancelScope) -> None:
        """A process that hangs takes requests, and answers none of them, also when another is owner by then."""
        is_owners = True
        while is_owners:
            await anyio.sleep(_OWNER_LOOK_S)
            is_owners = await self._is_owners(address)
        await anyio.sleep(_LAST_WORDS_S)
        scope.cancel()

    async def _is_owners(self, address: str) -> bool:
        try:
            return await self._cluster.owner_address() == address
        except WeirError:
            return False


def status_of(error: WeirError) -> int:
    for kind, status in _STATUS.items():
        if isinstance(error, kind):
            return status
    return 503 if error.retryable else 400


async def _metrics(cluster: views.Cluster) -> Response:
    return Response(await metrics.exposition(cluster), media_type=CONTENT_TYPE_LATEST)


async def _on_weir_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, WeirError)
    return _error_response(error)


async def _on_invalid_request(_: Request, error: Exception) -> Response:
    """Never with the input: it holds passwords."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"] if part != "body") or "the body"
    return _json_error(400, "InvalidRequest", f"{where}: {_one_line(str(first['msg']))}; see /docs")


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _json_error(error.status_code, "Http", f"{request.method} {request.url.path}: {error.detail}; see /docs")


def _error_response(error: WeirError) -> Response:
    return _json_error(status_of(error), error.code, _one_line(mask(str(error))))


def _json_error(status: int, code: str, message: str) -> Response:
    return JSONResponse({"error_code": code, "error_msg": message}, status_code=status)


def _one_line(text: str) -> str:
    return " ".join(text.split())

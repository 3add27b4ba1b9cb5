"""HTTP API v2: FastAPI routes over the ``Cluster`` port, for the command line, scripts and monitoring.

Requests about a changefeed are answered by its owner, about the cluster by the controller: any other capture forwards
them to it. Errors are
``{"error_code", "error_msg"}``: 400 for errors that the caller can correct, 401 and 403 for missing authorisation, 404
and 409 for ids, 503 for transient errors, 500 for our own faults. ``capture.api.guard`` decides who may request what.
Errors are raised elsewhere; here they only get their status.
"""

from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import Annotated

import structlog
from fastapi import APIRouter, Body, Depends, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi_offline import FastAPIOffline
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException

from capture.api import metrics
from capture.api import port as views
from capture.api.access import Access
from capture.api.access_routes import access_routes
from capture.api.comparison_routes import comparison_routes
from capture.api.departure import unless_left
from capture.api.description import describe
from capture.api.guard import Guard
from capture.api.requests.base import Asked, Name, PositionTs, TableName
from capture.api.requests.errors import error_response, json_error, status_of
from capture.api.requests.fit import refuse_unfit
from capture.api.requests.forwarding import PREFIX, Forwarder
from capture.api.requests.shown import one_line
from capture.api.subscription_routes import subscription_routes
from capture.api.subscriptions import Subscriptions
from capture.api.table_routes import table_routes
from capture.version import installed_version
from reactor.errors import WeirError
from reactor.records.base import SpanCount
from reactor.records.sync_point import SyncPoint
from reactor.views import ChangefeedView, OwnerMoveView

_log = structlog.get_logger()


class ResumeBody(Asked):
    overwrite_checkpoint_ts: PositionTs | None = None
    resync: bool = False


class RewindBody(Asked):
    ts: PositionTs


class MoveTableBody(Asked):
    """``table``: schema.name"""

    table: TableName
    capture_id: Name


class MoveOwnerBody(Asked):
    capture_id: Name


class SplitBody(Asked):
    """``table``: schema.name; ``spans``: 1 joins it, none: as many as the captures can share evenly"""

    table: TableName
    spans: SpanCount | None = None


def create_app(
    cluster: views.Cluster,
    access: Access,
    *,
    subscriptions: Subscriptions | None = None,
    names: Collection[str] = (),
    own_token: Callable[[], str] = str,
    ca_file: Path | None = None,
) -> Guard:
    """Return the application; ``capture.server`` serves it.

    ``names``: of this server, besides addresses. ``own_token``, ``ca_file``: authenticate it to the owner, and verify
    the owner's certificate.
    """
    forwarder = Forwarder(cluster, own_token, ca_file)

    app = FastAPIOffline(redoc_url=None, title="Weir", version=installed_version())
    routers = [
        _member_routes(cluster),
        _changefeed_routes(cluster),
        _operator_routes(cluster),
        table_routes(cluster, PREFIX),
        comparison_routes(cluster, PREFIX),
        access_routes(access, PREFIX),
    ]
    if subscriptions is not None:
        routers.append(subscription_routes(subscriptions, PREFIX))
    for router in routers:
        app.include_router(router, dependencies=[Depends(refuse_unfit)])
    app.add_api_route("/health", partial(_health, cluster), include_in_schema=False)
    app.add_api_route("/ready", partial(_ready, cluster), include_in_schema=False)
    app.add_api_route("/metrics", partial(_metrics, cluster), include_in_schema=False)
    app.add_exception_handler(WeirError, _on_weir_error)
    app.add_exception_handler(RequestValidationError, _on_invalid_request)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.middleware("http")(forwarder.handle)
    describe(app, open_paths=(f"{PREFIX}/health", f"{PREFIX}/ready"))
    return Guard(app, access=access, names=names, is_forwarded=forwarder.is_forwarded, status_of=status_of)


async def _health(cluster: views.Cluster, response: Response) -> views.HealthView:
    view = await cluster.health()
    response.status_code = 200 if view.healthy else 503
    return view


async def _ready(cluster: views.Cluster, response: Response) -> views.ReadyView:
    view = await cluster.ready()
    response.status_code = 200 if view.ready else 503
    return view


def _member_routes(cluster: views.Cluster) -> APIRouter:
    """Return the routes that every capture answers itself."""
    router = APIRouter(prefix=PREFIX, tags=["cluster"])

    @router.get("/health")
    async def health(response: Response) -> views.HealthView:
        return await _health(cluster, response)

    @router.get("/ready")
    async def ready(response: Response) -> views.ReadyView:
        return await _ready(cluster, response)

    @router.get("/status")
    async def status() -> views.StatusView:
        return await cluster.status()

    @router.get("/owned")
    async def owned(tables: bool = True) -> list[ChangefeedView]:
        return await cluster.owned(tables=tables)

    @router.get("/captures")
    async def captures() -> list[views.CaptureView]:
        return await cluster.captures()

    return router


def _changefeed_routes(cluster: views.Cluster) -> APIRouter:
    """Return the routes about changefeeds, which the owner answers."""
    router = APIRouter(prefix=f"{PREFIX}/changefeeds", tags=["changefeeds"])

    @router.get("")
    async def list_(tables: bool = True) -> list[ChangefeedView]:
        return await cluster.list(tables=tables)

    @router.post("", status_code=201)
    async def create(spec: views.ChangefeedSpec, request: Request) -> ChangefeedView:
        return await unless_left(request, lambda: cluster.create(spec))

    @router.post("/check")
    async def check(spec: views.ChangefeedSpec, request: Request) -> views.CheckView:
        return await unless_left(request, lambda: cluster.check(spec))

    @router.get("/{changefeed_id}")
    async def query(changefeed_id: str, tables: bool = True) -> ChangefeedView:
        return await cluster.query(changefeed_id, tables=tables)

    @router.delete("/{changefeed_id}", status_code=204)
    async def remove(changefeed_id: str) -> None:
        await cluster.remove(changefeed_id)

    @router.post("/{changefeed_id}/pause")
    async def pause(changefeed_id: str) -> ChangefeedView:
        return await cluster.pause(changefeed_id)

    @router.post("/{changefeed_id}/resume")
    async def resume(changefeed_id: str, body: Annotated[ResumeBody | None, Body()] = None) -> ChangefeedView:
        wish = body or ResumeBody()
        return await cluster.resume(changefeed_id, **wish.model_dump())

    @router.get("/{changefeed_id}/sync_points")
    async def sync_points(changefeed_id: str) -> list[SyncPoint]:
        return await cluster.sync_points(changefeed_id)

    return router


def _operator_routes(cluster: views.Cluster) -> APIRouter:
    """Return the routes for operators of the cluster, which the owner answers."""
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

    @router.post("/changefeeds/{changefeed_id}/move_owner", status_code=202)
    async def move_owner(changefeed_id: str, body: MoveOwnerBody) -> OwnerMoveView:
        return await cluster.move_owner(changefeed_id, body.capture_id)

    @router.post("/changefeeds/{changefeed_id}/split", status_code=202)
    async def split(changefeed_id: str, body: SplitBody) -> views.CutView:
        return await cluster.split(changefeed_id, body.table, body.spans)

    @router.post("/changefeeds/{changefeed_id}/rebalance", status_code=202)
    async def rebalance(changefeed_id: str) -> None:
        await cluster.rebalance(changefeed_id)

    @router.post("/captures/{capture_id}/drain", status_code=202)
    async def drain(capture_id: str) -> views.DrainView:
        return await cluster.drain(capture_id)

    @router.post("/secret/rotate")
    async def rotate_secret() -> views.RotationView:
        return await cluster.rotate_secret()

    @router.post("/owner/resign")
    async def resign_owner() -> views.ResignView:
        return await cluster.resign_owner()

    return router


async def _metrics(cluster: views.Cluster) -> Response:
    return Response(await metrics.exposition(cluster), media_type=CONTENT_TYPE_LATEST)


async def _on_weir_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, WeirError)
    return error_response(error)


async def _on_invalid_request(_: Request, error: Exception) -> Response:
    """Without the input: it contains passwords."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = one_line(".".join(str(part) for part in first["loc"] if part != "body"), 200) or "the body"
    return json_error(400, "InvalidRequest", f"{where}: {first['msg']}; see /docs")


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return json_error(error.status_code, "Http", f"{request.method} {request.url.path}: {error.detail}; see /docs")

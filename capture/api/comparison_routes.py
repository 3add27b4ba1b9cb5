"""Comparison routes: what compares source and sink over HTTP, and what makes them equal; the owner answers."""

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Query, Request

from capture.api import port as views
from capture.api.departure import unless_left


def comparison_routes(cluster: views.Cluster, prefix: str) -> APIRouter:
    router = APIRouter(prefix=f"{prefix}/changefeeds", tags=["comparison"])

    @router.get("/{changefeed_id}/diff")
    async def diff(
        request: Request, changefeed_id: str, asked: Annotated[views.DiffAsked, Query()]
    ) -> list[views.TableDiff]:
        return await unless_left(request, partial(cluster.diff, changefeed_id, asked))

    @router.post("/{changefeed_id}/repair")
    async def repair(request: Request, changefeed_id: str, asked: views.RepairAsked) -> list[views.TableRepair]:
        return await unless_left(request, partial(cluster.repair, changefeed_id, asked))

    return router

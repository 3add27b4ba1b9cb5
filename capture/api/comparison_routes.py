"""Comparison routes: what compares source and sink over HTTP, and what makes them equal; the owner answers."""

from fastapi import APIRouter

from capture.api import port as views


def comparison_routes(cluster: views.Cluster, prefix: str) -> APIRouter:
    router = APIRouter(prefix=f"{prefix}/changefeeds", tags=["comparison"])

    @router.get("/{changefeed_id}/diff")
    async def diff(changefeed_id: str) -> list[views.TableDiff]:
        return await cluster.diff(changefeed_id)

    @router.post("/{changefeed_id}/repair")
    async def repair(changefeed_id: str, asked: views.RepairAsked) -> list[views.TableRepair]:
        return await cluster.repair(changefeed_id, asked)

    return router

"""Table routes: HTTP requests about one table of a changefeed, which the owner answers."""

from functools import partial
from typing import Annotated, Final, Literal

from fastapi import APIRouter, Query, Request
from pydantic import Field

from capture.api import port as views
from capture.api.departure import unless_left
from capture.api.requests.base import Asked, PositionTs, TableName
from reactor.ids import MAX_TS
from reactor.records.base import RowsPerSecond
from reactor.views import MaintainedView, TableFilesView, TableView

PAGE_MAX: Final = 10_000


class TableBody(Asked):
    """``table``: schema.name"""

    table: TableName


class TablePage(Asked):
    """At most ``limit`` tables (none: all), by id, behind the id ``after``; or the one called ``name``
    (schema.name)."""

    after: Annotated[int, Field(strict=False, ge=0, le=MAX_TS)] | None = None
    limit: Annotated[int, Field(strict=False, ge=1, le=PAGE_MAX)] | None = None
    name: TableName | Literal[""] = ""


class ResyncBody(TableBody):
    """``rows_per_second``: to read from the source at most; None: as fast as it goes."""

    rows_per_second: RowsPerSecond | None = None


class SkipBody(TableBody):
    """``ts``: where the table continues. ``confirmed``: that the changes before are to be left out."""

    ts: PositionTs
    confirmed: bool = False


def table_routes(cluster: views.Cluster, prefix: str) -> APIRouter:
    router = APIRouter(prefix=f"{prefix}/changefeeds", tags=["tables"])

    @router.get("/{changefeed_id}/tables")
    async def tables(changefeed_id: str, page: Annotated[TablePage, Query()]) -> list[TableView]:
        return await cluster.tables(changefeed_id, after=page.after, limit=page.limit, name=page.name)

    @router.post("/{changefeed_id}/resync_table", status_code=202)
    async def resync_table(changefeed_id: str, body: ResyncBody) -> views.TableResyncView:
        return await cluster.resync_table(changefeed_id, body.table, rows_per_second=body.rows_per_second)

    @router.post("/{changefeed_id}/cancel_resync", status_code=202)
    async def cancel_resync(changefeed_id: str, body: TableBody) -> views.TableResyncView:
        return await cluster.cancel_resync(changefeed_id, body.table)

    @router.post("/{changefeed_id}/pause_table")
    async def pause_table(changefeed_id: str, body: TableBody) -> views.TableStepView:
        return await cluster.pause_table(changefeed_id, body.table)

    @router.post("/{changefeed_id}/resume_table")
    async def resume_table(changefeed_id: str, body: TableBody) -> views.TableStepView:
        return await cluster.resume_table(changefeed_id, body.table)

    @router.post("/{changefeed_id}/skip_table")
    async def skip_table(changefeed_id: str, body: SkipBody) -> views.TableStepView:
        return await cluster.skip_table(changefeed_id, body.table, body.ts, confirmed=body.confirmed)

    @router.post("/{changefeed_id}/maintain_table")
    async def maintain_table(request: Request, changefeed_id: str, body: TableBody) -> MaintainedView:
        return await unless_left(request, partial(cluster.maintain_table, changefeed_id, body.table))

    @router.get("/{changefeed_id}/table_files")
    async def table_files(changefeed_id: str, asked: Annotated[TableBody, Query()]) -> TableFilesView:
        return await cluster.table_files(changefeed_id, asked.table)

    @router.post("/{changefeed_id}/add_table", status_code=202)
    async def add_table(changefeed_id: str, body: TableBody) -> views.UpdateView:
        return await cluster.add_table(changefeed_id, body.table)

    @router.post("/{changefeed_id}/remove_table")
    async def remove_table(changefeed_id: str, body: TableBody) -> views.UpdateView:
        return await cluster.remove_table(changefeed_id, body.table)

    return router

"""Access routes: tokens and the audit trail over HTTP; any capture answers them."""

from typing import Annotated

from fastapi import APIRouter, Query, Request

from capture.api.access import Access, AuditView, TokenAsked, TokenView

_TRAIL_DEFAULT, _TRAIL_MAX = 100, 1_000


def access_routes(access: Access, prefix: str) -> APIRouter:
    router = APIRouter(prefix=prefix, tags=["access"])

    @router.get("/tokens")
    async def tokens() -> list[TokenView]:
        return await access.list()

    @router.post("/tokens", status_code=201)
    async def create(asked: TokenAsked, request: Request) -> TokenView:
        return await access.create(asked, request.scope["caller"])

    @router.delete("/tokens/{token_id}")
    async def revoke(token_id: str) -> TokenView:
        return await access.revoke(token_id)

    @router.get("/audit")
    async def audit(limit: Annotated[int, Query(ge=1, le=_TRAIL_MAX)] = _TRAIL_DEFAULT) -> list[AuditView]:
        return await access.trail(limit)

    return router

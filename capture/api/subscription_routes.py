"""Subscription routes: HTTP requests of readers of changes."""

from fastapi import APIRouter

from capture.api.subscriptions import (
    AdvanceAsked,
    LogAsked,
    LogPart,
    OpenedSubscription,
    SubscriptionAsked,
    Subscriptions,
)
from reactor.views import SubscriptionView


def subscription_routes(subscriptions: Subscriptions, prefix: str) -> APIRouter:
    router = APIRouter(prefix=f"{prefix}/changefeeds/{{changefeed_id}}/subscriptions", tags=["subscriptions"])

    @router.post("", status_code=201)
    async def open(changefeed_id: str, asked: SubscriptionAsked) -> OpenedSubscription:
        return await subscriptions.open(changefeed_id, asked)

    @router.get("")
    async def list_all(changefeed_id: str) -> list[SubscriptionView]:
        return await subscriptions.list(changefeed_id)

    @router.post("/{name}/read")
    async def read(changefeed_id: str, name: str, asked: LogAsked) -> LogPart:
        return await subscriptions.read(changefeed_id, name, asked)

    @router.post("/{name}/advance")
    async def advance(changefeed_id: str, name: str, asked: AdvanceAsked) -> SubscriptionView:
        return await subscriptions.advance(changefeed_id, name, asked)

    @router.delete("/{name}", status_code=204)
    async def close(changefeed_id: str, name: str) -> None:
        await subscriptions.close(changefeed_id, name)

    return router

"""Request fit: refuses what a route would ignore, a body where it has none and parameters that it does not know.

Whoever sends ``{"table": …}`` to the route that pauses a whole changefeed means something else than it would do.
"""

from fastapi import Request
from fastapi.openapi.utils import get_openapi
from starlette.routing import BaseRoute

from reactor.errors import WeirError

_EMPTY = (b"", b"{}")


class UnfitRequestError(WeirError):
    """A request has a part that its route does not have."""

    code = "InvalidRequest"


class Fit:
    """A dependency of all routes. A route's own description says what it takes; it is made when it is first needed, as
    that of all routes would hold up the event loop."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], tuple[frozenset[str], bool]] = {}

    async def __call__(self, request: Request) -> None:
        """:raises UnfitRequestError: the request has more than its route takes."""
        route, method = request.scope["route"], request.method.lower()
        if (route.path, method) not in self._known:
            self._known[route.path, method] = _taken(route, method)
        known, has_body = self._known[route.path, method]
        names = [name for name, _ in request.query_params.multi_items()]
        for name in names:
            if name not in known:
                takes = f"it takes {', '.join(sorted(known))}" if known else "it takes none"
                raise UnfitRequestError(f"this route does not know the query parameter {name[:64]!r}; {takes}")
        if len(names) > len(set(names)):
            raise UnfitRequestError("a query parameter is there twice; send it once")
        if not has_body and (await request.body()).strip() not in _EMPTY:
            raise UnfitRequestError("this route takes no body; send none, or use the route that takes it, see /docs")


def _taken(route: BaseRoute, method: str) -> tuple[frozenset[str], bool]:
    """Return the names of a route's query parameters, and whether it has a body."""
    [described] = get_openapi(title="", version="", routes=[route])["paths"].values()
    parameters = described[method].get("parameters", ())
    known = frozenset(parameter["name"] for parameter in parameters if parameter["in"] == "query")
    return known, "requestBody" in described[method]

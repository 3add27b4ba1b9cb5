"""Request fit: refuses what a route would ignore, a body where it has none and parameters that it does not know.

Whoever sends ``{"table": …}`` to the route that pauses a whole changefeed means something else than it would do.
"""

from functools import cache

from fastapi import FastAPI, Request

from reactor.errors import WeirError

_EMPTY = (b"", b"{}")


class UnfitRequestError(WeirError):
    """A request has a part that its route does not have."""

    code = "InvalidRequest"


class Fit:
    """A dependency of all routes. ``bind`` gives it the application, whose own description says what a route takes."""

    def __init__(self) -> None:
        self._app: FastAPI | None = None
        self._operations = cache(self._described)

    def bind(self, app: FastAPI) -> None:
        self._app = app

    async def __call__(self, request: Request) -> None:
        """:raises UnfitRequestError: the request has more than its route takes."""
        known, has_body = self._operations(request.scope["route"].path, request.method.lower())
        names = [name for name, _ in request.query_params.multi_items()]
        for name in names:
            if name not in known:
                takes = f"it takes {', '.join(sorted(known))}" if known else "it takes none"
                raise UnfitRequestError(f"this route does not know the query parameter {name[:64]!r}; {takes}")
        if len(names) > len(set(names)):
            raise UnfitRequestError("a query parameter is there twice; send it once")
        if not has_body and (await request.body()).strip() not in _EMPTY:
            raise UnfitRequestError("this route takes no body; send none, or use the route that takes it, see /docs")

    def _described(self, path: str, method: str) -> tuple[frozenset[str], bool]:
        assert self._app is not None
        operation = self._app.openapi()["paths"][path][method]
        parameters = operation.get("parameters", ())
        known = frozenset(parameter["name"] for parameter in parameters if parameter["in"] == "query")
        return known, "requestBody" in operation

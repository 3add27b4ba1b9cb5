"""Request fit: refuses what a route would ignore, a body where it has none and parameters that it does not know.

Whoever sends ``{"table": …}`` to the route that pauses a whole changefeed means something else than it would do.
"""

from collections.abc import Iterator

from fastapi import Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from pydantic import BaseModel

from reactor.errors import WeirError

_EMPTY = (b"", b"{}")


class UnfitRequestError(WeirError):
    """A request has a part that its route does not have."""

    code = "InvalidRequest"


async def refuse_unfit(request: Request) -> None:
    """A dependency of all routes. What a route takes is what FastAPI reads for it and its dependencies.

    :raises UnfitRequestError: the request has more than its route takes.
    """
    route: APIRoute = request.scope["route"]
    known = frozenset(_query_parameters(route.dependant))
    names = [name for name, _ in request.query_params.multi_items()]
    for name in names:
        if name not in known:
            takes = f"it takes {', '.join(sorted(known))}" if known else "it takes none"
            raise UnfitRequestError(f"this route does not know the query parameter {name[:64]!r}; {takes}")
    if len(names) > len(set(names)):
        raise UnfitRequestError("a query parameter is there twice; send it once")
    if route.body_field is None and (await request.body()).strip() not in _EMPTY:
        raise UnfitRequestError("this route takes no body; send none, or use the route that takes it, see /docs")


def _query_parameters(dependant: Dependant) -> Iterator[str]:
    for field in dependant.query_params:
        model = field.field_info.annotation
        if isinstance(model, type) and issubclass(model, BaseModel):
            yield from model.model_fields
        else:
            yield field.alias
    for needed in dependant.dependencies:
        yield from _query_parameters(needed)

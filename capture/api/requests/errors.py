"""Errors as answers: the HTTP status and the JSON of an error."""

from fastapi.responses import JSONResponse
from starlette.responses import Response

from capture.api.requests.shown import one_line
from capture.errors import (
    CaptureNotFoundError,
    ChangefeedExistsError,
    ChangefeedNotFoundError,
    JobRefusedError,
    PositionGoneError,
    StillRunningError,
    SubscriptionNotFoundError,
    TableNotFoundError,
    TokenNotFoundError,
)
from capture.security.secrets import mask
from reactor.errors import NotOwnerError, WeirError

_STATUS: dict[type[WeirError], int] = {
    ChangefeedNotFoundError: 404,
    TokenNotFoundError: 404,
    CaptureNotFoundError: 404,
    ChangefeedExistsError: 409,
    JobRefusedError: 409,
    TableNotFoundError: 404,
    SubscriptionNotFoundError: 404,
    PositionGoneError: 410,
    NotOwnerError: 503,
    StillRunningError: 202,
}


def status_of(error: WeirError) -> int:
    for kind, status in _STATUS.items():
        if isinstance(error, kind):
            return status
    return 503 if error.retryable else 400


def error_response(error: WeirError) -> Response:
    return json_error(status_of(error), error.code, mask(str(error)))


def json_error(status: int, code: str, message: str) -> Response:
    headers = {"retry-after": "1"} if status == 503 else None
    return JSONResponse({"error_code": code, "error_msg": one_line(message)}, status_code=status, headers=headers)

"""Faults: converts an exception of a changefeed's tick to a running error."""

from reactor.errors import WeirError
from reactor.ids import CaptureId
from reactor.records.changefeed import RunningError


def running_error(error: Exception, capture: CaptureId, *, time: float) -> RunningError:
    """Our own errors say whether a retry helps; any other exception is a bug, and a restart may still help."""
    if isinstance(error, WeirError):
        return RunningError(
            code=error.code,
            message=str(error),
            capture=capture,
            time=time,
            retryable=error.retryable,
            table_id=error.table_id,
            scope=error.scope,
        )
    return RunningError(code="Internal", message=f"{type(error).__name__}: {error}", capture=capture, time=time)

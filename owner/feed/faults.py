"""Faults: what a changefeed's tick raised, as a running error."""

from reactor.errors import WeirError
from reactor.ids import CaptureId
from reactor.records.changefeed import RunningError


def running_error(error: Exception, capture: CaptureId, *, time: float) -> RunningError:
    """Errors that we raised say whether trying again helps; any other is a bug, and a new run may still work."""
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

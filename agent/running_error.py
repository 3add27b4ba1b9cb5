"""Running errors: converts our own errors to what the owner and users see."""

import time

from reactor.errors import WeirError
from reactor.records.changefeed import RunningError


def running_error(error: WeirError) -> RunningError:
    """Return an error as the owner and users see it."""
    return RunningError(
        code=error.code,
        message=str(error),
        time=time.time(),
        retryable=error.retryable,
        table_id=error.table_id,
        scope=error.scope,
    )

"""Running errors: errors that we raised as the owner and users see them."""

import time

from reactor.errors import WeirError
from reactor.records.changefeed import RunningError


def running_error(error: WeirError) -> RunningError:
    """An error as the owner and users see it."""
    return RunningError(
        code=error.code,
        message=str(error),
        time=time.time(),
        retryable=error.retryable,
        table_id=error.table_id,
        scope=error.scope,
    )

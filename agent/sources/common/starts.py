"""Start positions: checks of a ``--start-ts`` option that all sources share."""

from agent.errors import SourceConfigError
from reactor.ids import Ts


def refuse_future(current_ts: Ts, start_ts: Ts, target: object) -> None:
    """Check that the source's log has reached ``start_ts``.

    :raises SourceConfigError: it has not.
    """
    if start_ts > current_ts:
        raise SourceConfigError(
            f"start Ts {start_ts} is past the end of {target}'s log, which is at {current_ts}; give a smaller one, or "
            "none to start from now"
        )

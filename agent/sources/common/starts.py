"""Start positions: what every source refuses of a ``--start-ts`` that an operator gives."""

from agent.errors import SourceConfigError
from reactor.ids import Ts


def refuse_future(current_ts: Ts, start_ts: Ts, target: object) -> None:
    """:raises SourceConfigError: the source's log does not reach that far yet."""
    if start_ts > current_ts:
        raise SourceConfigError(
            f"start Ts {start_ts} is past the end of {target}'s log, which is at {current_ts}; give a smaller one, or "
            "none to start from now"
        )

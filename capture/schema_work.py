"""Schema changes at the sinks, for the owner that is in this capture's seat: each in a thread of its own.

A table that has to be written anew takes its time. What fails is tried again, and other tables go on meanwhile.
"""

from collections.abc import Callable
from functools import partial

import structlog

from agent import apply_ddl
from agent.apply_ddl import Terms
from agent.errors import TableIneligibleError
from agent.feed_parts import Feed
from agent.span_writer import running_error
from capture.once import Once
from owner.jobs import SchemaApplied
from reactor import failpoints
from reactor.effects import ApplySchema
from reactor.errors import WeirError
from reactor.failpoints import Point
from reactor.records import RunningError

_log = structlog.get_logger()


class SchemaWork:
    """For the life of a capture."""

    def __init__(self) -> None:
        self._changes = Once("the sink")

    async def apply(self, effect: ApplySchema, feed: Feed, post: Callable[[SchemaApplied], None]) -> None:
        """Let the sink's tables follow; ``post`` takes how it went."""
        at = effect.changefeed, effect.record.ts
        said = partial(SchemaApplied, *at)
        try:
            await self._changes.run(at, partial(_apply, feed, effect))
            post(said())
        except WeirError as failure:
            _log.warning("the sink does not follow a schema change", changefeed=effect.changefeed, error=str(failure))
            post(said(_told(failure)))


def _apply(feed: Feed, effect: ApplySchema) -> None:
    failpoints.reach(Point.SCHEMA_BEFORE_SINK)
    apply_ddl.apply(feed.open_sink(), effect.record, Terms(feed.config, feed.sink_mode))
    failpoints.reach(Point.SCHEMA_AFTER_SINK)


def _told(error: WeirError) -> RunningError:
    """A table that cannot follow waits, and others go on; but one without a key would wait for ever."""
    return running_error(error).with_(retryable=not isinstance(error, TableIneligibleError))

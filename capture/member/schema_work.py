"""Schema work: changes schemas at the sinks for the owner that runs on this capture, each in a thread of its own.

A table that has to be rewritten takes its time. What fails is tried again, and other tables continue meanwhile.
"""

from collections.abc import Callable
from functools import partial

import structlog

from agent.feeds.runtime import Feed
from agent.running_error import running_error
from agent.schema_changes import apply as apply_ddl
from agent.schema_changes.apply import Terms
from capture.member.once import Once
from owner.jobs import SchemaApplied
from reactor import failpoints
from reactor.effects import ApplySchema
from reactor.errors import WeirError
from reactor.failpoints import Point

_log = structlog.get_logger()


class SchemaWork:
    """For one membership."""

    def __init__(self) -> None:
        self._changes = Once("the sink")

    async def apply(self, effect: ApplySchema, feed: Feed, post: Callable[[SchemaApplied], None]) -> None:
        """Let the sink's tables follow; ``post`` takes how it went."""
        record = effect.record
        said = partial(SchemaApplied, effect.changefeed, record.ts, tables=record.table_ids)
        at = effect.changefeed, record.ts, record.table_ids
        try:
            await self._changes.run(at, partial(_apply, feed, effect))
            post(said())
        except WeirError as failure:
            _log.warning("the sink does not follow a schema change", changefeed=effect.changefeed, error=str(failure))
            post(said(running_error(failure)))


def _apply(feed: Feed, effect: ApplySchema) -> None:
    failpoints.reach(Point.SCHEMA_BEFORE_SINK)
    apply_ddl.apply(feed.open_sink(), effect.record, Terms(feed.config, feed.sink_mode), effect.tables)
    failpoints.reach(Point.SCHEMA_AFTER_SINK)

"""Flush errors: which pass by themselves, and which are of a single table."""

from dataclasses import replace

from agent.control.runtime import SpanFlushed
from agent.errors import (
    JobTimeoutError,
    LogError,
    RowMovedError,
    SinkConfigError,
    SinkFencedError,
    SinkPassingError,
    SinkTimeoutError,
)
from reactor.errors import Scope
from reactor.records.changefeed import RunningError

#: transient errors of the sink, the log's storage or Spark as a whole: reported at once, and retried
PASSING = frozenset(
    {JobTimeoutError.code, SinkTimeoutError.code, SinkPassingError.code, SinkConfigError.code, LogError.code}
)

#: errors of writers and spans that another epoch, or other spans, resolve
_OF_WRITERS = frozenset({SinkFencedError.code, RowMovedError.code})


def is_passing(error: RunningError) -> bool:
    return error.scope is Scope.CHANGEFEED and error.code in PASSING


def of_tables(spans: tuple[SpanFlushed, ...]) -> tuple[SpanFlushed, ...]:
    """A table that is refused while another is written is itself the cause, whatever the sink calls the error."""
    if not any(span.error for span in spans):
        return spans
    written = {span.position.table.table_id for span in spans if span.error is None and span.rows}

    def is_cause(span: SpanFlushed) -> bool:
        return len(written) > (span.position.table.table_id in written)

    return tuple(_of_table(span) if span.error and is_cause(span) else span for span in spans)


def _of_table(span: SpanFlushed) -> SpanFlushed:
    error = span.error
    if error is None or error.code in _OF_WRITERS or error.scope is Scope.CAPTURE or is_passing(error):
        return span
    return replace(span, error=error.with_(scope=Scope.TABLE, table_id=span.position.table.table_id))

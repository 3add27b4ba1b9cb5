"""Errors of the agent; all are ``reactor.errors.WeirError``: one line, cause then cure.

SourceError                 the source database refused or failed
├── SourceUnreachableError  host down, connection lost (retryable)
├── SourceAuthError         wrong user or password, no replication privilege
├── SourceConfigError       the server is not set up for capture: wal_level, free slots, publication
├── TableIneligibleError    a table without a usable key and without force_replicate
├── SlotInUseError          another reader holds the slot, or a dead one still seems to (retryable)
└── PositionLostError       the slot is gone, or of another server: what comes next is no longer there
    └── SnapshotLostByGCError  the server has removed what was not read for too long
LogError                    the change log's storage refused or failed (retryable)
├── LogFencedError          another sync worker has taken the log over
└── LogStorageMismatchError the log storage is not this cluster's
HoldTooEarlyError           a table must be held, which some captures of the cluster do not know yet (retryable)
UnitFencedError             a worker with a newer order runs this unit
SinkError                   the sink refused or failed
├── SinkUriError            unknown scheme or malformed URI
├── SinkConfigError         the whole sink: not writable, wrong bucket or credentials
├── SinkPassingError        the whole sink, for now: disk full, mount away, storage that does not answer (retryable)
├── SinkFencedError         the sink records another position than this writer expects: the writer is stale
├── SinkConflictError       a concurrent commit; try again (retryable)
├── RowMovedError           a row went from one span to another, with values that only the sink knows
├── TableHeldError          one table at the sink cannot be written, for a reason that no other name says (of a table)
│   ├── TablePassingError   the same where the cause may pass (retryable)
│   ├── TableForeignError   the sink's table is not this changefeed's, or somebody has changed it
│   ├── TableLogLostError   the part of the change log that a held table needs is gone
│   ├── TableNameError      no directory can carry the table's name
│   └── LeftOutValueError   an update left out a value of a row that the sink does not have
└── SinkTimeoutError        it has not answered for so long that nobody waits any more (retryable)
JobError                    a Spark job failed as a whole (retryable)
└── JobTimeoutError         it was cancelled: it took too long, or nobody waits for it any more
PluginError                 the package of a sink or source cannot be used
FilterError                 an event filter or column selector that cannot be read, or does not fit its table
DecodeError                 bytes in the log that are not what their schema says (not retryable)
JavaError                   no Java, or one that Spark cannot use

*Of a table* (``Scope.TABLE``) are TableIneligibleError, TableHeldError and what is below it, DecodeError and
FilterError: raised while a table is written, they hold that table alone, and all others flow.
"""

from reactor.errors import Scope, WeirError

#: the cure of a lost position
NEW_SNAPSHOT = "for a new snapshot remove it, and its tables at the sink, and create the changefeed again"


class SourceError(WeirError):
    """The source database refused or failed."""


class SourceUnreachableError(SourceError):
    """Host down or connection lost."""

    retryable = True


class SourceAuthError(SourceError):
    """Wrong user or password, or no replication privilege."""


class SourceConfigError(SourceError):
    """The server is not set up for change data capture."""


class TableIneligibleError(SourceError):
    """A table has no usable key and ``force_replicate`` is off."""

    scope = Scope.TABLE


class SlotInUseError(SourceError):
    """Another reader holds the replication slot; a dead one lets go after the server's timeout."""

    retryable = True


class PositionLostError(SourceError):
    """The log position this changefeed needs is no longer on the server."""


class SnapshotLostByGCError(PositionLostError):
    """The server has removed the log behind this changefeed's position: nobody read it for too long."""


class LogError(WeirError):
    """The change log's storage refused or failed."""

    retryable = True


class LogFencedError(LogError):
    """Another sync worker has taken the log over; this one must stop."""

    retryable = False


class HoldTooEarlyError(WeirError):
    """A table can no longer be followed, and the cluster's format does not know held tables yet."""

    retryable = True


class LogStorageMismatchError(LogError):
    """The log storage at hand is not this cluster's."""

    retryable = False


class UnitFencedError(WeirError):
    """A worker with a newer order runs this unit; this one must stop."""


class SinkError(WeirError):
    """The sink refused or failed."""


class SinkUriError(SinkError):
    """Unknown scheme or malformed URI."""


class SinkConfigError(SinkError):
    """The sink as a whole cannot be used: not writable, wrong bucket or credentials. What concerns one table is a
    ``TableHeldError``."""


class SinkPassingError(SinkError):
    """The sink as a whole cannot be used for now: disk full, mount away, storage that does not answer."""

    retryable = True


class SinkFencedError(SinkError):
    """The sink records another position than this writer expects: the writer is stale and must stop."""


class SinkConflictError(SinkError):
    """A concurrent commit was there first; read again and decide."""

    retryable = True


class RowMovedError(SinkError):
    """An update changed a row's key and left values out, in a table of several spans: only one span could do it."""


class TableHeldError(SinkError):
    """One table at the sink cannot be written; waiting does not cure it (``TablePassingError`` where it may)."""

    scope = Scope.TABLE


class TablePassingError(TableHeldError):
    """One table at the sink cannot be written, and the cause may pass by itself."""

    retryable = True


class TableForeignError(TableHeldError):
    """The sink's table is not this changefeed's, or somebody else has changed it."""


class TableNameError(TableHeldError):
    """No directory of the sink can carry the table's name."""


class LeftOutValueError(TableHeldError):
    """An update left out a value of a row that the sink does not have."""


class TableLogLostError(TableHeldError):
    """The part of the change log that a held table needs is gone."""


class SinkTimeoutError(SinkError):
    """The sink has not answered for so long that nobody waits any more."""

    retryable = True


class JobError(WeirError):
    """A Spark job failed as a whole."""

    retryable = True


class JobTimeoutError(JobError):
    """A Spark job was cancelled: it took too long, or nobody waits for it any more."""


class PluginError(WeirError):
    """The package that brings a sink or a source does not import, or has no plugin where it says so."""


class FilterError(WeirError):
    """An event filter or column selector cannot be read, or does not fit its table."""

    scope = Scope.TABLE


class DecodeError(WeirError):
    """Bytes in the log are not what their schema says."""

    scope = Scope.TABLE


class JavaError(WeirError):
    """No Java, or one that Spark cannot use."""

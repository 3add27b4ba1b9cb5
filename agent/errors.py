"""Errors of the agent; all are ``reactor.errors.WeirError``: one line, cause then cure.

::

    SourceError                  the source database refused or failed
      StatementRefusedError      the source refused a statement, for a reason without a class of its own
        TableGoneError           a table that was found is dropped or renamed by now (retryable)
          TableAlteredError      it was altered since the snapshot in which it was to be read (retryable)
      SourceUnreachableError     host down, connection lost (retryable)
        TableLockedError         a table's lock is not free: a statement changes the table, or waits to (retryable)
      SourceAuthError            wrong user or password, no replication privilege
        SourcePrivilegeError     the user lacks a privilege, on a table or on the server
      SourceConfigError          the server is not set up for capture: wal_level, free slots, publication
      TableIneligibleError       a table without a usable key and without force_replicate
      SlotInUseError             another reader holds the slot, or a dead one still seems to (retryable)
      OpenTransactionsError      a snapshot begins when transactions that are open have ended (retryable)
      PositionLostError          the slot is gone, or the server is a different one
        SnapshotLostByGCError    the server has removed log that was not read for too long
    LogError                     the change log's storage refused or failed (retryable)
      CopyLostError              the manifest of a table's copy is gone from the log storage
      LogFencedError             another sync worker has taken the log over
      LogStorageMismatchError    the log storage is not this cluster's
    HoldTooEarlyError            a table must be held, which some captures do not support yet (retryable)
    UnitFencedError              a worker with a newer order runs this unit
    StreamEndsCapturesError      captures have ended one after the other where they read the source
    SinkError                    the sink refused or failed
      SinkUriError               unknown scheme or malformed URI
      SinkConfigError            the whole sink: not writable, wrong bucket or credentials
      SinkPassingError           the whole sink, transient: disk full, mount missing, no answer (retryable)
      SinkFencedError            the sink records another position than this writer expects: the writer is stale
      SinkConflictError          a concurrent commit (retryable)
      RowMovedError              a row moved between spans, with values that only the sink has
      TableHeldError             one table at the sink cannot be written, for a reason without a class of its own
        TablePassingError        the same, with a transient cause (retryable)
        TableForeignError        the sink's table is not this changefeed's, or another writer has changed it
        TableLogLostError        the part of the change log that a held table needs is gone
        CopyBehindError          the copy that is to replace the sink's table is older than the table
        TableNameError           the table's name is not possible as a directory
        LeftOutValueError        an update left out a value of a row that the sink does not have
        UnknownValuesError       a schema change gave rows values that the log does not have
      SinkTimeoutError           it did not answer in time (retryable)
    OwnFaultError                this capture lacks room, memory, descriptors, threads or Spark (of the capture)
    JobError                     a Spark job failed as a whole (retryable)
      JobTimeoutError            it was cancelled: it took too long, or its result is no longer needed
      WorkerLostError            a process of Spark's was killed, or had no memory left
    PluginError                  the package of a sink or source cannot be used
    FilterError                  an event filter or column selector is malformed, or does not fit its table
    DecodeError                  bytes in the log do not match their schema (not retryable)
    JavaError                    no Java, or one that Spark cannot use

*Of a table* (``Scope.TABLE``) are TableIneligibleError, TableHeldError and its subclasses, DecodeError and FilterError:
raised while a table is written, they hold that table alone, and all others flow.
"""

from reactor.errors import Scope, WeirError

#: cure for one table that the log alone cannot repair
RESYNC = "`weir table resync` copies the table again"
#: the cure of a table whose partitions came or went with rows
COPIED = f"it is copied again by itself; in mode incremental, with a target, or if filters keep other rows, {RESYNC}"
#: the cures of a table at the sink that was set back
SET_BACK = (
    "bring the newer one back and resume the changefeed; or pause it, and rewind it to a Ts that is not past the "
    f"record; or {RESYNC}"
)
#: the cure of a lost position
NEW_POSITION = "`weir changefeed resume --resync` takes a new position and copies every table again in place"
#: the cure where no copy can be put in a table's place
NEW_SNAPSHOT = "for a new snapshot remove it, and its tables at the sink, and create the changefeed again"


def is_of_table(error: Exception) -> bool:
    """Return whether an error that was raised while one table was interpreted is one of that table alone: its statement
    or value is the cause, not a connection or this capture."""
    if isinstance(error, WeirError):
        return error.scope is Scope.TABLE
    return not isinstance(error, OSError | MemoryError)


def cause_of(error: Exception) -> str:
    """Return class and text of an unforeseen error in one line of at most 200 characters."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]


class SourceError(WeirError):
    """The source database refused or failed."""


class StatementRefusedError(SourceError):
    """The source refused a statement for a reason without a class of its own here."""


class TableGoneError(StatementRefusedError):
    """A table that was found is dropped or renamed by now, or has other columns: what comes next finds others. Its code
    is that of all refused statements, which captures of all versions know."""

    retryable = True
    code = StatementRefusedError.code


class TableAlteredError(TableGoneError):
    """A table was altered since the snapshot that is to read it: a new one can. Its code is that of all refused
    statements."""

    code = StatementRefusedError.code


def table_gone(name: str) -> TableGoneError:
    return TableGoneError(f"{name} is gone from the source: it was dropped or renamed meanwhile; try again")


class SourceUnreachableError(SourceError):
    """Host down or connection lost."""

    retryable = True


class TableLockedError(SourceUnreachableError):
    """A table's lock is not free. A snapshot that holds a part of it has to end, so that the statement which waits for
    it, and all that wait behind that one, can continue. ``table``: its schema and name, if they are known."""

    table: tuple[str, str] | None = None


class SourceAuthError(SourceError):
    """Wrong user or password, or no replication privilege."""


class SourcePrivilegeError(SourceAuthError):
    """The user lacks a privilege. Its code is that of all refusals of a user, which captures of all versions know."""

    code = SourceAuthError.code


class SourceConfigError(SourceError):
    """The server is not set up for change data capture."""


class TableIneligibleError(SourceError):
    """A table has no usable key and ``force_replicate`` is off."""

    scope = Scope.TABLE


class SlotInUseError(SourceError):
    """Another reader holds the replication slot; a dead one releases it after the server's timeout."""

    retryable = True


class OpenTransactionsError(SourceError):
    """A snapshot begins when transactions that are open have ended."""

    retryable = True


class PositionLostError(SourceError):
    """The log position this changefeed needs is no longer on the server."""


class SnapshotLostByGCError(PositionLostError):
    """The server has removed the log after this changefeed's position, which was not read for too long."""


class LogError(WeirError):
    """The change log's storage refused or failed."""

    retryable = True


class CopyLostError(LogError):
    """The manifest of a table's copy in the log storage is gone, or incomplete."""


class LogFencedError(LogError):
    """Another sync worker has taken the log over; this one must stop."""

    retryable = False


class HoldTooEarlyError(WeirError):
    """A table can no longer be followed, or there are very many, and the cluster's format does not support that yet."""

    retryable = True


class LogStorageMismatchError(LogError):
    """The log storage is not this cluster's."""

    retryable = False


class UnitFencedError(WeirError):
    """A worker with a newer order runs this unit; this one must stop."""


class StreamEndsCapturesError(WeirError):
    """Captures have ended one after the other while they read the source's log from one position on."""


class SinkError(WeirError):
    """The sink refused or failed."""


class SinkUriError(SinkError):
    """Unknown scheme or malformed URI."""


class SinkConfigError(SinkError):
    """The sink as a whole cannot be used: not writable, wrong bucket or credentials. Problems of one table are
    ``TableHeldError``."""


class SinkPassingError(SinkError):
    """The sink as a whole is unavailable for now: disk full, mount missing, storage does not answer."""

    retryable = True


class SinkFencedError(SinkError):
    """The sink records another position than this writer expects: the writer is stale and must stop."""


class SinkConflictError(SinkError):
    """A concurrent commit was faster; read again and decide."""

    retryable = True


class RowMovedError(SinkError):
    """An update changed a row's key and left values out, in a table with several spans; only a single span can apply
    it."""


class TableHeldError(SinkError):
    """One table at the sink cannot be written; waiting does not help (``TablePassingError`` if it may)."""

    scope = Scope.TABLE


class TablePassingError(TableHeldError):
    """One table at the sink cannot be written, with a transient cause."""

    retryable = True


class TableForeignError(TableHeldError):
    """The sink's table is not this changefeed's, or another writer has changed it."""


class CopyBehindError(TableHeldError):
    """The sink's table is ahead of the copy that is to replace it."""


class TableNameError(TableHeldError):
    """The table's name is not possible as a directory of the sink."""


class LeftOutValueError(TableHeldError):
    """An update left out a value of a row that the sink does not have."""


class UnknownValuesError(TableHeldError):
    """A schema change gave rows values that the log does not have; only the source knows them."""


class TableLogLostError(TableHeldError):
    """The part of the change log that a held table needs is gone."""


class SinkTimeoutError(SinkError):
    """The sink did not answer in time."""

    retryable = True


class OwnFaultError(WeirError):
    """This capture lacks what every capture needs: room, memory, descriptors, threads or Spark. Its work moves to
    another one."""

    code = "CaptureFault"
    retryable = True
    scope = Scope.CAPTURE


class JobError(WeirError):
    """A Spark job failed as a whole."""

    retryable = True


class JobTimeoutError(JobError):
    """A Spark job was cancelled: it took too long, or its result is no longer needed."""


class WorkerLostError(JobError):
    """A process of Spark's was killed, or ran out of memory, while it ran a job: this capture has too little for the
    job, or a table needs more than any capture has."""


class PluginError(WeirError):
    """The package of a sink or a source does not import, or does not contain the declared plugin."""


class FilterError(WeirError):
    """An event filter or column selector cannot be parsed, or does not fit its table."""

    scope = Scope.TABLE


class DecodeError(WeirError):
    """Bytes in the log do not match their schema."""

    scope = Scope.TABLE


class JavaError(WeirError):
    """No Java, or one that Spark cannot use."""

    retryable = True
    scope = Scope.CAPTURE


#: raised while one of several tables is read, these concern that table alone
TABLE_READ_ERRORS = (
    DecodeError,
    FilterError,
    SourceConfigError,
    SourcePrivilegeError,
    StatementRefusedError,
    TableHeldError,
)

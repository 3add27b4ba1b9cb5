"""Errors: those of this package, and the root of all errors of Weir.

::

    WeirError                    root; ``code`` is stable, the text is one line with cause and cure
      InvalidIdError             a changefeed, cluster or span id is malformed
      InvalidKeyError            a key is outside Weir's key space
      InvalidRecordError         the value under a key cannot be read
      InvalidTransitionError     a state machine has no row for an event (a bug in Weir)
      FormatError                the cluster's format is unknown to this version, or too old for a request
      StoreError                 the metadata store refused a call
        StoreUnreachableError    no endpoint answers, or none in time (retryable)
          StoreFullError           the store takes no writes until there is room (retryable)
        StoreAuthError           user, password or permission is refused
        CompactedError           the requested revision is compacted (retryable)
        RevisionsLostError       the store lacks revisions that it has shown
        LeaseExpiredError        the lease has expired, or was never granted
        TxnTooLargeError         one patch group exceeds the store's limit of size or operations
      SessionDoneError           the session's lease has expired: whoever acts under it must stop
      NotOwnerError              this capture is not the owner, or no longer
      OwnerNotFoundError         no capture is the owner now (retryable)
      ConflictError              a compared revision has changed (the worker ticks again)
      IgnorePatchError           a patch function skips its own patch
      PatchFailedError           a patch function raised an unexpected error (a bug in Weir)
      ReactorFinishedError       a reactor is done; the worker commits what is pending and returns
      ProtocolError              a peer sent what this version cannot read
      CrashedTooOftenError       a component has exhausted its restart budget
      TransferError              a cluster's state cannot be read from, or written to, a store
      FailPointError             a test asked for it (retryable)

Every error has a *scope*: what cannot continue because of it (``Scope``).
"""

from enum import StrEnum
from typing import Self


class Scope(StrEnum):
    """The scope that an error stops: one table, while all others continue; the changefeed; or a capture."""

    TABLE = "table"
    CHANGEFEED = "changefeed"
    CAPTURE = "capture"


class WeirError(Exception):
    """Root of all errors raised on purpose. The message is one line that names the cause and the cure.

    ``code`` is stable; feed states, the API and tests use it. ``retryable``: retrying may succeed without any
    intervention. ``scope``: what the error stops; if that is one table, ``table_id`` is its id, or None if only the
    caller knows it.
    """

    code = "WeirError"
    retryable = False
    scope = Scope.CHANGEFEED
    table_id: int | None = None

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        if "code" not in cls.__dict__:
            cls.code = cls.__name__.removesuffix("Error")

    def of_table(self, table_id: int) -> Self:
        """Return this error with the scope of this table."""
        self.scope, self.table_id = Scope.TABLE, table_id
        return self


class InvalidIdError(WeirError):
    """A malformed changefeed, cluster or span id."""


class InvalidKeyError(WeirError):
    """A key outside Weir's key space."""


class InvalidRecordError(WeirError):
    """A value that cannot be read as the record that belongs under its key."""


class InvalidTransitionError(WeirError):
    """A state machine has no row for an event: a bug in us, which a restart may avoid."""

    retryable = True


class FormatError(WeirError):
    """The cluster's format is unknown to this capture, or some captures do not support what is requested yet."""


class TransferError(WeirError):
    """A cluster's state cannot be taken from a store, or written to one: it is in use, halted, or not what it was."""


class StoreError(WeirError):
    """The metadata store refused a call, or failed in a way that has no class below."""


class StoreUnreachableError(StoreError):
    """No endpoint answers, or none in time."""

    retryable = True


class StoreFullError(StoreUnreachableError):
    """The store answers, and takes no writes until there is room again."""


class StoreAuthError(StoreError):
    """User, password or permission refused."""


class CompactedError(StoreError):
    """The requested revision has been compacted; read the prefix again."""

    retryable = True


class RevisionsLostError(StoreError):
    """The store lacks revisions that it has shown: another server took over without them, or a backup was restored."""

    @classmethod
    def of(cls, revision: int, shown: int, cause: str) -> Self:
        return cls(
            f"the store is at revision {revision} and lacks what it has shown up to {shown}: {cause}; "
            "bring the complete server back, or begin a new cluster"
        )


class LeaseExpiredError(StoreError):
    """The lease has expired, or was never granted."""


class TxnTooLargeError(StoreError):
    """One patch group exceeds etcd's limits; groups are never split."""


class SessionDoneError(WeirError):
    """The session's lease has expired: whoever acts under it must stop at once."""


class NotOwnerError(WeirError):
    """This capture is not, or is no longer, the owner."""


class OwnerNotFoundError(WeirError):
    """No capture is owner at the moment."""

    retryable = True


class ConflictError(WeirError):
    """A compared revision has changed since it was read; tick again with fresh state."""

    retryable = True


class IgnorePatchError(WeirError):
    """Raised by a patch function: skip this patch, keep the rest of its group."""


class PatchFailedError(WeirError):
    """A patch function raised an unexpected error: a bug in us. Its group is void, others are not."""


class ReactorFinishedError(WeirError):
    """The reactor has nothing more to do."""


class ProtocolError(WeirError):
    """A peer sent bytes that are not a message of this protocol."""


class CrashedTooOftenError(WeirError):
    """A component that is restarted after crashes (``reactor.restarts``) has exhausted its budget."""

    @classmethod
    def of(cls, name: str, error: Exception) -> Self:
        """Only the log has the text of ``error``, which may contain secrets or row values."""
        return cls(f"{name} crashed too often ({type(error).__name__}); see the log, then resume the changefeed")


class FailPointError(WeirError):
    """A test requested this error at a fail-point."""

    retryable = True

"""Errors: those of this package, and the root of all errors of Weir.

WeirError                      every error Weir raises on purpose; ``code`` is stable, the text one line: cause, cure
├── InvalidIdError             a malformed changefeed, cluster or span id
├── InvalidKeyError            a key that is not of Weir's key space
├── InvalidRecordError         a value under a key that cannot be read
├── InvalidTransitionError     a machine was given an event its state has no row for (a bug in us)
├── FormatError                the cluster's format is not known here, or is too old for what is asked (upgrade)
├── EtcdError                  anything etcd answered or failed to answer
│   ├── EtcdUnreachableError   no endpoint answers, or none in time (may be retried)
│   ├── EtcdAuthError          user, password or permission refused
│   ├── CompactedError         the asked revision is gone; list again
│   ├── LeaseExpiredError      the lease is over (or was never granted)
│   └── TxnTooLargeError       one patch group is over etcd's size or operation limit
├── SessionDoneError           the session's lease is over: whoever holds it must stop
├── NotOwnerError              this capture is not, or is no longer, the owner
├── OwnerNotFoundError         no capture is owner at the moment (may be retried)
├── ConflictError              a compared revision has moved; tick again (always retried by the worker)
├── IgnorePatchError           raised by a patch function to skip just that patch
├── PatchFailedError           a patch raised what it may not raise (a bug in us)
├── ReactorFinishedError       a reactor is done; the worker commits what is pending and returns
├── ProtocolError              a peer sent what this version cannot read
├── CrashedTooOftenError       a bug ended it again and again; it is not started any more
└── FailPointError             a test asked for it (retryable)

Every error has a *scope*: what cannot continue because of it (``Scope``).
"""

from enum import StrEnum
from typing import Self


class Scope(StrEnum):
    """What an error holds: one table, which alone is held while all others flow; the changefeed; or a capture."""

    TABLE = "table"
    CHANGEFEED = "changefeed"
    CAPTURE = "capture"


class WeirError(Exception):
    """Root of all errors raised on purpose. The message is one line that names the cause and the cure.

    ``code`` is stable and is what feed states, the API and tests look at. ``retryable`` says whether doing
    the same again may help without anybody changing anything. ``scope`` says what it holds; where that is one table,
    ``table_id`` says which, or is None while only the caller knows.
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
        """This error, as one that holds this table alone."""
        self.scope, self.table_id = Scope.TABLE, table_id
        return self


class InvalidIdError(WeirError):
    """A changefeed, cluster or span id is malformed."""


class InvalidKeyError(WeirError):
    """A key does not belong to Weir's key space."""


class InvalidRecordError(WeirError):
    """The value under a key cannot be read as the record that belongs there."""


class InvalidTransitionError(WeirError):
    """A state machine has no row for this event in this state: a bug in us, which a new run may not meet again."""

    retryable = True


class FormatError(WeirError):
    """A capture does not know the format that its cluster uses, or the cluster's captures not what is asked for yet."""


class EtcdError(WeirError):
    """etcd refused a call, or failed it in a way that has no name below."""


class EtcdUnreachableError(EtcdError):
    """No endpoint answers, or none in time."""

    retryable = True


class EtcdAuthError(EtcdError):
    """User, password or permission refused."""


class CompactedError(EtcdError):
    """The asked revision has been compacted away; read the prefix again."""

    retryable = True


class LeaseExpiredError(EtcdError):
    """The lease is over, or was never granted."""


class TxnTooLargeError(EtcdError):
    """One patch group alone is over etcd's limits; groups are never split."""


class SessionDoneError(WeirError):
    """The session's lease is over: whoever acts under it must stop at once."""


class NotOwnerError(WeirError):
    """This capture is not, or is no longer, the owner."""


class OwnerNotFoundError(WeirError):
    """No capture is owner at the moment."""

    retryable = True


class ConflictError(WeirError):
    """A compared revision has moved since it was read; tick again with fresh state."""

    retryable = True


class IgnorePatchError(WeirError):
    """Raised by a patch function: skip this patch, keep the rest of its group."""


class PatchFailedError(WeirError):
    """A patch raised what it may not raise: a bug in us. Its group is void, others are not."""


class ReactorFinishedError(WeirError):
    """The reactor has nothing more to do."""


class ProtocolError(WeirError):
    """A peer sent bytes that are not a message of this protocol."""


class CrashedTooOftenError(WeirError):
    """What is started again after a crash (``reactor.restarts``) has crashed more often than its budget allows."""

    @classmethod
    def of(cls, name: str, error: Exception) -> Self:
        """The log has the text of ``error``, which may say what it may not say here."""
        return cls(f"{name} crashed too often ({type(error).__name__}); see the log, then resume the changefeed")


class FailPointError(WeirError):
    """A test asked for this error at a fail-point."""

    retryable = True

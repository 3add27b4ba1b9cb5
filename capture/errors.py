"""Errors of captures; all are ``reactor.errors.WeirError``: one line, cause then cure.

::

    ActorError                   an actor could not take, or answer, a message
      ActorDeadError             it has stopped or crashed; the message was not, or not completely, handled
      MailboxFullError           ``tell_nowait`` found no room; ``tell`` waits instead (retryable)
      AskTimeoutError            no answer in time; the message may still be handled (retryable)
    MessagingError               a message could not be given to its peer
      FrameTooLargeError         a message is over the frame limit; it was not sent
      PeerUnknownError           no address for that capture, or it has left the cluster (retryable)
      PeerCongestedError         ``send_nowait`` found the peer's window full; ``send`` waits instead (retryable)
      PeerUnreachableError       nobody answers at the peer's address (retryable)
      PeerMismatchError          another capture answers at that address; final until the address changes
      PeerRefusedError           the peer does not want this connection: stale, doubled, congested, or another version
      TopicTakenError            a topic already has a handler (a bug in us)
    FrameError                   bytes that are no frame of this protocol (a ``ProtocolError``)
    ConfigError                  a configuration key or value that is unknown, mistyped or contradictory
      CaptureFaultError          something that this capture alone lacks: a variable, a file, the key (retryable)
    PortInUseError               the address to listen on is taken or not this machine's
    ChangefeedExistsError        a changefeed of that id exists
    ChangefeedNotFoundError      no changefeed has that id
    TableNotFoundError           a changefeed has no table of that name
    SubscriptionNotFoundError    a changefeed has no such subscription, or another reader has opened it
    SyncPointNotFoundError       a changefeed has no such sync point
    PositionGoneError            the change log does not have what comes next for a reader
    CaptureStoppedError          a capture in this process was stopped while it started
    CaptureNotFoundError         no capture has that id
    TokenNotFoundError           no token has that id
    CaptureNotEmptyError         a drained capture still has something when nobody waits any longer
    JobRefusedError              the owner refuses what an operator asked for, and says why
      StaleRequestError          it was made of records that have changed since (retryable)
    StillRunningError            what is asked for again is still under way (retryable)
    GoneError                    the owner asks for a changefeed that is gone, or was created again (retryable)
    ServerUnreachableError       the command line finds no server at ``--server`` (retryable)
    ProcessorCrashedError        a bug of ours ended a processor; its changefeed is tried again (retryable)
    NotALogError                 a file to be inspected is neither a segment nor a binlog file, or cannot be read
    EmbeddedError                an embedded etcd, PostgreSQL or MariaDB did not start or has died
"""

from typing import Self

from reactor import errors


class ActorError(errors.WeirError):
    """An actor could not take, or answer, a message."""


class ActorDeadError(ActorError):
    """The actor has stopped or crashed; what was asked was not, or not completely, done."""


class MailboxFullError(ActorError):
    """The mailbox has no room; use ``tell`` to wait for it."""

    retryable = True


class AskTimeoutError(ActorError):
    """No answer in time. The message stays in the mailbox and may still be handled."""

    retryable = True


class MessagingError(errors.WeirError):
    """A message could not be given to its peer."""


class FrameTooLargeError(MessagingError):
    """The encoded message is over the frame limit; it was not sent and never would be."""


class PeerUnknownError(MessagingError):
    """No address is known for that capture, or it left the cluster while the message waited."""

    retryable = True


class PeerCongestedError(MessagingError):
    """The window of that peer and topic is full; use ``send`` to wait for it."""

    retryable = True


class PeerUnreachableError(MessagingError):
    """Nobody answers at the peer's address, or the connection broke."""

    retryable = True


class PeerMismatchError(MessagingError):
    """Another capture lives at the peer's address; trying again is of no use until the address changes."""


class PeerRefusedError(MessagingError):
    """The peer does not want this connection, and says why."""

    retryable = True


class TopicTakenError(MessagingError):
    """A topic has one handler, and this one has it already. A bug in us."""


class FrameError(errors.ProtocolError):
    """Bytes that are no frame of this protocol. The connection they came on is closed."""


class ConfigError(errors.WeirError):
    """A configuration key or value is unknown, mistyped or contradicts another."""


class CaptureFaultError(ConfigError):
    """This capture lacks something that others may have: what it cannot do moves to them, and no changefeed fails."""

    retryable = True
    scope = errors.Scope.CAPTURE


class PortInUseError(errors.WeirError):
    """The address to listen on is taken, or does not belong to this machine."""


class ChangefeedExistsError(errors.WeirError):
    """A changefeed of that id exists."""


class ChangefeedNotFoundError(errors.WeirError):
    """No changefeed has that id."""


class TableNotFoundError(errors.WeirError):
    """The changefeed has no table of that name."""


class SubscriptionNotFoundError(errors.WeirError):
    """The changefeed has no such subscription, or another reader has opened it."""


class PositionGoneError(errors.WeirError):
    """The change log does not have what comes next for a reader."""


class SyncPointNotFoundError(errors.WeirError):
    """The changefeed has no such sync point."""


class CaptureStoppedError(errors.WeirError):
    """A capture in this process was stopped while it started."""


class CaptureNotFoundError(errors.WeirError):
    """No capture has that id."""


class TokenNotFoundError(errors.WeirError):
    """No token has that id."""


class CaptureNotEmptyError(errors.WeirError):
    """A capture that is drained still has spans or workers."""

    @classmethod
    def after(cls, capture_id: str, remaining: int, *, timeout: float) -> Self:
        return cls(
            f"capture {capture_id} still has {remaining} spans and workers after {timeout:.0f} s; drain it again, and "
            "see what blocks its changefeeds"
        )


class JobRefusedError(errors.WeirError):
    """The owner refuses what an operator asked for, and says why."""


class StaleRequestError(JobRefusedError):
    """A request was made of records that have changed since; nothing of it is stored."""

    retryable = True


class StillRunningError(errors.WeirError):
    """The work that was asked for is under way since it was asked for before; ask again."""

    retryable = True


class GoneError(errors.WeirError):
    """The changefeed that a question of the owner is about is gone: nothing was done."""

    retryable = True


class ServerUnreachableError(errors.WeirError):
    """No Weir server answers where the command line looks for it."""

    retryable = True


class NotALogError(errors.WeirError):
    """A file to be inspected is neither a segment of the change log nor a binlog file, or cannot be read."""


class EmbeddedError(errors.WeirError):
    """An embedded etcd or PostgreSQL did not start, or has died."""


class ProcessorCrashedError(errors.WeirError):
    """A bug of ours ended a processor; the log has the traceback, and the changefeed is tried again."""

    retryable = True


def root_cause(error: BaseException) -> BaseException:
    """The one thing that a task group wrapped; several stay a group, but without those that only met a dead actor."""
    if isinstance(error, BaseExceptionGroup):
        error = error.split(ActorDeadError)[1] or error
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error

"""Errors of the owner; all are ``reactor.errors.WeirError``: one line, cause then cure.

OwnerError
├── JobRefusedError            the changefeed's state does not allow an operator's request
│   └── StaleRequestError      it was made of records that have changed since (retryable)
├── UnknownChangefeedError     no changefeed of that id
├── NotOwnedError              the changefeed has no owner here at the moment (retryable)
├── UnknownCaptureError        no capture of that id
├── SpanError                  a table span's replication contradicts itself; the changefeed restarts (retryable)
│   ├── MultiplePrimaryError   two captures report that they write one span
│   └── InconsistentSpanError  state, roles and captures of one span are inconsistent
├── StuckError                 the checkpoint did not advance for too long while there was something to write
├── BrokenRecordError          a record of this changefeed in etcd cannot be read
└── ScheduleError              the schedule has no such transition
"""

from reactor.errors import WeirError


class OwnerError(WeirError):
    """Root of this package's errors."""


class JobRefusedError(OwnerError):
    """The changefeed's state does not allow an operator's request."""


class StaleRequestError(JobRefusedError):
    """A request was made of records that have changed since; nothing of it is stored."""

    retryable = True


class UnknownChangefeedError(OwnerError):
    """No changefeed of that id."""


class UnknownCaptureError(OwnerError):
    """No capture of that id."""


class NotOwnedError(OwnerError):
    """The changefeed has no owner here at the moment."""

    retryable = True


class SpanError(OwnerError):
    """A table span's replication contradicts itself; a run under a new epoch resolves it."""

    retryable = True


class MultiplePrimaryError(SpanError):
    """Two captures report that they write one span."""

    retryable = True


class InconsistentSpanError(SpanError):
    """State, roles and captures of one span are inconsistent."""

    retryable = True


class StuckError(OwnerError):
    """The checkpoint did not advance for too long while there was something to write."""


class BrokenRecordError(OwnerError):
    """A record of this changefeed in etcd cannot be read."""


class ScheduleError(OwnerError):
    """The schedule of changefeeds has no such transition."""

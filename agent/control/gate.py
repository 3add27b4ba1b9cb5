"""Gate: the fence of one processor; rejects messages that are stale or not the owner's.

Three numbers are compared, cheapest first:

- *changefeed epoch*: the processor serves one epoch of its changefeed, and rejects messages of any other;
- *owner revision*: the owner is known from etcd (``elect``), never from messages; a smaller revision is from a previous
  owner, a larger one from an owner that etcd has not shown here yet;
- *processor epoch*: orders that change something must name this run of the processor under this owner. It is new at
  construction (``run``) and with each new owner, so an order that was delayed in a queue is recognised.

A foreign message is answered with a reason, never an exception.
"""

from dataclasses import dataclass

from reactor.ids import CaptureId
from reactor.messages import AddSpan, Header, Message, RemoveSpan, StartWorker, StopWorker

_ORDERS = (AddSpan, RemoveSpan, StartWorker, StopWorker)


@dataclass(frozen=True, slots=True)
class Owner:
    """The owner as etcd has shown it here; ``revision`` 0: none yet."""

    id: CaptureId | None = None
    revision: int = 0


class Gate:
    """Accepts or rejects messages, and knows where to send answers.

    ``run`` names this run of the processor; no two runs in one cluster may share it.
    """

    def __init__(self, run: str, changefeed_epoch: int, *, version: str, owner: Owner = Owner()) -> None:
        assert run, "the run of a processor needs a name"
        self.changefeed_epoch = changefeed_epoch
        self.owner = owner
        self._run = run
        self._version = version

    @property
    def processor_epoch(self) -> str:
        return f"{self._run}.{self.owner.revision}"

    @property
    def header(self) -> Header:
        return Header(self._version, self.owner.revision, self.processor_epoch, self.changefeed_epoch)

    def is_own(self, header: Header) -> bool:
        """Return whether the sender knows this run of the processor."""
        return header.processor_epoch == self.processor_epoch

    def elect(self, owner: Owner) -> bool:
        """Record the owner shown by etcd; return whether it is newer than the known one."""
        if owner.revision <= self.owner.revision:
            return False
        self.owner = owner
        return True

    def admit(self, message: Message) -> str:
        """Return the reason for rejecting ``message``, or an empty text."""
        header = message.header
        if header.changefeed_epoch != self.changefeed_epoch:
            return "another changefeed epoch"
        if header.owner_revision < self.owner.revision:
            return "from an older owner"
        if header.owner_revision > self.owner.revision:
            return "from an owner that etcd does not show yet"
        if message.sender != self.owner.id:
            return "from a capture that is not the owner"
        if isinstance(message.body, _ORDERS) and not self.is_own(header):
            return "for another run of this processor"
        return ""

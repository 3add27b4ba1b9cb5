"""Flow control: ordered delivery without loss, at both ends of one (sender, receiver, topic). No I/O.

    Outbox                                            Inbox
    add ──► unsent ──take──► sent ──────Data────────► accept: next in order is new, older is a duplicate
              ▲               │                          │
              └────rewind─────┤  (new connection)        ▼ handled
                              └◄────────Ack───────── everything up to ``handled``

An outbox keeps a message until the receiver has *handled* it. So nothing is lost with a connection, and the window that
limits the outbox also limits the receiver's queue: a slow handler there makes senders here wait (backpressure). After a
reconnect everything unacknowledged is sent again; the inbox drops duplicates.
"""

from collections import deque

from capture.errors import FrameError


class Outbox:
    """The unacknowledged messages to one peer on one topic: encoded frames in the order of their numbers, starting at
    1."""

    def __init__(self, topic: str, *, window: int, window_bytes: int) -> None:
        self.topic = topic
        self.window = window
        self._window_bytes = window_bytes
        self._sent: deque[bytes] = deque()
        self._unsent: deque[bytes] = deque()
        self._acked = 0
        self._sent_max = 0
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._sent) + len(self._unsent)

    @property
    def bytes_kept(self) -> int:
        return self._bytes

    @property
    def next_seq(self) -> int:
        return self._acked + len(self) + 1

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent)

    @property
    def has_room(self) -> bool:
        """Whether there is room; a single message always has, however large."""
        return not len(self) or (len(self) < self.window and self._bytes < self._window_bytes)

    def add(self, frame: bytes) -> None:
        """Add the frame that carries ``next_seq``."""
        self._unsent.append(frame)
        self._bytes += len(frame)

    def take(self, bytes_limit: int) -> list[bytes]:
        """Return unsent frames of up to about ``bytes_limit``, and mark them as sent.

        At most the window is in flight: it may have shrunk since they were added.
        """
        taken: list[bytes] = []
        size = 0
        while self._unsent and size < bytes_limit and len(self._sent) < self.window:
            frame = self._unsent.popleft()
            self._sent.append(frame)
            taken.append(frame)
            size += len(frame)
        self._sent_max = max(self._sent_max, self._acked + len(self._sent))
        return taken

    def acknowledge(self, seq: int) -> int:
        """Drop everything up to ``seq``; return the number of messages dropped.

        :raises FrameError: the peer acknowledges messages that were never sent to it.
        """
        if seq > self._sent_max:
            raise FrameError(f"message {seq} of {self.topic} was acknowledged but never sent")
        count = max(seq - self._acked, 0)
        for _ in range(count):
            # after a rewind, messages handled on the last connection may be unsent on this one
            frame = self._sent.popleft() if self._sent else self._unsent.popleft()
            self._bytes -= len(frame)
        self._acked += count
        return count

    def rewind(self) -> int:
        """Prepare for a new connection: everything unacknowledged is sent again. Return how many were sent before."""
        count = len(self._sent)
        self._unsent.extendleft(reversed(self._sent))
        self._sent.clear()
        return count


class Inbox:
    """The messages of one sender on one topic, by number."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self._accepted: int | None = None
        self._handled = 0
        self._reported = 0
        self._sizes: deque[int] = deque()
        #: of waiting messages
        self.bytes = 0
        self.duplicates = 0

    @property
    def waiting(self) -> int:
        return (self._accepted or 0) - self._handled

    @property
    def unreported(self) -> int:
        """Messages handled, but not yet acknowledged."""
        return self._handled - self._reported

    def accept(self, seq: int, size: int = 0) -> bool:
        """Return whether the message of ``size`` bytes is new; a duplicate is counted, and must be dropped.

        The first number may be any: a sender starts with its oldest unacknowledged one.

        :raises FrameError: messages before it are missing; the sender must start over from its oldest.
        """
        if self._accepted is None:
            self._accepted = self._handled = self._reported = seq - 1
        if seq <= self._accepted:
            self.duplicates += 1
            return False
        if seq != self._accepted + 1:
            raise FrameError(f"messages {self._accepted + 1} to {seq - 1} of {self.topic} are missing")
        self._accepted = seq
        self._sizes.append(size)
        self.bytes += size
        return True

    def handled(self) -> int:
        """Mark the oldest waiting message as handled; return its bytes."""
        self._handled += 1
        size = self._sizes.popleft()
        self.bytes -= size
        return size

    def report(self) -> int:
        """Return the number to acknowledge."""
        self._reported = self._handled
        return self._handled

    def take_back(self) -> None:
        """Undo the acceptance of the newest message, for which there was no room."""
        assert self.waiting > 0, "only what was just accepted can be taken back"
        self._accepted = self._handled + self.waiting - 1
        self.bytes -= self._sizes.pop()

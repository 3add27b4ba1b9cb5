"""Inbound connections: those that other captures open, and what is known of each of those captures.

A sender has at most one connection here, the one with the greatest number; an older or a doubled one is refused, a
newer one takes over. What a sender has sent is known by topic (``flow_control.Inbox``) and outlives its connections, so
that what is sent again is not handled again. It is forgotten when the sender says that it starts over (another
``stream``), or has left the cluster.

Whatever is wrong with a connection ends that connection, with a reason if it can still be sent, and nothing else.
"""

from collections.abc import Collection
from dataclasses import dataclass

import anyio
import structlog
from anyio.abc import ByteStream

from capture.errors import FrameError
from capture.messaging import frames
from capture.messaging.flow_control import Inbox
from capture.messaging.outbound import MessagingSettings
from capture.messaging.topics import Topics
from capture.messaging.transport import BROKEN
from capture.messaging.wakeups import Signal
from reactor.ids import CaptureId

#: how long the other side may take to read a refusal and close
_LINGER_S = 1.0

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class SenderStatistics:
    """``waiting``: accepted and not yet handled."""

    sender: CaptureId
    is_connected: bool
    waiting: int
    duplicates: int


class _RefusedError(Exception):
    """This connection is to be refused."""

    def __init__(self, reason: frames.Reason, text: str) -> None:
        super().__init__(text)
        self.refusal = frames.Refuse(reason, text)


class _Acks:
    """What one connection has to acknowledge: soon, or at once when the sender may be waiting for it."""

    def __init__(self, inboxes: dict[str, Inbox], *, unreported_max: int) -> None:
        self._unreported_max = unreported_max
        #: everything handled is acknowledged again on a new connection: the last Ack may be lost
        self._dirty = dict(inboxes)
        self._owes_pong = False
        self.is_due = Signal()
        self.is_urgent = anyio.Event()
        if self._dirty:
            self.is_due.set()

    def owe(self, inbox: Inbox) -> None:
        self._dirty[inbox.topic] = inbox
        self.is_due.set()
        if inbox.unreported >= self._unreported_max:
            self.is_urgent.set()

    def owe_pong(self) -> None:
        self._owes_pong = True
        self.is_due.set()
        self.is_urgent.set()

    def take(self) -> bytes:
        dirty, self._dirty = self._dirty, {}
        data = b"".join(frames.encode(frames.Ack(topic, inbox.report())) for topic, inbox in dirty.items())
        if self._owes_pong:
            data += frames.encode(frames.Pong())
        self._owes_pong, self.is_urgent = False, anyio.Event()
        return data


class _Sender:
    """One capture that sends to this one, from one start of its numbers to the next; the source of its messages."""

    def __init__(self, hello: frames.Hello, *, unreported_max: int) -> None:
        self.id = hello.sender
        self.stream = hello.stream
        self.connection = -1
        self.inboxes: dict[str, Inbox] = {}
        self.scope: anyio.CancelScope | None = None
        self._unreported_max = unreported_max
        self.acks = _Acks({}, unreported_max=unreported_max)

    def begin(self, connection: int, scope: anyio.CancelScope) -> None:
        """The connection takes over from the one before."""
        self.end()
        self.connection, self.scope = connection, scope
        self.acks = _Acks(self.inboxes, unreported_max=self._unreported_max)

    def end(self) -> None:
        if self.scope is not None:
            self.scope.cancel()
            self.scope = None

    def inbox(self, topic: str) -> Inbox:
        inbox = self.inboxes.get(topic)
        if inbox is None:
            inbox = self.inboxes[topic] = Inbox(topic)
        return inbox

    def handled(self, topic: str) -> None:
        inbox = self.inboxes[topic]
        inbox.handled()
        self.acks.owe(inbox)

    def statistics(self) -> SenderStatistics:
        return SenderStatistics(
            sender=self.id,
            is_connected=self.scope is not None,
            waiting=sum(inbox.waiting for inbox in self.inboxes.values()),
            duplicates=sum(inbox.duplicates for inbox in self.inboxes.values()),
        )


class Sessions:
    """All senders; ``serve`` every stream that comes in."""

    def __init__(self, me: CaptureId, *, topics: Topics, settings: MessagingSettings) -> None:
        self._me = me
        self._topics = topics
        self._settings = settings
        self._senders: dict[CaptureId, _Sender] = {}
        self._members: set[CaptureId] = set()
        self.skipped = 0
        self.refused = 0

    async def serve(self, stream: ByteStream) -> None:
        """One connection from beginning to end."""
        try:
            refusal = await self._converse(stream)
            if refusal is not None:
                await self._refuse(stream, refusal)
        except BROKEN:
            pass  # how connections end; the sender opens another when it has something to say
        except Exception as error:
            # a bug of ours, found by what a peer sent: it costs that connection and not the process
            _log.error("connection failed", cause=str(error), exc_info=error)
        finally:
            await anyio.aclose_forcefully(stream)

    def keep_only(self, members: Collection[CaptureId]) -> None:
        """Forget who has left. A sender that connected before it was seen as a member stays while it is connected."""
        for sender in list(self._senders.values()):
            if sender.id not in members and (sender.id in self._members or sender.scope is None):
                self._forget(sender)
        self._members = set(members)

    def statistics(self) -> tuple[SenderStatistics, ...]:
        return tuple(sender.statistics() for sender in self._senders.values())

    def _forget(self, sender: _Sender) -> None:
        sender.end()
        self._senders.pop(sender.id, None)
        self._topics.drop(sender)

    async def _converse(self, stream: ByteStream) -> frames.Refuse | None:
        """Returns how to refuse the connection, or nothing when it just ended."""
        decoder = frames.Decoder(bytes_max=self._settings.frame_bytes_max)
        try:
            hello, early = await self._greet(stream, decoder)
            sender = self._admit(hello)
        except (_RefusedError, FrameError) as error:
            return _refusal_of(error)
        refusal: frames.Refuse | None = None
        with anyio.CancelScope() as scope:
            sender.begin(hello.connection, scope)
            try:
                await stream.send(frames.encode(frames.Welcome(self._settings.window)))
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._report, stream, sender.acks, tasks.cancel_scope)
                    refusal = await self._read(stream, decoder, sender, early)
                    tasks.cancel_scope.cancel()
            finally:
                if sender.scope is scope:
                    sender.scope = None
        return refusal

    async def _greet(
        self, stream: ByteStream, decoder: frames.Decoder
    ) -> tuple[frames.Hello, list[frames.Frame | frames.Skipped]]:
        early: list[frames.Frame | frames.Skipped] = []
        with anyio.move_on_after(self._settings.connect_timeout_s):
            while not early:
                early = decoder.feed(await stream.receive())
        match early:
            case [frames.Hello() as hello, *rest]:
                return hello, rest
            case []:
                raise FrameError(f"no Hello within {self._settings.connect_timeout_s:g} s")
        raise FrameError(f"expected Hello, got {type(early[0]).__name__}")

    def _admit(self, hello: frames.Hello) -> _Sender:
        if problem := frames.version_problem(hello):
            raise _RefusedError(frames.Reason.WRONG_VERSION, problem)
        if hello.receiver != self._me:
            raise _RefusedError(frames.Reason.WRONG_RECEIVER, f"this is {self._me}, not {hello.receiver}")
        known = self._senders.get(hello.sender)
        if known is not None and known.stream == hello.stream and hello.connection == known.connection:
            raise _RefusedError(frames.Reason.DUPLICATE, f"connection {hello.connection} exists")
        if known is not None and (hello.stream, hello.connection) < (known.stream, known.connection):
            raise _RefusedError(frames.Reason.STALE, f"connection {hello.connection} is older than the present one")
        if known is None or known.stream != hello.stream:
            if known is not None:
                self._forget(known)
            known = self._senders[hello.sender] = _Sender(hello, unreported_max=max(self._settings.window // 4, 1))
        return known

    async def _refuse(self, stream: ByteStream, refusal: frames.Refuse) -> None:
        """Say why, and let the other side close: closing with unread bytes would destroy the reason on its way."""
        self.refused += 1
        _log.warning("connection refused", reason=refusal.reason.name.lower(), cause=refusal.text)
        with anyio.move_on_after(_LINGER_S):
            await stream.send(frames.encode(refusal))
            while True:
                await stream.receive()

    async def _report(self, stream: ByteStream, acks: _Acks, scope: anyio.CancelScope) -> None:
        try:
            while True:
                await acks.is_due.wait()
                with anyio.move_on_after(self._settings.ack_interval_s):
                    await acks.is_urgent.wait()
                if data := acks.take():
                    await stream.send(data)
        except BROKEN:
            scope.cancel()

    async def _read(
        self,
        stream: ByteStream,
        decoder: frames.Decoder,
        sender: _Sender,
        early: list[frames.Frame | frames.Skipped],
    ) -> frames.Refuse | None:
        try:
            received = early
            while True:
                for frame in received:
                    self._on_frame(sender, frame)
                data = b""
                with anyio.move_on_after(self._settings.silence_s_max):
                    data = await stream.receive()
                if not data:
                    return frames.Refuse(frames.Reason.BROKEN, f"silent for {self._settings.silence_s_max:g} s")
                received = decoder.feed(data)
        except (_RefusedError, FrameError) as error:
            return _refusal_of(error)
        except BROKEN:
            return None

    def _on_frame(self, sender: _Sender, frame: frames.Frame | frames.Skipped) -> None:
        match frame:
            case frames.Data(topic, seq, message):
                if message.sender != sender.id or message.receiver != self._me:
                    raise FrameError(f"a message from {message.sender} to {message.receiver} came from {sender.id}")
                self._accept(sender, topic, seq, frame)
            case frames.Skipped():
                self._on_skipped(sender, frame)
            case frames.Ping():
                sender.acks.owe_pong()
            case _:
                raise FrameError(f"{sender.id} sent {type(frame).__name__} on its own connection")

    def _accept(self, sender: _Sender, topic: str, seq: int, frame: frames.Data | frames.Skipped) -> None:
        inbox = sender.inbox(topic)
        if not inbox.accept(seq):
            return
        if inbox.waiting > self._settings.window:
            inbox.take_back()
            raise _RefusedError(frames.Reason.CONGESTED, f"more than {self._settings.window} messages wait on {topic}")
        self._topics.put(topic, frame.message if isinstance(frame, frames.Data) else None, sender)

    def _on_skipped(self, sender: _Sender, frame: frames.Skipped) -> None:
        if not self.skipped:
            _log.warning("skipped what a newer version sent; upgrade this capture", sender=sender.id, kind=frame.kind)
        self.skipped += 1
        if frame.topic:
            self._accept(sender, frame.topic, frame.seq, frame)


def _refusal_of(error: _RefusedError | FrameError) -> frames.Refuse:
    return error.refusal if isinstance(error, _RefusedError) else frames.Refuse(frames.Reason.BROKEN, str(error))

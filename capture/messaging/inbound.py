"""Inbound connections: those that other captures open, and the state kept per capture.

A sender has at most one connection here, the one with the greatest number; an older or duplicate one is refused, a
newer one takes over. A sender's messages are tracked by topic (``flow_control.Inbox``), across connections, so that
repeated messages are not handled again. This state is dropped when the sender starts over (another ``stream``), or has
left the cluster.

No message is accepted before the handshake has authenticated the sender (``capture.messaging.handshake``). Waiting
messages are limited in number and bytes: by topic, by sender and in total. A problem of a connection ends only that
connection, with a reason if it can still be sent.
"""

from collections.abc import Collection
from dataclasses import dataclass

import anyio
import structlog
from anyio.abc import ByteStream

from capture.errors import FrameError
from capture.messaging import frames
from capture.messaging.admission import Admission, NotAdmittedError
from capture.messaging.flow_control import Inbox
from capture.messaging.handshake import Received, RefusedError, receive
from capture.messaging.lobby import Lobby, host_of
from capture.messaging.outbound import MessagingSettings
from capture.messaging.topics import Topics
from capture.messaging.transport import BROKEN
from capture.messaging.wakeups import Signal
from capture.security.refusals import Refusals
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


class _Acks:
    """The acknowledgements due on one connection: soon, or at once if the sender may be waiting for them."""

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


class _Memory:
    """The bytes of all waiting messages, over all senders."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes = 0


class _Sender:
    """One sending capture, until its numbers start over; the source of its messages."""

    def __init__(self, hello: frames.Hello, *, unreported_max: int, memory: _Memory) -> None:
        self.id = hello.sender
        self.bytes = 0
        self._memory = memory
        self.stream = hello.stream
        self.connection = -1
        self.inboxes: dict[str, Inbox] = {}
        self.scope: anyio.CancelScope | None = None
        self._unreported_max = unreported_max
        self.acks = _Acks({}, unreported_max=unreported_max)

    def begin(self, connection: int, scope: anyio.CancelScope) -> None:
        """Let the connection take over from the previous one."""
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

    def keep(self, size: int) -> None:
        self.bytes += size
        self._memory.bytes += size

    def handled(self, topic: str) -> None:
        inbox = self.inboxes[topic]
        self.keep(-inbox.handled())
        self.acks.owe(inbox)

    def forget(self) -> None:
        """Drop waiting messages."""
        self.end()
        self.keep(-self.bytes)

    def statistics(self) -> SenderStatistics:
        return SenderStatistics(
            sender=self.id,
            is_connected=self.scope is not None,
            waiting=sum(inbox.waiting for inbox in self.inboxes.values()),
            duplicates=sum(inbox.duplicates for inbox in self.inboxes.values()),
        )


@dataclass(frozen=True, slots=True)
class _Connection:
    """An accepted connection. ``rest``: what followed its greeting."""

    sender: _Sender
    number: int
    rest: Received


class Sessions:
    """All senders; call ``serve`` for every incoming stream."""

    def __init__(
        self, me: CaptureId, *, topics: Topics, settings: MessagingSettings, admission: Admission | None = None
    ) -> None:
        self._me = me
        self._topics = topics
        self._settings = settings
        self._admission = admission or Admission()
        self._lobby = Lobby(places=settings.greeting_max, seconds=settings.connect_timeout_s)
        self._refusals = Refusals("connection refused")
        self._memory = _Memory(settings.process_bytes_max)
        self._senders: dict[CaptureId, _Sender] = {}
        self._members: set[CaptureId] = set()
        self.skipped = 0

    @property
    def refused(self) -> int:
        return self._refusals.count

    @property
    def bytes_waiting(self) -> int:
        return self._memory.bytes

    async def serve(self, stream: ByteStream) -> None:
        """Serve one connection from beginning to end."""
        host = host_of(stream)
        try:
            greeted = await self._greet(stream, host)
            if greeted is not None:
                await self._converse(*greeted, host)
        except BROKEN:
            pass  # connections end like this; the sender reconnects when needed
        except Exception as error:
            # a bug of ours, triggered by a peer's data: it ends that connection and not the process
            _log.error("connection failed", cause=str(error), exc_info=error)
        finally:
            await anyio.aclose_forcefully(stream)

    def keep_only(self, members: Collection[CaptureId]) -> None:
        """Drop the state of captures that have left. A sender that connected before it was known as a member is kept
        while connected."""
        for sender in list(self._senders.values()):
            if sender.id not in members and (sender.id in self._members or sender.scope is None):
                self._forget(sender)
        self._members = set(members)

    def statistics(self) -> tuple[SenderStatistics, ...]:
        return tuple(sender.statistics() for sender in self._senders.values())

    def _forget(self, sender: _Sender) -> None:
        sender.forget()
        self._senders.pop(sender.id, None)
        self._topics.drop(sender)

    async def _greet(self, stream: ByteStream, host: str) -> tuple[ByteStream, frames.Decoder, _Connection] | None:
        """Receive and check a peer's greeting. None: it was refused, and the reason was sent if possible."""
        decoder = frames.Decoder(bytes_max=frames.GREETING_BYTES_MAX)
        with self._lobby.enter(host) as place, place.scope:
            try:
                stream = await self._admission.secure_incoming(stream)
                greeting = await receive(stream, decoder, me=self._me, admission=self._admission)
                sender = self._admit(greeting.hello)
            except NotAdmittedError as error:  # no TLS: there is no way to answer
                self._refusals.note("unproved", str(error), host=host)
                return None
            except (RefusedError, FrameError) as error:
                await self._refuse(stream, error, host)
                return None
            decoder.allow(self._settings.frame_bytes_max)
            return stream, decoder, _Connection(sender, greeting.hello.connection, greeting.rest)
        if place.is_evicted:
            self._refusals.note("broken", "too many connections do not say who they are", host=host)
        else:
            silent = FrameError(f"no Hello within {self._settings.connect_timeout_s:g} s")
            await self._refuse(stream, silent, host)
        return None

    async def _converse(self, stream: ByteStream, decoder: frames.Decoder, connection: _Connection, host: str) -> None:
        sender = connection.sender
        refusal: RefusedError | FrameError | None = None
        with anyio.CancelScope() as scope:
            sender.begin(connection.number, scope)
            try:
                await stream.send(frames.encode(frames.Welcome(self._settings.window)))
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._report, stream, sender.acks, tasks.cancel_scope)
                    refusal = await self._read(stream, decoder, sender, connection.rest)
                    tasks.cancel_scope.cancel()
            finally:
                if sender.scope is scope:
                    sender.scope = None
        if refusal is not None:
            await self._refuse(stream, refusal, host, sender=sender.id)

    def _admit(self, hello: frames.Hello) -> _Sender:
        known = self._senders.get(hello.sender)
        if known is not None and known.stream == hello.stream and hello.connection == known.connection:
            raise RefusedError(frames.Reason.DUPLICATE, f"connection {hello.connection} exists")
        if known is not None and (hello.stream, hello.connection) < (known.stream, known.connection):
            raise RefusedError(frames.Reason.STALE, f"connection {hello.connection} is older than the present one")
        if known is None or known.stream != hello.stream:
            if known is not None:
                self._forget(known)
            unreported_max = max(self._settings.window // 4, 1)
            known = self._senders[hello.sender] = _Sender(hello, unreported_max=unreported_max, memory=self._memory)
        return known

    async def _refuse(
        self, stream: ByteStream, error: RefusedError | FrameError, host: str, *, sender: str = ""
    ) -> None:
        refusal, sender = _refusal_of(error), sender or getattr(error, "sender", "")
        self._refusals.note(refusal.reason.name.lower(), refusal.text, host=host, sender=sender)
        await self._say(stream, refusal)

    async def _say(self, stream: ByteStream, refusal: frames.Refuse) -> None:
        """Send the reason, and let the other side close: closing with unread bytes would destroy the reason in
        flight."""
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
        early: Received,
    ) -> RefusedError | FrameError | None:
        try:
            received = early
            while True:
                for frame in received:
                    self._on_frame(sender, frame)
                data = b""
                with anyio.move_on_after(self._settings.silence_s_max):
                    data = await stream.receive()
                if not data:
                    return FrameError(f"silent for {self._settings.silence_s_max:g} s")
                received = decoder.feed(data)
        except (RefusedError, FrameError) as error:
            return error
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
        if not self._topics.is_known(topic):
            raise RefusedError(frames.Reason.UNKNOWN_TOPIC, f"there is no topic {topic[:64]!r} here")
        inbox = sender.inbox(topic)
        size = frame.size if isinstance(frame, frames.Data) else 0
        if not inbox.accept(seq, size):
            return
        if problem := self._excess(sender, inbox, size):
            inbox.take_back()
            raise RefusedError(frames.Reason.CONGESTED, problem)
        sender.keep(size)
        self._topics.put(topic, frame.message if isinstance(frame, frames.Data) else None, sender)

    def _excess(self, sender: _Sender, inbox: Inbox, size: int) -> str:
        """Return the limit that one more message would exceed; a single message always has room."""
        settings = self._settings
        if inbox.waiting > settings.window:
            return f"more than {settings.window} messages wait on {inbox.topic}"
        if inbox.bytes > settings.topic_bytes_max:
            return f"more than {settings.topic_bytes_max} bytes wait on {inbox.topic}"
        if sender.bytes and sender.bytes + size > settings.peer_bytes_max:
            return f"more than {settings.peer_bytes_max} bytes of {sender.id} wait"
        if sender.bytes and self._memory.bytes + size > self._memory.bytes_max:
            return f"more than {self._memory.bytes_max} bytes of all captures wait"
        return ""

    def _on_skipped(self, sender: _Sender, frame: frames.Skipped) -> None:
        if not self.skipped:
            _log.warning("skipped what a newer version sent; upgrade this capture", sender=sender.id, kind=frame.kind)
        self.skipped += 1
        if frame.topic:
            self._accept(sender, frame.topic, frame.seq, frame)


def _refusal_of(error: RefusedError | FrameError) -> frames.Refuse:
    return error.refusal if isinstance(error, RefusedError) else frames.Refuse(frames.Reason.BROKEN, str(error))

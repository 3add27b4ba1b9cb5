"""Outbound connection: the unacknowledged messages to one peer, and the connection that carries them.

    add ──► Outbox per topic ──► one connection at a time ──► Ack ──► dropped
                  ▲                       │ broken, refused, silent
                  └── everything unacknowledged again, after a backoff

A link lives as long as its peer is a member of the cluster; connections come and go. It decides when to reconnect,
gives topics equal turns on the connection, and makes senders wait while a topic's window is full. A peer that turns out
to be another capture is not tried again until its address changes. ``capture.messaging.flow_control`` handles order and
numbers.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import NoReturn

import anyio
import structlog
from anyio.abc import ByteStream

from capture.errors import (
    FrameError,
    MessagingError,
    PeerCongestedError,
    PeerMismatchError,
    PeerRefusedError,
    PeerUnknownError,
    PeerUnreachableError,
)
from capture.messaging import frames
from capture.messaging.admission import Admission, NotAdmittedError
from capture.messaging.flow_control import Outbox
from capture.messaging.handshake import hello_of, introduce, refused
from capture.messaging.transport import BROKEN, Transport
from capture.messaging.wakeups import Signal, Turnstile
from reactor.errors import WeirError
from reactor.ids import CaptureId
from reactor.messages import Message

#: bytes passed to the socket at once; small enough to keep the event loop responsive
_CHUNK_BYTES = 256 * 1024
#: one topic's share of a chunk while others have something to send
_TURN_BYTES = 64 * 1024

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class MessagingSettings:
    """``window``, ``window_bytes``: unhandled messages kept per peer and topic. ``keepalive_s``: probe interval of an
    idle connection, which is closed after three intervals of silence. ``peer_bytes_max``, ``process_bytes_max``: limits
    of waiting messages, of one sender and of all. ``greeting_max``: maximum unauthenticated connections."""

    window: int = 16_384
    window_bytes: int = 32 * 1024 * 1024
    frame_bytes_max: int = frames.FRAME_BYTES_MAX
    peer_bytes_max: int = 96 * 1024 * 1024
    process_bytes_max: int = 256 * 1024 * 1024
    greeting_max: int = 64
    ack_interval_s: float = 0.1
    connect_timeout_s: float = 5.0
    keepalive_s: float = 5.0
    backoff_s: float = 0.05
    backoff_s_max: float = 2.0

    @property
    def topic_bytes_max(self) -> int:
        """A sender with room for one byte may send a whole frame."""
        return self.window_bytes + self.frame_bytes_max

    @property
    def silence_s_max(self) -> float:
        return 3 * self.keepalive_s


class LinkState(StrEnum):
    CONNECTING = "connecting"
    CONNECTED = "connected"
    MISMATCHED = "mismatched"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class LinkStatistics:
    """``owed``, ``owed_bytes``: not yet handled by the peer. ``resent``: sent again on a later connection."""

    peer: CaptureId
    address: str
    state: LinkState
    owed: int
    owed_bytes: int
    connections: int
    resent: int


@dataclass(frozen=True, slots=True)
class Contact:
    """``since``: when the peer became known. ``heard_at``: when it last answered; None: never."""

    since: float
    heard_at: float | None


class _Lane:
    """One topic on a link."""

    __slots__ = ("is_ready", "outbox", "turnstile")

    def __init__(self, outbox: Outbox, has_room: Callable[[Outbox], bool]) -> None:
        self.outbox = outbox
        self.turnstile = Turnstile(lambda: has_room(outbox))
        self.is_ready = False


class Link:
    """Sends to one peer. ``run`` it in a task; ``close`` it when the peer has left."""

    def __init__(
        self,
        me: CaptureId,
        peer: CaptureId,
        *,
        address: str,
        stream: int,
        next_connection: Callable[[], int],
        transport: Transport,
        settings: MessagingSettings,
        admission: Admission,
    ) -> None:
        self._admission = admission
        self._me, self._peer = me, peer
        self._address = address
        self._stream = stream
        self._next_connection = next_connection
        self._transport = transport
        self._settings = settings
        self._state = LinkState.CONNECTING
        self._window = settings.window
        self._lanes: dict[str, _Lane] = {}
        self._ready: deque[_Lane] = deque()
        self._work = Signal()
        self._moved = anyio.Event()
        self._scope = anyio.CancelScope()
        self._failures = 0
        self._connections = 0
        self._resent = 0
        self._since = anyio.current_time()
        self._heard_at: float | None = None

    @property
    def contact(self) -> Contact:
        return Contact(self._since, self._heard_at)

    async def send(self, topic: str, message: Message) -> None:
        """Queue a message for the peer; wait while too many on this topic are not handled yet.

        :raises PeerUnknownError: the peer has left.
        :raises PeerMismatchError: another capture is at its address.
        :raises FrameTooLargeError: the message exceeds the limit.
        """
        lane = self._lane(topic)
        if not lane.turnstile.is_free:
            await lane.turnstile.pass_through()
        self._add(lane, message)

    def send_nowait(self, topic: str, message: Message) -> None:
        """Send without waiting.

        :raises PeerCongestedError: there is no room.
        """
        lane = self._lane(topic)
        if not lane.turnstile.is_free:
            raise PeerCongestedError(
                f"{len(lane.outbox)} messages to {self._peer} wait on {topic}; slow down, or wait with send"
            )
        self._add(lane, message)

    def move(self, address: str) -> None:
        """Use the peer's new address: disconnect from the old one at once."""
        if address != self._address:
            self._address = address
            self._failures = 0
            self._moved.set()

    def close(self) -> None:
        """Note that the peer has left: drop its messages, and reject waiting senders."""
        self._state = LinkState.CLOSED
        self._scope.cancel()
        self._wake_senders()

    async def run(self) -> None:
        """Keep connecting until closed."""
        with self._scope:
            while True:
                self._moved = anyio.Event()
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._run_at_address)
                    await self._moved.wait()
                    tasks.cancel_scope.cancel()

    def statistics(self) -> LinkStatistics:
        return LinkStatistics(
            peer=self._peer,
            address=self._address,
            state=self._state,
            owed=sum(len(lane.outbox) for lane in self._lanes.values()),
            owed_bytes=sum(lane.outbox.bytes_kept for lane in self._lanes.values()),
            connections=self._connections,
            resent=self._resent,
        )

    # queued messages

    def _lane(self, topic: str) -> _Lane:
        lane = self._lanes.get(topic)
        if lane is None:
            outbox = Outbox(topic, window=self._window, window_bytes=self._settings.window_bytes)
            lane = self._lanes[topic] = _Lane(outbox, self._has_room)
        return lane

    def _has_room(self, outbox: Outbox) -> bool:
        """Return whether a sender can proceed, even if only to get the error that ``_add`` raises."""
        return outbox.has_room or self._state in (LinkState.CLOSED, LinkState.MISMATCHED)

    def _add(self, lane: _Lane, message: Message) -> None:
        if self._state is not LinkState.CONNECTED and self._state is not LinkState.CONNECTING:
            self._raise_useless()
        outbox = lane.outbox
        data = frames.Data(outbox.topic, outbox.next_seq, message)
        outbox.add(frames.encode(data, bytes_max=self._settings.frame_bytes_max))
        self._make_ready(lane)

    def _raise_useless(self) -> NoReturn:
        if self._state is LinkState.MISMATCHED:
            raise PeerMismatchError(
                f"another capture than {self._peer} is at {self._address}; wait for its new address"
            )
        raise PeerUnknownError(f"{self._peer} has left the cluster; ask the owner who is in it")

    def _make_ready(self, lane: _Lane) -> None:
        if not lane.is_ready:
            lane.is_ready = True
            self._ready.append(lane)
            self._work.set()

    def _wake_senders(self) -> None:
        for lane in self._lanes.values():
            lane.turnstile.recheck()

    def _collect(self) -> bytes:
        """Return the next bytes to send; topics take turns."""
        chunk: list[bytes] = []
        size = 0
        while self._ready and size < _CHUNK_BYTES:
            lane = self._ready.popleft()
            taken = lane.outbox.take(_TURN_BYTES)
            chunk += taken
            size += sum(map(len, taken))
            lane.is_ready = bool(taken) and lane.outbox.has_unsent
            if lane.is_ready:
                self._ready.append(lane)
        return b"".join(chunk)

    def _rewind(self) -> None:
        for lane in self._lanes.values():
            self._resent += lane.outbox.rewind()
            if lane.outbox.has_unsent:
                self._make_ready(lane)

    # the connection

    async def _run_at_address(self) -> None:
        self._state = LinkState.CONNECTING
        while True:
            try:
                error = await self._connect()
            except WeirError as failure:  # includes an invalid address in etcd, which may be corrected
                error = failure
            if isinstance(error, PeerMismatchError):
                _log.warning("wrong capture at a peer's address", peer=self._peer, address=self._address)
                self._state = LinkState.MISMATCHED
                self._wake_senders()
                return
            if self._failures == 0 or self._state is LinkState.CONNECTED:
                _log.warning("peer not connected", peer=self._peer, address=self._address, cause=str(error))
            self._state = LinkState.CONNECTING
            await anyio.sleep(min(self._settings.backoff_s * 2**self._failures, self._settings.backoff_s_max))
            self._failures = min(self._failures + 1, 30)

    async def _connect(self) -> WeirError:
        """Run one connection from beginning to end; return (or raise) why it ended."""
        limit_s = self._settings.connect_timeout_s
        decoder = frames.Decoder(bytes_max=frames.GREETING_BYTES_MAX)
        stream: ByteStream | None = None
        try:
            with anyio.fail_after(limit_s):
                stream = await self._transport.connect(self._address)
                stream = await self._admission.secure_outgoing(stream, self._peer)
                await self._shake_hands(stream, decoder)
            return await self._converse(stream, decoder)
        except NotAdmittedError as error:
            return PeerRefusedError(f"what answers at {self._address} is not {self._peer}: {error}")
        except TimeoutError:
            return PeerUnreachableError(f"{self._peer} at {self._address} did not answer within {limit_s:g} s")
        except BROKEN:
            return PeerUnreachableError(f"{self._peer} at {self._address} closed the connection")
        finally:
            if stream is not None:
                await anyio.aclose_forcefully(stream)

    async def _shake_hands(self, stream: ByteStream, decoder: frames.Decoder) -> None:
        hello = hello_of(self._me, self._peer, self._next_connection(), self._stream, self._admission)
        welcome, rest = await introduce(stream, decoder, hello, admission=self._admission)
        decoder.allow(self._settings.frame_bytes_max)
        self._on_welcome(welcome)
        for answer in rest:
            self._on_frame(answer)

    def _on_welcome(self, welcome: frames.Welcome) -> None:
        if problem := frames.version_problem(welcome):
            raise PeerRefusedError(f"{self._peer} at {self._address}: {problem}")
        self._window = min(self._settings.window, max(welcome.window, 1))
        for lane in self._lanes.values():
            lane.outbox.window = self._window
        self._rewind()
        if self._failures:
            _log.info("peer connected", peer=self._peer, address=self._address)
        self._state = LinkState.CONNECTED
        self._connections += 1
        self._heard_at = anyio.current_time()

    async def _converse(self, stream: ByteStream, decoder: frames.Decoder) -> WeirError:
        error: WeirError | None = None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._pump, stream, tasks.cancel_scope)
            error = await self._listen(stream, decoder)
            tasks.cancel_scope.cancel()
        return error or PeerUnreachableError(f"the connection to {self._peer} at {self._address} broke")

    async def _pump(self, stream: ByteStream, scope: anyio.CancelScope) -> None:
        """Send what is ready, and a Ping at intervals: a peer whose handlers are busy sends nothing else."""
        ping_at = anyio.current_time() + self._settings.keepalive_s
        try:
            while True:
                data = self._collect()
                if anyio.current_time() >= ping_at:
                    ping_at = anyio.current_time() + self._settings.keepalive_s
                    data += frames.encode(frames.Ping())
                if data:
                    await stream.send(data)
                    continue
                with anyio.CancelScope(deadline=ping_at):
                    await self._work.wait()
        except BROKEN:
            scope.cancel()

    async def _listen(self, stream: ByteStream, decoder: frames.Decoder) -> WeirError:
        """Receive acknowledgements until the connection is no longer usable; return why."""
        try:
            while True:
                data = b""
                with anyio.move_on_after(self._settings.silence_s_max):
                    data = await stream.receive()
                if not data:
                    return PeerUnreachableError(f"{self._peer} is silent for {self._settings.silence_s_max:g} s")
                self._heard_at = anyio.current_time()
                for frame in decoder.feed(data):
                    self._on_frame(frame)
        except (MessagingError, FrameError) as error:
            return error
        except BROKEN:
            return PeerUnreachableError(f"{self._peer} at {self._address} closed the connection")

    def _on_frame(self, frame: frames.Frame | frames.Skipped) -> None:
        match frame:
            case frames.Ack(topic, seq):
                self._failures = 0
                self._on_ack(topic, seq)
            case frames.Pong():
                self._failures = 0
            case frames.Refuse():
                raise refused(frame, self._peer)
            case frames.Skipped():
                pass
            case _:
                raise FrameError(f"{self._peer} sent {type(frame).__name__} on a connection it did not open")

    def _on_ack(self, topic: str, seq: int) -> None:
        lane = self._lanes.get(topic)
        if lane is not None and lane.outbox.acknowledge(seq):
            lane.turnstile.recheck()
            if lane.outbox.has_unsent:
                self._make_ready(lane)

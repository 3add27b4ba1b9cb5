"""Messenger: delivers messages between captures, in order per (sender, receiver, topic), at least once, bounded.

    send ──► Link ──► frames over TCP or TLS ──► Session ──► Topics ──► handler
               ▲            │  handshake            │
               └───────────── Ack ◄─── when handled ┘

``Messenger`` is the only interface. It listens, keeps one connection to every other member of the cluster, and delivers
messages to oneself directly. Guarantees, as long as both captures stay in the cluster:
- a message accepted by ``send`` is handled by the receiver once in order, or again after a reconnect only if the
  receiver had dropped this sender's state in between. A restarted capture is a different capture: nothing is sent to it
  again, and its predecessor's messages are dropped when that leaves the cluster (``set_peers``).
- ``send`` waits while the receiver has too many unhandled messages on that topic, ``send_nowait`` raises; nothing is
  dropped silently at either end, and a slow topic delays no other.

The captures' addresses come from etcd, through ``set_peers``; handlers interpret the messages.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import count
from types import TracebackType
from typing import Self

import anyio

from capture.errors import PeerCongestedError, PeerUnknownError, root_cause
from capture.messaging.admission import Admission
from capture.messaging.inbound import SenderStatistics, Sessions
from capture.messaging.outbound import Contact, Link, LinkState, LinkStatistics, MessagingSettings
from capture.messaging.topics import Handler, Topics
from capture.messaging.transport import Endpoint, TcpTransport, Transport
from capture.messaging.wakeups import Turnstile
from reactor.ids import CaptureId
from reactor.messages import Message

__all__ = ["Handler", "LinkState", "MessagingSettings", "Messenger", "MessengerStatistics"]


@dataclass(frozen=True, slots=True)
class MessengerStatistics:
    """``waiting``: accepted messages by topic that no handler has finished. ``skipped``: sent by a newer version."""

    links: tuple[LinkStatistics, ...]
    senders: tuple[SenderStatistics, ...]
    waiting: Mapping[str, int]
    skipped: int
    refused: int
    bytes_waiting: int


class _Self:
    """Messages to oneself: not serialised, but with the same window."""

    def __init__(self, topics: Topics, window: int) -> None:
        self._topics = topics
        self._window = window
        self._waiting: dict[str, int] = {}
        self._turnstiles: dict[str, Turnstile] = {}

    async def send(self, topic: str, message: Message) -> None:
        turnstile = self._turnstile(topic)
        if not turnstile.is_free:
            await turnstile.pass_through()
        self._put(topic, message)

    def send_nowait(self, topic: str, message: Message) -> None:
        if not self._turnstile(topic).is_free:
            raise PeerCongestedError(
                f"{self._window} messages to oneself wait on {topic}; slow down, or wait with send"
            )
        self._put(topic, message)

    def handled(self, topic: str) -> None:
        self._waiting[topic] -= 1
        self._turnstiles[topic].recheck()

    def _put(self, topic: str, message: Message) -> None:
        self._waiting[topic] += 1
        self._topics.put(topic, message, self)

    def _turnstile(self, topic: str) -> Turnstile:
        turnstile = self._turnstiles.get(topic)
        if turnstile is None:
            self._waiting[topic] = 0
            turnstile = self._turnstiles[topic] = Turnstile(lambda: self._waiting[topic] < self._window)
        return turnstile


class Messenger:
    """One capture's messages. Created in a running loop and entered with ``async with``, inside which it listens."""

    def __init__(
        self,
        capture_id: CaptureId,
        *,
        listen: str = "127.0.0.1:0",
        admission: Admission | None = None,  # None for tests: all peers are accepted
        topics: Collection[str] | None = None,  # None for tests: any
        transport: Transport | None = None,  # for tests: anything that connects and listens
        settings: MessagingSettings | None = None,
    ) -> None:
        self.capture_id = capture_id
        self._listen = listen
        self._admission = admission or Admission()
        self._transport = transport or TcpTransport()
        self._settings = settings or MessagingSettings()
        self._tasks = anyio.create_task_group()
        self._topics = Topics(self._tasks, topics)
        self._sessions = Sessions(capture_id, topics=self._topics, settings=self._settings, admission=self._admission)
        self._self = _Self(self._topics, self._settings.window)
        self._links: dict[CaptureId, Link] = {}
        self._numbers = count(1)
        self._endpoint: Endpoint | None = None

    async def __aenter__(self) -> Self:
        """:raises PortInUseError: the address to listen on is taken."""
        self._endpoint = await self._transport.listen(self._listen)
        await self._tasks.__aenter__()
        self._tasks.start_soon(self._endpoint.serve, self._sessions.serve, name=f"{self.capture_id} listens")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        self._tasks.cancel_scope.cancel()
        try:
            return await self._tasks.__aexit__(kind, error, trace)
        except BaseExceptionGroup as group:
            raise root_cause(group) from None
        finally:
            assert self._endpoint is not None
            with anyio.CancelScope(shield=True):
                await self._endpoint.aclose()

    @property
    def address(self) -> str:
        """The listening address, ``host:port``, with the real port if 0 was requested."""
        assert self._endpoint is not None, "enter the messenger first"
        return self._endpoint.address

    def set_peers(self, peers: Mapping[CaptureId, str]) -> None:
        """Set the members of the cluster and their addresses. Messages to others are dropped."""
        others = {peer: address for peer, address in peers.items() if peer != self.capture_id}
        for gone in sorted(self._links.keys() - others.keys()):
            self._links.pop(gone).close()
        for peer, address in others.items():
            if peer in self._links:
                self._links[peer].move(address)
            else:
                self._links[peer] = self._link(peer, address)
                self._tasks.start_soon(self._links[peer].run, name=f"{self.capture_id} to {peer}")
        self._sessions.keep_only(others.keys())
        self._admission.note_change()

    async def send(self, topic: str, message: Message) -> None:
        """Send the message to its receiver; waits while that one has too many unhandled messages on the topic.

        :raises PeerUnknownError: the receiver is not, or no longer, in the cluster.
        :raises PeerMismatchError: another capture is at its address.
        :raises FrameTooLargeError: the message exceeds the limit.
        """
        if message.receiver == self.capture_id:
            await self._self.send(topic, message)
        else:
            await self._link_to(message.receiver).send(topic, message)

    def send_nowait(self, topic: str, message: Message) -> None:
        """Send without waiting.

        :raises PeerCongestedError: there is no room; the message was not accepted.
        """
        if message.receiver == self.capture_id:
            self._self.send_nowait(topic, message)
        else:
            self._link_to(message.receiver).send_nowait(topic, message)

    def register(self, topic: str, handler: Handler) -> None:
        """Deliver the topic's messages to ``handler`` from now on, waiting ones first. An actor's ``ref.tell`` is a
        handler.

        :raises TopicTakenError: the topic has one already.
        """
        self._topics.register(topic, handler)

    def unregister(self, topic: str, *, discard: bool = False) -> None:
        """Stop delivering to the handler (it finishes its current message). New messages wait for the next handler;
        with ``discard`` those here by now count as handled."""
        self._topics.unregister(topic, discard=discard)

    def statistics(self) -> MessengerStatistics:
        return MessengerStatistics(
            links=tuple(link.statistics() for link in self._links.values()),
            senders=self._sessions.statistics(),
            waiting=self._topics.waiting(),
            skipped=self._sessions.skipped,
            refused=self._sessions.refused,
            bytes_waiting=self._sessions.bytes_waiting,
        )

    def contacts(self) -> Mapping[CaptureId, Contact]:
        """Return when each peer was last heard: an answer proves that messages arrive in both directions."""
        return {peer: link.contact for peer, link in self._links.items()}

    def _link_to(self, peer: CaptureId) -> Link:
        link = self._links.get(peer)
        if link is None:
            raise PeerUnknownError(f"capture {peer} is not in the cluster (yet, or any more); try again when it is")
        return link

    def _link(self, peer: CaptureId, address: str) -> Link:
        return Link(
            self.capture_id,
            peer,
            address=address,
            stream=next(self._numbers),
            next_connection=self._numbers.__next__,
            transport=self._transport,
            settings=self._settings,
            admission=self._admission,
        )

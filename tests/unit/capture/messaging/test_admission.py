"""Admission: nobody speaks for a capture but that capture; an attacker costs a line in the log, and little memory.

Attackers are raw sockets against a real messenger on loopback; they are given the cluster's key or a certificate where
the story says so, and use the frames of the protocol where that takes them further.
"""

import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import anyio
import msgpack
import pytest
from structlog.testing import capture_logs

from capture.errors import ConfigError
from capture.messaging import frames
from capture.messaging.admission import Admission, Registered
from capture.messaging.messenger import LinkState, MessagingSettings, Messenger
from capture.messaging.tls import NodeTls, Tls
from capture.security import certificates
from capture.security.peer_key import PeerKey, Side, Terms, new_nonce
from reactor.ids import CaptureId, ChangefeedId
from reactor.messages import Header, Message, StopWorker
from tests.patience import HANG_S

A, B, EVE = CaptureId("capture-a"), CaptureId("capture-b"), CaptureId("capture-eve")
TOPIC = "agent"
KEY, OTHER_KEY = b"of this cluster", b"of another one"
SETTINGS = MessagingSettings(connect_timeout_s=1.5, backoff_s=0.01, backoff_s_max=0.05, greeting_max=8)
PROVES = Registered(proves=True)


def message(number: int, *, sender: CaptureId = A, receiver: CaptureId = B, changefeed: str = "feed") -> Message:
    return Message(sender, receiver, ChangefeedId(changefeed), Header("1", 1, "", 1), StopWorker("source", number))


async def until(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(HANG_S):
        while not condition():  # noqa: ASYNC110 - others' state
            await anyio.sleep(0.01)


def peer_key(secret: bytes = KEY) -> PeerKey:
    return PeerKey([secret], cluster="default")


@dataclass
class Bed:
    """Messengers and what the metadata store has of their captures."""

    members: dict[CaptureId, Registered] = field(default_factory=dict)
    messengers: dict[CaptureId, Messenger] = field(default_factory=dict)
    seen: dict[CaptureId, list[int]] = field(default_factory=dict)

    def admission(self, **more: Any) -> Admission:
        arguments: dict[str, Any] = {"key": peer_key(), "news_s": 0.2} | more
        return Admission(self.members.get, **arguments)

    @asynccontextmanager
    async def capture(
        self, id: CaptureId, admission: Admission, *, registered: Registered = PROVES
    ) -> AsyncIterator[Messenger]:
        self.members[id] = registered
        seen = self.seen.setdefault(id, [])

        async def handle(received: Message) -> None:
            assert isinstance(received.body, StopWorker)
            seen.append(received.body.epoch)

        async with Messenger(id, admission=admission, topics=(TOPIC,), settings=SETTINGS) as messenger:
            self.messengers[id] = messenger
            messenger.register(TOPIC, handle)
            for one in self.messengers.values():
                one.set_peers({known: other.address for known, other in self.messengers.items()})
            yield messenger

    async def wait_seen(self, id: CaptureId, numbers: list[int]) -> None:
        await until(lambda: self.seen[id] == numbers)


class Wire:
    """An attacker's socket."""

    ALL: ClassVar[list["Wire"]] = []

    def __init__(self, address: str) -> None:
        self.ALL.append(self)
        host, _, port = address.rpartition(":")
        self.socket: socket.socket = socket.create_connection((host, int(port)), timeout=10)
        self._decoder = frames.Decoder()

    def send(self, *sent: frames.Frame) -> None:
        self.socket.sendall(b"".join(map(frames.encode, sent)))

    def answer(self) -> frames.Frame | frames.Skipped | None:
        """None: it was closed."""
        while True:
            data = self.socket.recv(65536)
            if not data:
                return None
            if came := self._decoder.feed(data):
                return came[0]

    def is_closed(self) -> bool:
        with contextlib.suppress(ConnectionError):
            while self.socket.recv(65536):
                pass
        return True

    def prove(self, hello: frames.Hello, key: PeerKey) -> None:
        """All that a holder of the key does."""
        self.send(hello)
        challenge = self.answer()
        assert isinstance(challenge, frames.Challenge)
        self.send(frames.Proof(key.proof(hello.key_id, Side.CLIENT, terms(hello, challenge.nonce))))


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    while Wire.ALL:
        Wire.ALL.pop().socket.close()


def terms(hello: frames.Hello, nonce: bytes) -> Terms:
    version = (hello.major, hello.minor)
    return Terms(hello.sender, hello.receiver, hello.connection, hello.stream, version, hello.nonce, nonce)


def hello(sender: CaptureId, connection: int = 10**9, *, key: PeerKey | None = None) -> frames.Hello:
    nonces = {"nonce": new_nonce(), "key_id": (key or peer_key()).id}
    return frames.Hello(sender, B, connection, 10**9, **nonces)  # type: ignore[arg-type]


@asynccontextmanager
async def pair(bed: Bed) -> AsyncIterator[tuple[Messenger, Messenger]]:
    """A sends to B, with the cluster's key."""
    async with bed.capture(B, bed.admission()) as b, bed.capture(A, bed.admission()) as a:
        await a.send(TOPIC, message(1))
        await bed.wait_seen(B, [1])
        yield a, b


@contextlib.contextmanager
def refusals() -> Iterator[list[Any]]:
    with capture_logs() as logs:
        yield logs


def refused(logs: list[Any]) -> list[str]:
    return [line["cause"] for line in logs if line["event"] == "connection refused"]


async def still_speaks(bed: Bed, a: Messenger) -> None:
    """The real A was not locked out."""
    await a.send(TOPIC, message(2))
    await bed.wait_seen(B, [1, 2])


async def in_thread(work: Any, *arguments: Any) -> Any:
    return await anyio.to_thread.run_sync(work, *arguments)


async def test_a_hello_in_anothers_name_without_the_key_is_refused_and_locks_no_one_out() -> None:
    bed = Bed()
    with refusals() as logs:
        async with pair(bed) as (a, b):
            for attempt in range(5):
                wire = Wire(b.address)
                await in_thread(wire.send, frames.Hello(A, B, 10**12 + attempt, 10**12))
                answer = await in_thread(wire.answer)
                assert isinstance(answer, frames.Refuse)
                assert answer.reason is frames.Reason.UNPROVED
                wire.socket.close()
            await still_speaks(bed, a)
            assert b.statistics().refused == 5
    assert refused(logs) == ["not capture-a: it does not prove that it holds the cluster's key"], "once, not five times"


async def test_another_key_is_named_and_a_guessed_proof_is_none() -> None:
    bed = Bed()
    with refusals() as logs:
        async with pair(bed) as (a, b):
            other = Wire(b.address)
            await in_thread(other.send, hello(A, key=peer_key(OTHER_KEY)))
            assert isinstance(await in_thread(other.answer), frames.Refuse)
            guess = Wire(b.address)
            await in_thread(guess.send, hello(A))
            assert isinstance(await in_thread(guess.answer), frames.Challenge)
            await in_thread(guess.send, frames.Proof(b"\0" * 32))
            assert isinstance(await in_thread(guess.answer), frames.Refuse)
            await still_speaks(bed, a)
    assert [text.partition(";")[0] for text in refused(logs)] == [
        "not capture-a: it holds another secret key than this cluster's",
        "not capture-a: its proof is wrong",
    ]


async def test_a_replayed_greeting_and_a_reflected_proof_open_nothing() -> None:
    bed = Bed()
    async with pair(bed) as (a, b):
        first, heard = Wire(b.address), hello(EVE)
        bed.members[EVE] = PROVES
        await in_thread(first.send, heard)
        challenge = await in_thread(first.answer)
        proof = frames.Proof(peer_key().proof(heard.key_id, Side.CLIENT, terms(heard, challenge.nonce)))
        await in_thread(first.send, proof)
        assert isinstance(await in_thread(first.answer), frames.Welcome), "as the one who is overheard"
        first.socket.close()
        replay = Wire(b.address)
        await in_thread(replay.send, heard)
        assert isinstance(await in_thread(replay.answer), frames.Challenge)
        await in_thread(replay.send, proof)
        assert isinstance(await in_thread(replay.answer), frames.Refuse)
        mirror = Wire(b.address)
        await in_thread(mirror.send, hello(A))
        back = await in_thread(mirror.answer)
        await in_thread(mirror.send, frames.Proof(back.proof))
        assert isinstance(await in_thread(mirror.answer), frames.Refuse)
        await still_speaks(bed, a)


async def test_a_holder_of_the_key_that_is_no_member_is_refused() -> None:
    bed = Bed()
    with refusals() as logs:
        async with pair(bed) as (a, b):
            wire = Wire(b.address)
            await in_thread(wire.prove, hello(EVE), peer_key())
            assert isinstance(await in_thread(wire.answer), frames.Refuse) or wire.is_closed()
            await still_speaks(bed, a)
    assert len(refused(logs)) == 1


async def test_a_member_whose_news_comes_late_is_waited_for() -> None:
    bed = Bed()
    admission = bed.admission(news_s=20)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(admission.check_member, A, None)
        await anyio.wait_all_tasks_blocked()
        bed.members[A] = PROVES
        admission.note_change()


async def test_a_peer_speaks_for_itself_only() -> None:
    bed = Bed()
    async with pair(bed) as (a, b):
        bed.members[EVE] = PROVES
        wire = Wire(b.address)
        await in_thread(wire.prove, hello(EVE), peer_key())
        assert isinstance(await in_thread(wire.answer), frames.Welcome)
        await in_thread(wire.send, frames.Data(TOPIC, 1, message(666, sender=A)))
        answer = await in_thread(wire.answer)
        assert isinstance(answer, frames.Refuse)
        await still_speaks(bed, a)


async def test_unknown_topics_are_refused_and_nothing_is_kept() -> None:
    bed = Bed()
    async with pair(bed) as (a, b):
        bed.members[EVE] = PROVES
        big = message(1, sender=EVE, changefeed="x" * (8 << 20))
        for attempt in range(3):
            wire = Wire(b.address)
            await in_thread(wire.prove, hello(EVE, attempt + 1), peer_key())
            assert isinstance(await in_thread(wire.answer), frames.Welcome)
            with contextlib.suppress(ConnectionError):
                await in_thread(wire.send, frames.Data("no-such-topic", 1, big))
            answer = await in_thread(wire.answer)
            assert isinstance(answer, frames.Refuse)
            assert answer.reason is frames.Reason.UNKNOWN_TOPIC
            wire.socket.close()
        assert "no-such-topic" not in b.statistics().waiting
        assert b.statistics().bytes_waiting == 0
        await still_speaks(bed, a)


async def test_bytes_that_wait_are_bounded_and_freed() -> None:
    """A member that floods a topic whose handler hangs."""
    bed = Bed()
    gate = anyio.Event()

    async def hang(_: Message) -> None:
        await gate.wait()

    async with pair(bed) as (_, b):
        bed.members[EVE] = PROVES
        b.unregister(TOPIC)
        b.register(TOPIC, hang)
        wire = Wire(b.address)
        await in_thread(wire.prove, hello(EVE), peer_key())
        assert isinstance(await in_thread(wire.answer), frames.Welcome)
        big = message(1, sender=EVE, changefeed="x" * (8 << 20))
        with contextlib.suppress(ConnectionError):
            for number in range(1, 30):
                await in_thread(wire.send, frames.Data(TOPIC, number, big))
        assert b.statistics().bytes_waiting <= SETTINGS.topic_bytes_max
        gate.set()
        await until(lambda: not b.statistics().bytes_waiting)


async def test_before_a_greeting_only_small_frames_are_read() -> None:
    bed = Bed()
    async with pair(bed) as (a, b):
        wire = Wire(b.address)
        await in_thread(wire.socket.sendall, b"\x00\x80\x00\x00\x01" + b"\0" * 60_000)
        answer = await in_thread(wire.answer)
        assert isinstance(answer, frames.Refuse)
        assert "over the limit" in answer.text
        await still_speaks(bed, a)


@pytest.mark.matrix
async def test_idle_connections_are_few_and_short() -> None:
    """Far more of them than there are places: each is closed, captures greet, and it is logged once or twice."""
    bed = Bed()
    with refusals() as logs:
        async with pair(bed) as (a, b):
            wires = [Wire(b.address) for _ in range(100)]
            async with bed.capture(EVE, bed.admission()) as eve:
                eve.send_nowait(TOPIC, message(3, sender=EVE))
                await bed.wait_seen(B, [1, 3])
            for wire in wires:
                assert await in_thread(wire.is_closed)
            await a.send(TOPIC, message(2))
            await bed.wait_seen(B, [1, 3, 2])
    assert 1 <= len(refused(logs)) <= 3


async def test_an_impostor_at_a_peers_address_gets_no_message() -> None:
    """Somebody listens where B was, and welcomes whoever comes."""
    bed = Bed()
    heard: list[bytes] = []
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=0)

    async def welcome(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            heard.append(await stream.receive())
            await stream.send(frames.encode(frames.Welcome(16)))
            with contextlib.suppress(anyio.EndOfStream, anyio.BrokenResourceError):
                heard.append(await stream.receive())

    async with anyio.create_task_group() as tasks, bed.capture(A, bed.admission()) as a:
        tasks.start_soon(listener.serve, welcome)
        bed.members[B] = PROVES
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        a.set_peers({B: f"127.0.0.1:{port}"})
        a.send_nowait(TOPIC, message(1))
        await until(lambda: len(heard) > 2)
        (link,) = a.statistics().links
        assert link.state is LinkState.CONNECTING
        assert link.owed == 1
        tasks.cancel_scope.cancel()
    await listener.aclose()
    assert all(msgpack.unpackb(data[5:])[0] == 1 for data in heard if data), "Hello, and nothing else"


async def test_members_of_v0_1_0_are_let_in_only_while_that_is_accepted() -> None:
    bed = Bed()
    async with bed.capture(B, bed.admission(accepts_unproved=True)) as b, bed.capture(A, bed.admission()) as a:
        bed.members[EVE] = Registered()  # as v0.1.0 registers
        old = Wire(b.address)
        await in_thread(old.send, frames.Hello(EVE, B, 1, 1, minor=0))
        assert isinstance(await in_thread(old.answer), frames.Welcome)
        newer = Wire(b.address)
        await in_thread(newer.send, frames.Hello(A, B, 10**9, 10**9))
        assert isinstance(await in_thread(newer.answer), frames.Refuse), "A can prove who it is, and so it must"
        strict = Wire(a.address)
        await in_thread(strict.send, frames.Hello(EVE, A, 1, 1, minor=0))
        assert isinstance(await in_thread(strict.answer), frames.Refuse)


# over TLS


@dataclass
class Authority:
    directory: Path

    def __post_init__(self) -> None:
        self.directory.mkdir()
        self.issued = certificates.new_authority(self.directory.name)
        (self.directory / "ca.pem").write_bytes(self.issued.certificate)

    def tls(self, node: str, *, trusting: "Authority | None" = None) -> NodeTls:
        tls = NodeTls(self.files(node))
        if trusting is not None:  # an honest node notices that nobody would accept it
            tls._client.load_verify_locations(trusting.directory / "ca.pem")
        return tls

    def files(self, node: str) -> Tls:
        """A new key each time."""
        made = certificates.issue(self.issued, node, ["127.0.0.1"])
        certificate, key = self.directory / f"{node}.pem", self.directory / f"{node}.key"
        certificate.write_bytes(made.certificate)
        key.write_bytes(made.key)
        return Tls(self.directory / "ca.pem", certificate, key)


def registered(tls: NodeTls) -> Registered:
    return Registered(tls.certificate.node, (tls.certificate.key,), proves=True)


@asynccontextmanager
async def secure(bed: Bed, directory: Path) -> AsyncIterator[tuple[Authority, Messenger, Messenger]]:
    """A sends to B over TLS."""
    authority = Authority(directory / "ours")
    at_a, at_b = authority.tls("node-a"), authority.tls("node-b")
    async with (
        bed.capture(B, bed.admission(tls=at_b), registered=registered(at_b)) as b,
        bed.capture(A, bed.admission(tls=at_a), registered=registered(at_a)) as a,
    ):
        await a.send(TOPIC, message(1))
        await bed.wait_seen(B, [1])
        yield authority, a, b


async def refused_over_tls(bed: Bed, b: Messenger, tls: NodeTls | None, sender: CaptureId) -> None:
    """Whoever comes with this certificate and in that name gets no Welcome."""
    admission = Admission(lambda _: Registered(), key=peer_key(), tls=tls)
    wire = Wire(b.address)
    if admission.tls is not None:
        with contextlib.suppress(OSError):
            wire.socket = await in_thread(admission.tls._client.wrap_socket, wire.socket)
    with contextlib.suppress(OSError):
        await in_thread(wire.send, hello(sender))
        answer = await in_thread(wire.answer)
        assert answer is None or isinstance(answer, frames.Refuse)
    wire.socket.close()


async def test_tls_lets_in_who_is_registered_with_that_certificate_and_nobody_else(tmp_path: Path) -> None:
    bed = Bed()
    with refusals() as logs:
        async with secure(bed, tmp_path) as (ours, a, b):
            theirs = Authority(tmp_path / "theirs")
            bed.members[EVE] = Registered("node-eve", ("0" * 64,), proves=True)
            await refused_over_tls(bed, b, theirs.tls("node-a", trusting=ours), A)
            await refused_over_tls(bed, b, ours.tls("node-x"), A)
            await refused_over_tls(bed, b, ours.tls("node-a"), A)
            await refused_over_tls(bed, b, ours.tls("node-eve"), EVE)
            await refused_over_tls(bed, b, None, A)
            await still_speaks(bed, a)
    found = refused(logs)
    assert [part in text for part, text in zip(WRONG, found, strict=True)] == [True] * len(WRONG), found


WRONG = (
    "its certificate is not of this cluster's authority",
    "its certificate is node node-x's, and the capture is on node-a",
    "the key of its certificate is not the one that node node-a has registered",
    "the key of its certificate is not the one that node node-eve has registered",
    "it came without TLS",
)


async def test_certificates_are_re_read_when_they_change(tmp_path: Path) -> None:
    """A's certificate is renewed with another key: the store has both, connections to come use the new one."""
    bed = Bed()
    async with secure(bed, tmp_path) as (ours, a, b):
        tls = a._admission.tls
        assert tls is not None
        assert not tls.renew()
        before = tls.certificate
        ours.files("node-a")
        assert tls.renew()
        assert tls.certificate.key != before.key
        bed.members[A] = Registered("node-a", (tls.certificate.key, before.key), proves=True)
        b._sessions._senders[A].end()
        await still_speaks(bed, a)


def test_files_that_cannot_be_used_are_named_and_what_was_there_is_used_on(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="check tls-ca-file, tls-cert-file and tls-key-file"):
        NodeTls(Tls(tmp_path / "ca", tmp_path / "certificate", tmp_path / "key"))
    authority = Authority(tmp_path / "ours")
    tls = authority.tls("node-a")
    before = tls.certificate
    tls.files.certificate.write_text("half")
    with pytest.raises(ConfigError):
        tls.renew()
    assert tls.certificate == before
    renewed = certificates.renewed(authority.issued, certificates.issue(authority.issued, "node-a", []).certificate)
    tls.files.certificate.write_bytes(renewed.certificate)
    tls.files.key.write_bytes(renewed.key)
    assert tls.renew()


def test_a_certificate_of_the_authority_is_strictly_valid(tmp_path: Path) -> None:
    """As newer Pythons and other TLS libraries check it, also by host name."""
    tls = Authority(tmp_path / "ours").tls("node-a")
    client = ssl.create_default_context(cafile=tls.files.ca)
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    ends = socket.socketpair()
    with ends[0], ends[1]:
        server = tls._server
        server.verify_mode = ssl.CERT_NONE
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        here = client.wrap_bio(incoming, outgoing, server_hostname="node-a")
        there = server.wrap_bio(outgoing, incoming, server_side=True)
        for _ in range(4):
            for end in (here, there):
                with contextlib.suppress(ssl.SSLWantReadError):
                    end.do_handshake()
        assert here.version() == "TLSv1.3"

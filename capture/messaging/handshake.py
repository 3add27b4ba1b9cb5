"""Handshake: mutual authentication of two captures on a connection, for both of its ends.

    client  Hello with a nonce ──────────────►  server
            ◄──────────── its nonce and proof   Challenge        (over TLS: nothing, the certificates are the proof)
            Proof ───────────────────────────►  is it a member?
            ◄──────────────────────────────── Welcome, or Refuse

The server proves first, so a client never sends a proof to a peer without the key. Until the handshake is done, frames
are small, and the time and number of such connections are limited (``capture.messaging.lobby``).
"""

from dataclasses import dataclass

from anyio.abc import ByteStream

from capture.errors import ConfigError, FrameError, MessagingError, PeerMismatchError, PeerRefusedError
from capture.messaging import frames
from capture.messaging.admission import Admission, NotAdmittedError
from capture.messaging.frames import Challenge, Hello, Proof, Reason, Refuse, Welcome
from capture.messaging.tls import certificate_of
from capture.security.certificates import NodeCertificate
from capture.security.peer_key import NONCE_BYTES, Side, Terms, new_nonce
from reactor.ids import CaptureId

Received = list[frames.Frame | frames.Skipped]
_UNPROVED = "it does not prove that it holds the cluster's key"


class RefusedError(Exception):
    """This connection must be refused."""

    def __init__(self, reason: Reason, text: str, *, sender: str = "") -> None:
        super().__init__(text)
        self.refusal = Refuse(reason, text)
        #: the capture that it named
        self.sender = sender


@dataclass(frozen=True, slots=True)
class Greeting:
    """The greeting of the other side; ``rest`` followed directly."""

    hello: Hello
    rest: Received


class _Incoming:
    """Reads frames one by one."""

    def __init__(self, stream: ByteStream, decoder: frames.Decoder) -> None:
        self._stream = stream
        self._decoder = decoder
        self._came: Received = []

    async def next(self) -> frames.Frame | frames.Skipped:
        while not self._came:
            self._came = self._decoder.feed(await self._stream.receive())
        return self._came.pop(0)

    def rest(self) -> Received:
        return self._came


# the listening side


async def receive(stream: ByteStream, decoder: frames.Decoder, *, me: CaptureId, admission: Admission) -> Greeting:
    """Let the other side identify itself, and prove it.

    :raises RefusedError: it may not speak here.
    :raises FrameError: it does not speak this protocol.
    """
    incoming = _Incoming(stream, decoder)
    hello = await incoming.next()
    if not isinstance(hello, Hello):
        raise FrameError(f"expected Hello, got {type(hello).__name__}")
    if problem := frames.version_problem(hello):
        raise RefusedError(Reason.WRONG_VERSION, problem, sender=hello.sender)
    if hello.receiver != me:
        raise RefusedError(Reason.WRONG_RECEIVER, f"this is {me}, not {hello.receiver}", sender=hello.sender)
    try:
        certificate = certificate_of(stream)
        is_proved = certificate is not None or await _is_proved(stream, incoming, hello, admission)
        if not is_proved and not admission.accepts_unproved:
            raise NotAdmittedError(_UNPROVED)
        await admission.check_member(hello.sender, certificate)
        if not is_proved and not admission.may_be_unproved(hello.sender):
            raise NotAdmittedError(_UNPROVED)
    except (NotAdmittedError, ConfigError) as error:
        raise RefusedError(Reason.UNPROVED, f"not {hello.sender}: {error}", sender=hello.sender) from error
    return Greeting(hello, incoming.rest())


async def _is_proved(stream: ByteStream, incoming: _Incoming, hello: Hello, admission: Admission) -> bool:
    """Return False if it does not offer a proof.

    :raises NotAdmittedError: the proof is wrong.
    """
    if admission.key is None or not hello.nonce:
        return False
    if len(hello.nonce) != NONCE_BYTES or not admission.key.knows(hello.key_id):
        raise NotAdmittedError("it holds another secret key than this cluster's; give it the same --secret-key-file")
    terms = _terms(hello, new_nonce())
    await stream.send(
        frames.encode(Challenge(terms.server_nonce, admission.key.proof(hello.key_id, Side.SERVER, terms)))
    )
    answer = await incoming.next()
    if not isinstance(answer, Proof):
        raise FrameError(f"expected Proof, got {type(answer).__name__}")
    if not admission.key.is_proof(answer.proof, hello.key_id, Side.CLIENT, terms):
        raise NotAdmittedError("its proof is wrong")
    return True


# the connecting side


def hello_of(me: CaptureId, peer: CaptureId, connection: int, stream: int, admission: Admission) -> Hello:
    if admission.key is None:
        return Hello(me, peer, connection, stream)
    return Hello(me, peer, connection, stream, nonce=new_nonce(), key_id=admission.key.id)


async def introduce(
    stream: ByteStream, decoder: frames.Decoder, hello: Hello, *, admission: Admission
) -> tuple[Welcome, Received]:
    """Identify and authenticate to the other side, and verify its identity.

    :raises PeerMismatchError: another capture is there.
    :raises PeerRefusedError: it refuses the connection, or does not prove its identity.
    :raises FrameError: it does not speak this protocol.
    """
    peer, incoming = hello.receiver, _Incoming(stream, decoder)
    try:
        certificate = certificate_of(stream)
        if certificate is not None:
            await admission.check_member(peer, certificate)
        await stream.send(frames.encode(hello))
        welcome = await _welcome(stream, incoming, hello, admission, certificate)
    except (NotAdmittedError, ConfigError) as error:
        raise PeerRefusedError(f"what answers is not {peer}: {error}") from error
    return welcome, incoming.rest()


async def _welcome(
    stream: ByteStream,
    incoming: _Incoming,
    hello: Hello,
    admission: Admission,
    certificate: NodeCertificate | None,
) -> Welcome:
    """:raises NotAdmittedError: the frames before it are not as expected."""
    is_proved = certificate is not None
    while True:
        match await incoming.next():
            case Challenge() as challenge if not is_proved:
                await stream.send(frames.encode(_answer(challenge, hello, admission)))
                is_proved = True
            case Welcome() as welcome:
                if not is_proved and not admission.may_be_unproved(hello.receiver):
                    raise NotAdmittedError(_UNPROVED)
                return welcome
            case Refuse() as refusal:
                raise refused(refusal, hello.receiver)
            case frame:
                raise FrameError(f"{hello.receiver} answered Hello with {type(frame).__name__}")


def refused(refusal: Refuse, peer: CaptureId) -> MessagingError:
    kind = PeerMismatchError if refusal.reason is Reason.WRONG_RECEIVER else PeerRefusedError
    return kind(f"{peer} refuses: {refusal.text}")


def _answer(challenge: Challenge, hello: Hello, admission: Admission) -> Proof:
    """:raises NotAdmittedError: the other side's own proof is wrong."""
    if admission.key is None or len(challenge.nonce) != NONCE_BYTES:
        raise NotAdmittedError("it asks for a proof that this capture cannot give")
    terms = _terms(hello, challenge.nonce)
    if not admission.key.is_proof(challenge.proof, hello.key_id, Side.SERVER, terms):
        raise NotAdmittedError("its proof is wrong")
    return Proof(admission.key.proof(hello.key_id, Side.CLIENT, terms))


def _terms(hello: Hello, server_nonce: bytes) -> Terms:
    return Terms(
        sender=hello.sender,
        receiver=hello.receiver,
        connection=hello.connection,
        stream=hello.stream,
        version=(hello.major, hello.minor),
        client_nonce=hello.nonce,
        server_nonce=server_nonce,
    )

"""Admission: how this capture authenticates to others, and which of them may speak for the capture that they name.

    over TLS       the certificate's node and key match those that the metadata store has of the capture
    without        both sides prove that they hold the cluster's key (``capture.security.peer_key``)
    ``accepts_unproved``   members of v0.1.0, which cannot prove it, are accepted too, during a cluster's upgrade

In any case the capture must be a member. News of the store may be delayed, so an unknown capture is waited for briefly.
"""

from collections.abc import Callable
from dataclasses import dataclass

import anyio
from anyio.abc import ByteStream

from capture.messaging import tls as tls_streams
from capture.messaging.tls import NodeTls
from capture.security.certificates import NodeCertificate
from capture.security.peer_key import PeerKey
from reactor.ids import CaptureId

_POLL_S = 0.25


@dataclass(frozen=True, slots=True)
class Registered:
    """A member as the store has it. ``node``, ``keys``: its certificate's. ``proves``: it can prove that it has the
    cluster's key."""

    node: str = ""
    keys: tuple[str, ...] = ()
    proves: bool = False


Registry = Callable[[CaptureId], Registered | None]


class NotAdmittedError(Exception):
    """The other side is not what it claims, or does not prove it; the text gives the reason."""


class Admission:
    """``registry``: the members of the cluster; without one all peers are accepted, for tests. ``news_s``: how long a
    capture may be unknown here after it has registered."""

    def __init__(
        self,
        registry: Registry | None = None,
        *,
        key: PeerKey | None = None,
        tls: NodeTls | None = None,
        accepts_unproved: bool = False,
        news_s: float = 2.0,
    ) -> None:
        assert registry is None or key is not None, "whoever knows the members proves who it is"
        self._registry = registry
        self.key = key
        self.tls = tls
        self.accepts_unproved = accepts_unproved or registry is None
        self._news_s = news_s
        self._news = anyio.Event()

    def note_change(self) -> None:
        """Note that members have joined, left or changed."""
        self._news.set()
        self._news = anyio.Event()

    # streams

    async def secure_incoming(self, stream: ByteStream) -> ByteStream:
        """:raises NotAdmittedError: TLS is required, and its handshake fails."""
        if self.tls is None:
            return stream
        stream, is_tls = await tls_streams.looked_at(stream)
        if not is_tls and self.accepts_unproved:
            return stream
        if not is_tls:
            raise NotAdmittedError("it came without TLS")
        try:
            return await self.tls.serve(stream)
        except tls_streams.FAILED as error:
            raise NotAdmittedError(tls_streams.reason_of(error)) from error

    async def secure_outgoing(self, stream: ByteStream, peer: CaptureId) -> ByteStream:
        """:raises NotAdmittedError: the peer has no certificate of this cluster."""
        if self.tls is None or (self.accepts_unproved and not self._known(peer).node):
            return stream
        try:
            return await self.tls.connect(stream)
        except tls_streams.FAILED as error:
            raise NotAdmittedError(tls_streams.reason_of(error)) from error

    # decisions

    async def check_member(self, capture: CaptureId, certificate: NodeCertificate | None) -> Registered:
        """Check that the capture is a member, and the certificate's node.

        :raises NotAdmittedError: it is not, or lacks the certificate that it has registered.
        """
        if self._registry is None:
            return Registered()
        problem = ""
        with anyio.move_on_after(self._news_s):
            while problem := self._problem(capture, certificate):
                news = self._news
                with anyio.move_on_after(_POLL_S):
                    await news.wait()
        if problem:
            raise NotAdmittedError(problem)
        return self._known(capture)

    def may_be_unproved(self, capture: CaptureId) -> bool:
        """Return whether the capture is of a version without authentication."""
        return self.accepts_unproved and not self._known(capture).proves

    def _known(self, capture: CaptureId) -> Registered:
        return (self._registry(capture) if self._registry is not None else None) or Registered()

    def _problem(self, capture: CaptureId, certificate: NodeCertificate | None) -> str:
        assert self._registry is not None
        member = self._registry(capture)
        if member is None:
            return "it is no member of this cluster"
        if certificate is None:
            return f"it has registered as node {member.node}, and came without TLS" if member.node else ""
        if certificate.node != member.node:
            return f"its certificate is node {certificate.node}'s, and the capture is on {member.node or 'no node'}"
        if certificate.key not in member.keys:
            return f"the key of its certificate is not the one that node {member.node} has registered"
        return ""

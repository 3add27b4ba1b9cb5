"""Peer key: lets captures of one cluster prove to each other that they hold the same key, without sending it.

It is derived from the cluster's secret key and the cluster's id. A proof covers both sides' nonces, both captures' ids,
the number of the connection and the proving side, so it cannot be replayed on another connection, for another capture,
or reflected.
"""

import hmac
import secrets
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

NONCE_BYTES = 32
_PURPOSE = b"weir peer key 1"
_ID_BYTES = 8


class Side(StrEnum):
    """The proving side: the one that has connected, or the one that listens."""

    CLIENT = "client"
    SERVER = "server"


@dataclass(frozen=True, slots=True)
class Terms:
    """Everything both sides have declared about a connection before the proofs."""

    sender: str
    receiver: str
    connection: int
    stream: int
    version: tuple[int, int]
    client_nonce: bytes
    server_nonce: bytes


class PeerKey:
    """``secrets``: the cluster's secret keys, the current one first; two during a rotation."""

    def __init__(self, secrets: Sequence[bytes], *, cluster: str) -> None:
        assert secrets, "a cluster has a key"
        self._keys = {_id(key): key for key in (_derived(secret, cluster) for secret in secrets)}
        #: identifies the key without revealing it
        self.id = next(iter(self._keys))

    def knows(self, key_id: bytes) -> bool:
        return key_id in self._keys

    def proof(self, key_id: bytes, side: Side, terms: Terms) -> bytes:
        """:raises KeyError: there is no key of this id (see ``knows``)."""
        return hmac.digest(self._keys[key_id], _joined(side, terms), "sha256")

    def is_proof(self, proof: bytes, key_id: bytes, side: Side, terms: Terms) -> bool:
        """Return whether it proves the key of this id, which may have been removed since the greeting."""
        return self.knows(key_id) and hmac.compare_digest(proof, self.proof(key_id, side, terms))


def new_nonce() -> bytes:
    return secrets.token_bytes(NONCE_BYTES)


def _derived(secret: bytes, cluster: str) -> bytes:
    return HKDF(SHA256(), 32, salt=cluster.encode(), info=_PURPOSE).derive(secret)


def _id(key: bytes) -> bytes:
    return hmac.digest(key, b"id", "sha256")[:_ID_BYTES]


def _joined(side: Side, terms: Terms) -> bytes:
    numbers = struct.pack(">QQQQ", terms.connection, terms.stream, *terms.version)
    texts = (side.encode(), terms.sender.encode(), terms.receiver.encode())
    return b"".join(_prefixed((*texts, numbers, terms.client_nonce, terms.server_nonce)))


def _prefixed(parts: Iterable[bytes]) -> Iterable[bytes]:
    """Prefix lengths, so that different lists of parts give different bytes."""
    for part in parts:
        yield struct.pack(">I", len(part))
        yield part

"""An attacker on the cluster's network: what it tries at captures' ports, one line of JSON for each attempt's answer.

Run in a namespace of its own: ``python -m tests.acceptance.attacker FILE`` with what it has stolen or heard.
"""

import contextlib
import json
import socket
import ssl
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from capture.messaging import frames
from reactor.ids import CaptureId

_TIMEOUT_S = 15.0
_IDLE = 1_000


class Attacker:
    """``loot``: addresses, ids, directories of certificates, tokens."""

    def __init__(self, loot: dict[str, Any]) -> None:
        self.loot = loot

    def run(self) -> None:
        attempts: tuple[Callable[[], str], ...] = (
            self.without_tls,
            self.wrong_authority,
            self.right_authority_but_unregistered,
            self.registered_but_another,
            self.oversized,
            self.endless,
            self.no_token,
            self.revoked_token,
            self.rebound_name,
            self.idle,
        )
        for attempt in attempts:
            sys.stdout.write(json.dumps([attempt.__name__, attempt()]) + "\n")
            sys.stdout.flush()

    def without_tls(self) -> str:
        return self._greet(self._plain("peer"))

    def wrong_authority(self) -> str:
        return self._greet_as("theirs", "node-0")

    def right_authority_but_unregistered(self) -> str:
        return self._greet_as("ours", "mallory")

    def registered_but_another(self) -> str:
        return self._greet_as("ours", self.loot["another"])

    def oversized(self) -> str:
        with self._plain("peer") as wire:
            wire.sendall(b"\x00\xff\xff\xff\x01" + b"x" * 4096)
            return _rest(wire)

    def endless(self) -> str:
        with self._plain("peer") as wire, contextlib.suppress(OSError):
            for _ in range(5_000):
                wire.sendall(b"\x16" * 65_536)
            return "read to its end"
        return "closed"

    def no_token(self) -> str:
        return self._ask("")

    def revoked_token(self) -> str:
        return self._ask(f"Authorization: Bearer {self.loot['revoked']}\r\n")

    def rebound_name(self) -> str:
        return self._ask(f"Authorization: Bearer {self.loot['token']}\r\n", host="evil.example")

    def idle(self) -> str:
        kept = []
        for place in ("peer", "api"):
            for _ in range(_IDLE // 2):
                with contextlib.suppress(OSError):
                    kept.append(self._plain(place))
        for one in kept:
            one.close()
        return f"{len(kept)} made"

    def _plain(self, place: str) -> socket.socket:
        host, _, port = self.loot[place].rpartition(":")
        return socket.create_connection((host, int(port)), timeout=_TIMEOUT_S)

    def _greet_as(self, authority: str, node: str) -> str:
        directory = Path(self.loot[authority])
        context = ssl.create_default_context(cafile=Path(self.loot["ours"]) / "ca.pem")
        context.check_hostname = False
        context.load_cert_chain(directory / f"{node}.pem", directory / f"{node}.key")
        try:
            return self._greet(context.wrap_socket(self._plain("peer")))
        except OSError as error:
            return type(error).__name__

    def _greet(self, wire: socket.socket) -> str:
        """In the name of the capture that owns the cluster."""
        owner, receiver = CaptureId(self.loot["owner"]), CaptureId(self.loot["receiver"])
        decoder = frames.Decoder()
        try:
            wire.sendall(frames.encode(frames.Hello(owner, receiver, 10**15, 10**15)))
            while data := wire.recv(65_536):
                if came := decoder.feed(data):
                    return type(came[0]).__name__
        except OSError as error:
            return type(error).__name__
        finally:
            wire.close()
        return "closed"

    def _ask(self, header: str, *, host: str = "localhost") -> str:
        context = ssl.create_default_context(cafile=Path(self.loot["ours"]) / "ca.pem")
        context.check_hostname = False
        with context.wrap_socket(self._plain("api")) as wire:
            request = f"POST /api/v2/owner/resign HTTP/1.1\r\nHost: {host}\r\n{header}Content-Length: 0\r\n\r\n"
            wire.sendall(request.encode())
            return wire.recv(64).split(b"\r\n")[0].decode()


def _rest(wire: socket.socket) -> str:
    with contextlib.suppress(OSError):
        while wire.recv(65_536):
            pass
    return "closed"


if __name__ == "__main__":
    Attacker(json.loads(Path(sys.argv[1]).read_text())).run()

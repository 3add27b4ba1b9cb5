"""An attacker on the cluster's network: what it tries at captures' ports, one line of JSON for each attempt's answer.

Run in a namespace of its own: ``python -m tests.acceptance.attacker FILE`` with what it has stolen or heard.
"""

import contextlib
import json
import queue
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
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
            self.replayed_hello,
            self.oversized,
            self.endless,
            self.no_token,
            self.revoked_token,
            self.rebound_name,
            self.page_in_a_browser,
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

    def replayed_hello(self) -> str:
        """What a member has sent to this port, as it was heard on the wire."""
        try:
            with self._plain("peer") as wire:
                wire.sendall(bytes.fromhex(self.loot["heard"]))
                return _rest(wire)
        except OSError as error:
            return type(error).__name__

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

    def page_in_a_browser(self) -> str:
        """A page of this host's, whose scripts and forms call the API: what came of each, and "no browser" without."""
        browser = shutil.which("chromium") or shutil.which("google-chrome")
        if browser is None:
            return "no browser"
        with Site(PAGE.replace("API", f"https://{self.loot['api']}")) as site, tempfile.TemporaryDirectory() as profile:
            options = ("--headless", "--no-sandbox", "--disable-gpu", "--ignore-certificate-errors", "--no-first-run")
            command = [browser, *options, "--disable-dev-shm-usage", f"--user-data-dir={profile}", site.url]
            with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as shown:
                try:
                    return site.reported.get(timeout=90)
                finally:
                    shown.kill()

    def idle(self) -> str:
        """Connections that say nothing, each held until the other side closes it: how many were."""
        kept = []
        for place in ("peer", "api"):
            for _ in range(_IDLE // 2):
                with contextlib.suppress(OSError):
                    kept.append(self._plain(place))
        closed = 0
        for one in kept:
            with one, contextlib.suppress(TimeoutError):
                closed += _is_closed(one)
        return f"{closed} of {len(kept)} closed"

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


PAGE = """<!doctype html><body><script>
const late = new Promise(done => setTimeout(() => done("nothing happened"), 5000)), came = [];
async function tried(work) {
  try { came.push(await Promise.race([work(), late])); } catch (error) { came.push("blocked"); }
}
function sent(element, start) {
  return new Promise(done => { element.onload = element.onerror = () => done("unreadable");
    document.body.append(element); start(); });
}
(async () => {
  for (const mode of ["cors", "no-cors"]) for (const type of ["text/plain", "application/json"])
    await tried(async () => { const answer = await fetch("API/api/v2/owner/resign",
      {method: "POST", mode, body: "{}", credentials: "include", headers: {"Content-Type": type}});
      return answer.type === "opaque" ? "unreadable" : "answered " + answer.status; });
  await tried(async () => { const answer = await fetch("API/api/v2/changefeeds"); return "read " + answer.status; });
  const form = document.createElement("form"), frame = document.createElement("iframe");
  frame.name = "frame"; Object.assign(form, {action: "API/api/v2/owner/resign", method: "post", target: "frame"});
  document.body.append(form); await tried(() => sent(frame, () => form.submit()));
  await tried(() => sent(Object.assign(new Image(), {src: "API/api/v2/changefeeds"}), () => 0));
  await fetch("/", {method: "POST", body: came.join(", ")});
})();
</script>"""


class Site:
    """A web site on this host: it serves one page, and keeps what the page sends back."""

    def __init__(self, page: str) -> None:
        self.reported: queue.Queue[str] = queue.Queue()
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer(page.encode())

            def do_POST(self) -> None:
                site.reported.put(self.rfile.read(int(self.headers["Content-Length"])).decode())
                self._answer(b"")

            def _answer(self, body: bytes) -> None:
                self.send_response(200)
                self.send_header("Content-Type", "text/html")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Standard error belongs to the attack."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/"

    def __enter__(self) -> "Site":
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def _is_closed(wire: socket.socket) -> bool:
    """:raises TimeoutError: it stays open."""
    with contextlib.suppress(ConnectionError):
        while wire.recv(65_536):  # TLS may say why it is closed
            pass
    return True


def _rest(wire: socket.socket) -> str:
    with contextlib.suppress(OSError):
        while wire.recv(65_536):
            pass
    return "closed"


if __name__ == "__main__":
    Attacker(json.loads(Path(sys.argv[1]).read_text())).run()

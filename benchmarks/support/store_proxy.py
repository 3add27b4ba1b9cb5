"""Store proxy: in front of an object store's server, counts requests, delays them, and rejects some as a store under
load does."""

import http.client
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

_SLOW_DOWN = (
    b"<?xml version='1.0'?><Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
)


@dataclass(frozen=True, slots=True)
class Request:
    """``path`` includes the query."""

    method: str
    path: str
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers.items() if key.lower() == name.lower()), None)


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


class StoreProxy:
    """``delay_s`` is added to each request."""

    def __init__(self, server_port: int) -> None:
        self.delay_s = 0.0
        #: how many of the next requests get ``refusal``, 503 SlowDown or 429
        self.refusing = 0
        self.refusal = 503
        self._server_port = server_port
        self._requests: list[tuple[str, str]] = []
        self._lock = threading.Lock()
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                time.sleep(proxy.delay_s)
                if proxy.take(self.command, self.path):
                    answer = Answer(proxy.refusal, {}, _SLOW_DOWN)
                else:
                    answer = proxy.forward(Request(self.command, self.path, dict(self.headers.items()), body))
                self.send_response(answer.status)
                for name, value in answer.headers.items():
                    if name.lower() not in ("transfer-encoding", "content-length", "connection", "date", "server"):
                        self.send_header(name, value)
                length = answer.headers.get("Content-Length") if self.command == "HEAD" else str(len(answer.body))
                self.send_header("Content-Length", length or "0")
                self.end_headers()
                self.wfile.write(answer.body)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_any

            def log_message(self, format: str, *args: object) -> None:
                """Log nothing."""

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

        self._server = Server(("127.0.0.1", 0), Handler)

    def forward(self, request: Request) -> Answer:
        """Return the server's answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self._server_port, timeout=60)
        try:
            connection.putrequest(request.method, request.path, skip_host=True, skip_accept_encoding=True)
            for name, value in request.headers.items():
                connection.putheader(name, value)
            connection.endheaders(request.body or None)
            answer = connection.getresponse()
            return Answer(answer.status, dict(answer.getheaders()), answer.read())
        finally:
            connection.close()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def take(self, method: str, path: str) -> bool:
        """Count a request; return whether to reject it."""
        with self._lock:
            self._requests.append((method, path))
            self.refusing -= (is_refused := self.refusing > 0)
            return is_refused

    def taken(self) -> list[tuple[str, str]]:
        """Return the requests since the last call."""
        with self._lock:
            taken, self._requests = self._requests, []
        return [(_kind(method, path), urlsplit(path).path) for method, path in taken]

    def counted(self) -> Counter[str]:
        return Counter(kind for kind, _ in self.taken())

    @contextmanager
    def running(self) -> Iterator["StoreProxy"]:
        thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()
            thread.join()


def _kind(method: str, path: str) -> str:
    return "LIST" if method == "GET" and "list-type=" in urlsplit(path).query else method

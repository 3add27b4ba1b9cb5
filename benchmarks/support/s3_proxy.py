"""S3 proxy: in front of an S3 server, counts requests, delays them, and rejects some as a store under load does."""

import http.client
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

_SLOW_DOWN = (
    b"<?xml version='1.0'?><Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
)


class S3Proxy:
    """``requests``: method and path of each, in order of completion. ``delay_s`` is added to each one."""

    def __init__(self, server_port: int) -> None:
        self.delay_s = 0.0
        #: how many of the next requests get 503 SlowDown
        self.refusing = 0
        self._requests: list[tuple[str, str]] = []
        self._lock = threading.Lock()
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                time.sleep(proxy.delay_s)
                if proxy.take(self.command, self.path):
                    self.send_response(503)
                    self.send_header("Content-Length", str(len(_SLOW_DOWN)))
                    self.end_headers()
                    self.wfile.write(_SLOW_DOWN)
                    return
                connection = http.client.HTTPConnection("127.0.0.1", server_port, timeout=60)
                connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
                for name, value in self.headers.items():
                    connection.putheader(name, value)
                connection.endheaders(body or None)
                answer = connection.getresponse()
                content = answer.read()
                self.send_response(answer.status)
                for name, value in answer.getheaders():
                    if name.lower() not in ("transfer-encoding", "content-length", "connection", "date", "server"):
                        self.send_header(name, value)
                length = answer.getheader("Content-Length") if self.command == "HEAD" else str(len(content))
                self.send_header("Content-Length", length or "0")
                self.end_headers()
                self.wfile.write(content)
                connection.close()

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_any

            def log_message(self, format: str, *args: object) -> None:
                """Log nothing."""

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

        self._server = Server(("127.0.0.1", 0), Handler)

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
    def running(self) -> Iterator["S3Proxy"]:
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

"""API over TLS: this node's certificate, reloaded when its files change, and the handshakes."""

import ssl
from pathlib import Path

import anyio
import structlog

from capture.api.handshakes import Handshakes
from capture.config import ServerSettings
from capture.errors import ConfigError
from capture.messaging.tls import stamps_of
from reactor.tls import load_pair

_POLL_S = 2.0

_log = structlog.get_logger()


class ApiTls:
    """``handshakes`` is None if the settings name no certificate. All connections share one context: reloading the
    chain affects future ones."""

    def __init__(self, settings: ServerSettings) -> None:
        """:raises ConfigError: the files cannot be used."""
        self._files: tuple[Path, ...] = tuple(
            file for file in (settings.tls_cert_file, settings.tls_key_file) if settings.has_tls and file is not None
        )
        self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH) if self._files else None
        self.handshakes = Handshakes(self._context) if self._context else None
        self._stopped = anyio.Event()
        self._seen = stamps_of(self._files)
        if self._context is not None:
            self._load(self._context)

    async def renew(self) -> None:
        """Run until ``stop``."""
        problem = ""
        while self._context is not None and not self._stopped.is_set():
            seen = stamps_of(self._files)
            try:
                if seen != self._seen:
                    self._load(ssl.create_default_context(ssl.Purpose.CLIENT_AUTH))  # test with another context first
                    self._load(self._context)
                    self._seen, problem = seen, ""
            except ConfigError as error:
                if str(error) != problem:
                    _log.warning("the API's certificate is not renewed", cause=str(error))
                problem = str(error)
            with anyio.move_on_after(_POLL_S):
                await self._stopped.wait()

    def stop(self) -> None:
        self._stopped.set()
        if self.handshakes is not None:
            self.handshakes.stop()

    def _load(self, context: ssl.SSLContext) -> None:
        try:
            load_pair(context, self._files[0], self._files[1])
        except OSError as error:  # ssl.SSLError is one
            raise ConfigError(f"TLS files cannot be used ({error}); check tls-cert-file and tls-key-file") from error

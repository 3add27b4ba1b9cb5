"""TLS refusal: asks a server once more, by hand, why it and this client do not come together; gRPC does not say."""

import socket
import ssl
from typing import Final
from urllib.parse import urlsplit

from reactor.settings import TlsFiles
from reactor.tls import load_pair, untrusted, words_of

#: how long a server that has refused our certificate takes to say so, behind its own part of the handshake
_ALERT_S: Final = 0.2
_CURE: Final = "; correct the TLS files (etcd-ca-file, etcd-cert-file, etcd-key-file) or the server's"


def tls_refusal(endpoint: str, tls: TlsFiles | None, timeout_s: float) -> str:
    """Why TLS with ``endpoint`` fails; empty where it does not, or nobody answers at all. Blocks for ``timeout_s``."""
    parts = urlsplit(endpoint)
    if parts.scheme != "https":
        return ""
    try:
        context = _context(tls)
        with (
            socket.create_connection((parts.hostname or "", parts.port or 0), timeout_s) as plain,
            context.wrap_socket(plain, server_hostname=parts.hostname) as secured,
        ):
            secured.settimeout(_ALERT_S)
            secured.recv(1)
    except ssl.SSLCertVerificationError as error:
        return untrusted(error, f"etcd at {endpoint}", "etcd-ca-file")
    except ssl.SSLError as error:
        return f"etcd at {endpoint} refuses TLS with this client ({words_of(error)}){_CURE}"
    except ConnectionResetError:  # a server without TLS closes with bytes unread, which can arrive as a reset
        return f"etcd at {endpoint} refuses TLS with this client (connection reset){_CURE}"
    except OSError:
        return ""
    return ""


def _context(tls: TlsFiles | None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=tls.ca if tls else None)
    context.set_alpn_protocols(["h2"])
    if tls and tls.cert:
        load_pair(context, tls.cert, tls.key)
    return context

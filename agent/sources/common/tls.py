"""TLS without verification: what modes that only encrypt use (``require``, ``prefer`` and their like)."""

import functools
import ssl


@functools.cache
def unverified() -> ssl.SSLContext:
    """Return the context that encrypts and trusts any certificate; do not change it. Python's default context would
    read all authorities of the system first, which takes longer than the rest of a connection."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context

"""TLS without verification: what modes that only encrypt use (``require``, ``prefer`` and their like)."""

import ssl


def unverified() -> ssl.SSLContext:
    """A context that encrypts and trusts any certificate. Python's default context would read all authorities of the
    system first, which takes longer than the rest of a connection."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context

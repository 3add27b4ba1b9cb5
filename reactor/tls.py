"""TLS in every client: key pairs are loaded without a question on the terminal, and a refusal says what to do."""

import ssl
from pathlib import Path
from typing import Final

#: OpenSSL's numbers of what a certificate may be refused for: its time, and its names
_TIME: Final = frozenset({9, 10})
_NAME: Final = frozenset({62, 64})


def load_pair(context: ssl.SSLContext, certificate: Path | str, key: Path | str | None) -> None:
    """:raises OSError: the files cannot be used, among them a key that is encrypted; ``ssl.SSLError`` is one."""

    def refuse() -> str:
        raise ssl.SSLError(f"the key in {key or certificate} has a passphrase; take it off with openssl pkey")

    context.load_cert_chain(certificate, key, password=refuse)


def untrusted(error: ssl.SSLCertVerificationError, whose: str, option: str) -> str:
    """Return why the certificate of ``whose`` is refused, and the cure. ``option``: what names the authority here."""
    if error.verify_code in _TIME:
        cure = "renew it there, or correct this machine's clock"
    elif error.verify_code in _NAME:
        cure = "connect to a name or address that it has, or have it made again with this one"
    else:
        cure = f"name its authority with {option}, or let the server send the certificates between the two, too"
    return f"the certificate of {whose} is not trusted ({error.verify_message.rstrip('.')}); {cure}"


def tls_failure(error: BaseException) -> ssl.SSLError | None:
    """Return the failure of TLS that ``error`` comes from, if it does."""
    link: BaseException | None = error
    while link is not None and not isinstance(link, ssl.SSLError):
        link = link.__cause__ or link.__context__
    return link


def words_of(error: ssl.SSLError) -> str:
    """Return what failed, in a few words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message.rstrip(".")
    reason = getattr(error, "reason", None)  # none where the error is our own
    return reason.replace("_", " ").lower() if reason else str(error)

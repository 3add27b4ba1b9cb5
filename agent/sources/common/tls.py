"""TLS of sources: contexts made from what a source's URI names.

Authority, certificate and key are paths of PEM files, or PEM texts: a reference (``file:NAME``, ``env:NAME``) is
resolved to its text, so such a file need not be on every machine that connects to the source.
"""

import functools
import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from agent.errors import SourceAuthError, SourceConfigError, SourceError, SourceUnreachableError
from agent.references import is_pem
from reactor.tls import load_pair, untrusted, words_of


@dataclass(frozen=True, slots=True)
class TlsNames:
    """The URI's names of the three parameters, for errors."""

    authority: str
    certificate: str
    key: str


@dataclass(frozen=True, slots=True)
class TlsMaterial:
    """The authority to trust, and the client's own certificate with its key; empty: none.

    Without ``key`` the certificate's file or text has it, too.
    """

    authority: str = ""
    certificate: str = field(default="", repr=False)
    key: str = field(default="", repr=False)

    def refuse_unusable(self, names: TlsNames, *, is_encrypted: bool, cure: str) -> None:
        """:raises SourceConfigError: a certificate would not be used, or a key has none."""
        if self.key and not self.certificate:
            raise SourceConfigError(f"{names.key} needs its certificate; give {names.certificate}")
        if self.certificate and not is_encrypted:
            raise SourceConfigError(f"{names.certificate} is used with TLS only; {cure}")


NO_MATERIAL: Final = TlsMaterial()


@functools.cache
def unverified() -> ssl.SSLContext:
    """Return the context that encrypts and trusts any certificate; do not change it. Python's default context would
    read all authorities of the system first, which takes longer than the rest of a connection."""
    return make_context(NO_MATERIAL, TlsNames("", "", ""), is_verified=False, checks_host=False)


def make_context(material: TlsMaterial, names: TlsNames, *, is_verified: bool, checks_host: bool) -> ssl.SSLContext:
    """Return a client's context. Without an authority those of the system are trusted.

    :raises SourceConfigError: something that the URI names cannot be used; the text has its parameter.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = checks_host
    context.verify_mode = ssl.CERT_REQUIRED if is_verified else ssl.CERT_NONE
    if is_verified:
        _trust(context, material.authority, names.authority)
    if material.certificate:
        _present(context, material, names)
    return context


def handshake_refusal(error: ssl.SSLError, target: object, names: TlsNames, mode: str) -> SourceError:
    """Return the error to raise for a handshake that failed. ``mode``: the URI's name of that parameter."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return SourceAuthError(untrusted(error, str(target), names.authority))
    if isinstance(error, (ssl.SSLEOFError, ssl.SSLZeroReturnError)):
        return SourceUnreachableError(
            f"{target} ended the TLS session while connecting; see that it runs, and whether it asks for a client's "
            f"certificate ({names.certificate}, {names.key}) that it trusts"
        )
    alert = error.reason if error.reason and "ALERT" in error.reason else ""
    if "CERTIFICATE" in alert or "UNKNOWN_CA" in alert:
        return SourceAuthError(
            f"{target} asks for a client's certificate, or does not trust it ({words_of(error)}); give one that it "
            f"trusts with {names.certificate} and {names.key}"
        )
    return SourceConfigError(f"no TLS session with {target}: {words_of(error)}; check {mode}")


def _trust(context: ssl.SSLContext, authority: str, name: str) -> None:
    if not authority:
        context.load_default_certs()
        return
    try:
        if is_pem(authority):
            context.load_verify_locations(cadata=authority)
        else:
            context.load_verify_locations(authority)
    except (OSError, ValueError) as error:
        raise SourceConfigError(f"{name} {_shown(authority)} cannot be read; name a PEM file") from error


def _present(context: ssl.SSLContext, material: TlsMaterial, names: TlsNames) -> None:
    try:
        with _as_file(material.certificate) as certificate, _as_file(material.key) as key:
            load_pair(context, certificate, key or None)
    except (OSError, ValueError) as error:
        cause = words_of(error) if isinstance(error, ssl.SSLError) else getattr(error, "strerror", "") or "no path"
        beside = f" with {names.key} {_shown(material.key)}" if material.key else ""
        raise SourceConfigError(
            f"{names.certificate} {_shown(material.certificate)}{beside} cannot be used ({cause.lower()}); "
            "name PEM files of a certificate and its key"
        ) from error


@contextmanager
def _as_file(named: str) -> Iterator[str]:
    """Yield a path. OpenSSL reads keys from files only: a text becomes a file in memory, which ends with the block."""
    if not is_pem(named):
        yield named
        return
    with open(os.memfd_create("pem"), "wb", buffering=0) as file:
        file.write(named.encode())
        yield f"/proc/self/fd/{file.fileno()}"


def _shown(named: str) -> str:
    return "(given as text)" if is_pem(named) else named

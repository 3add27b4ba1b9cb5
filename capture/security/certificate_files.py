"""Certificate files: a directory with the cluster's authority and its nodes' certificates; keys have mode 0600.

ca.pem, ca.key         the authority: every node has ca.pem; ca.key is needed only to issue certificates NODE.pem,
NODE.key     a node's own
"""

import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from capture.errors import ConfigError
from capture.security import certificates
from capture.security.certificates import Issued, NodeCertificate
from reactor.files import read_bounded
from reactor.settings import TlsFiles

_CA = "ca"
_SHARED = "weir"
#: a capture may run for as long without a restart
_LEFT_S = 365 * 86_400


class CertificateFiles:
    """The files below one directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def init(self, cluster: str) -> tuple[Path, Path]:
        """Create an authority.

        :raises ConfigError: one exists, or the files cannot be written.
        """
        certificate, key = self.files(_CA)
        if existing := next((path for path in (certificate, key) if path.exists()), None):
            raise ConfigError(f"{existing} exists; choose another --dir, or remove it and issue all nodes again")
        self._write(_CA, certificates.new_authority(cluster))
        return certificate, key

    def issue(self, node: str, hosts: Sequence[str], *, days: int) -> tuple[Path, NodeCertificate]:
        """:raises ConfigError: there is no authority here, or the node has a certificate already."""
        certificate, _ = self.files(certificates.parse_node(node))
        if certificate.exists():
            raise ConfigError(f"{certificate} exists already; use `weir certs renew {node}`")
        made = certificates.issue(self._authority(), node, hosts, days=days)
        self._write(node, made)
        return certificate, certificates.read(made.certificate)

    def renew(self, node: str, *, days: int) -> tuple[Path, NodeCertificate]:
        """Create a new key and certificate for the same names.

        :raises ConfigError: the node has none.
        """
        certificate, _ = self.files(certificates.parse_node(node))
        made = certificates.renewed(self._authority(), _read(certificate), days=days)
        self._write(node, made)
        return certificate, certificates.read(made.certificate)

    def make_shared(self, host: str) -> None:
        """Create an authority for one certificate, and forget its key. The certificate comes last: without it all are
        made again."""
        authority = certificates.new_authority("of one machine")
        made = certificates.issue(authority, _SHARED, [host], days=certificates.CA_DAYS)
        self._write(_CA, authority, with_key=False)
        self._write(_SHARED, made)

    def files(self, name: str) -> tuple[Path, Path]:
        return self._directory / f"{name}.pem", self._directory / f"{name}.key"

    def _authority(self) -> Issued:
        certificate, key = self.files(_CA)
        return Issued(_read(certificate), _read(key))

    def _write(self, name: str, made: Issued, *, with_key: bool = True) -> None:
        """Write the key first: a reader between the two writes finds a mismatch, and reads again."""
        certificate, key = self.files(name)
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            if with_key:
                _replace(key, made.key, mode=0o600)
            _replace(certificate, made.certificate, mode=0o644)
        except OSError as error:
            raise ConfigError(f"cannot write to {self._directory} ({error.strerror}); choose another --dir") from error


def own_certificate(directory: Path, *, host: str = "127.0.0.1") -> TlsFiles:
    """Return a certificate that a server at ``host`` and its clients share; make it if there is none, or if it has no
    year left. Nobody has its authority's key, so it has no other.

    :raises ConfigError: it cannot be read or written.
    """
    files = CertificateFiles(directory)
    authority, (certificate, key) = files.files(_CA)[0], files.files(_SHARED)
    if not (authority.exists() and key.exists() and _lasts(certificate)):
        files.make_shared(host)
    return TlsFiles(str(authority), str(certificate), str(key))


def _lasts(certificate: Path) -> bool:
    try:
        return certificates.read(certificate.read_bytes()).ends_at - time.time() > _LEFT_S
    except (OSError, ConfigError):
        return False


def _read(path: Path) -> bytes:
    try:
        return read_bounded(path)
    except OSError as error:
        cure = "make it with `weir certs init`" if path.stem == _CA else f"make it with `weir certs issue {path.stem}`"
        raise ConfigError(f"cannot read {path} ({error.strerror}); {cure}, or give its --dir") from None


def _replace(path: Path, content: bytes, *, mode: int) -> None:
    """Replace the file atomically."""
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:  # 0600 from its first byte on
        file.write(content)
        file.flush()
        os.fchmod(file.fileno(), mode)
    os.replace(file.name, path)

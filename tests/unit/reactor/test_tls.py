"""A TLS key with a passphrase is refused: OpenSSL would ask for it on the terminal, and wait."""

import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from capture.api.tls import ApiTls
from capture.config import load_server_settings
from capture.messaging.tls import NodeTls, Tls
from capture.security.certificate_files import CertificateFiles
from reactor.errors import WeirError
from reactor.settings import TlsFiles
from reactor.store.etcd.tls_refusal import tls_refusal
from reactor.store.sql.mysql.target import parse


def _peers(ca: Path, certificate: Path, key: Path) -> None:
    NodeTls(Tls(ca, certificate, key))


def _api(ca: Path, certificate: Path, key: Path) -> None:
    ApiTls(load_server_settings(tls_ca_file=ca, tls_cert_file=certificate, tls_key_file=key))


def _mysql(ca: Path, certificate: Path, key: Path) -> None:
    parse(f"mysql://u@h/d?ssl-mode=verify_ca&ssl-ca={ca}&ssl-cert={certificate}&ssl-key={key}")


def _etcd(ca: Path, certificate: Path, key: Path) -> None:
    raise WeirError(tls_refusal("https://127.0.0.1:1", TlsFiles(str(ca), str(certificate), str(key)), 1.0))


@pytest.mark.parametrize("use", [_peers, _api, _mysql, _etcd])
async def test_a_key_with_a_passphrase_is_refused(use: Callable[[Path, Path, Path], None], tmp_path: Path) -> None:
    files = CertificateFiles(tmp_path)
    ca, _ = files.init("c")
    certificate, _ = files.issue("a", ["127.0.0.1"], days=1)
    key = certificate.with_suffix(".key")
    secret = load_pem_private_key(key.read_bytes(), None)
    key.write_bytes(secret.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"geheim")))
    with pytest.raises((WeirError, ssl.SSLError), match=rf"the key in {key} has a passphrase; take it off"):
        use(ca, certificate, key)

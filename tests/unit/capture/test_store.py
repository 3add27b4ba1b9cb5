"""Store of a capture: what is configured for TLS with etcd is used, and a password is not sent in clear."""

import pytest

from capture.config import load_server_settings
from capture.errors import ConfigError
from capture.store import etcd_tls
from reactor.settings import TlsFiles

ALL = {"etcd_ca_file": "/ca", "etcd_cert_file": "/c", "etcd_key_file": "/k"}


@pytest.mark.parametrize(
    ("given", "files"),
    [
        ({"etcd": "http://db:2379"}, None),
        ({"etcd": "db:2379"}, None),
        ({"etcd": "https://db:2379"}, None),
        ({"etcd": "https://db:2379", "etcd_ca_file": "/ca"}, TlsFiles("/ca")),
        ({"etcd": "db:2379", **ALL}, TlsFiles("/ca", "/c", "/k")),
        ({"etcd": "https://db:2379", "etcd_password": "geheim"}, None),
        ({"etcd": "http://127.0.0.1:2379,http://[::1]:2379,http://localhost:1", "etcd_password": "geheim"}, None),
        ({"etcd": "http://db:2379", "etcd_password": "geheim", "insecure": True}, None),
        ({"store": "sqlite", **ALL}, TlsFiles("/ca", "/c", "/k")),
    ],
)
def test_files_for_tls(given: dict[str, object], files: TlsFiles | None) -> None:
    assert etcd_tls(load_server_settings(**given)) == files


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"etcd": "http://db:2379", "etcd_ca_file": "/ca"}, "etcd-ca-file is given, and http://db:2379 is without TLS"),
        ({"etcd": "https://a:1,http://b:2", **ALL}, "etcd-ca-file is given, and http://b:2 is without TLS"),
        ({"etcd": "https://db:2379", "etcd_cert_file": "/c"}, "etcd-cert-file and etcd-key-file belong together"),
        ({"etcd": "https://db:2379", "etcd_cert_file": "/c", "etcd_key_file": "/k"}, "give etcd-ca-file"),
        ({"etcd": "http://db:2379", "etcd_password": "geheim"}, "sent to http://db:2379 in clear; use https://, or"),
        ({"etcd": "http://127.0.0.1:1,10.0.0.1:2", "etcd_password": "geheim"}, "sent to http://10.0.0.1:2 in clear"),
        ({"store": "http://db:2379", "etcd_password": "env:NONE"}, "sent to http://db:2379 in clear"),
    ],
)
def test_what_would_not_be_used_or_protected_is_refused(given: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        etcd_tls(load_server_settings(**given))
    assert "geheim" not in str(caught.value)

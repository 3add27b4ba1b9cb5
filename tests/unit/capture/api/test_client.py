"""The client before a server whose certificate is wrong, or which speaks the other of HTTP and HTTPS."""

from pathlib import Path

import pytest
from anyio import to_thread

from capture.api.client import Client
from capture.errors import ServerUnreachableError
from tests.unit.capture.api.test_connections import served
from tests.unit.reactor import certificates
from tests.unit.reactor.certificates import SERVERS


async def asked(url: str, *, token: str, ca_file: str = "") -> object:
    def ask() -> object:
        with Client(url, token=token, ca_file=ca_file) as client:
            return client.list()

    return await to_thread.run_sync(ask)


@pytest.mark.parametrize("case", SERVERS)
async def test_a_wrong_certificate_is_named_with_its_cure(case: str, tmp_path: Path) -> None:
    root = certificates.authority(tmp_path)
    made = certificates.server(root, case)
    own = {"tls_cert_file": made.certificate_file, "tls_key_file": made.key_file}
    async with served(tmp_path / "data", tls_ca_file=root.certificate_file, **own) as member:
        url, token = f"https://{member.settings.addr}", member.own_token.value
        if SERVERS[case]:
            with pytest.raises(ServerUnreachableError, match=rf"^the certificate of {url} is not .*{SERVERS[case]}"):
                await asked(url, token=token, ca_file=root.certificate_file)
        else:
            assert await asked(url, token=token, ca_file=root.certificate_file) == []
            with pytest.raises(ServerUnreachableError, match="name its authority with --ca-file"):
                await asked(url, token=token)
            with pytest.raises(ServerUnreachableError, match=r"breaks off; one with a certificate wants https://"):
                await asked(f"http://{member.settings.addr}", token=token)


async def test_a_server_without_a_certificate_that_is_asked_for_one(tmp_path: Path) -> None:
    async with served(tmp_path) as member:
        url = f"https://{member.settings.addr}"
        with pytest.raises(ServerUnreachableError, match=rf"^no TLS session with {url} \(.*; use http:// if"):
            await asked(url, token=member.own_token.value)

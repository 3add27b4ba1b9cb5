"""TLS to etcd: the server is checked, and a client certificate is shown."""

import re
import socket
import struct
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from capture.embedded import etcd as embedded
from capture.embedded import places
from reactor.errors import StoreUnreachableError
from reactor.settings import TlsFiles
from reactor.store.etcd import connect
from reactor.store.etcd.tls_refusal import tls_refusal
from tests.patience import patient
from tests.unit.reactor.certificates import Identity, identity


@contextmanager
def tls_etcd(directory: Path, *, ca: Identity, server: Identity) -> Iterator[str]:
    """An etcd that asks every client for a certificate of ``ca``'s; its URL."""
    url, peer = f"https://127.0.0.1:{places.free_port()}", f"http://127.0.0.1:{places.free_port()}"
    command: list[str | Path] = [embedded.binary(), "--data-dir", directory / "data", "--unsafe-no-fsync"]
    command += ["--listen-client-urls", url, "--advertise-client-urls", url, "--log-level", "error"]
    command += [
        "--listen-peer-urls",
        peer,
        "--initial-advertise-peer-urls",
        peer,
        "--initial-cluster",
        f"default={peer}",
    ]
    command += ["--cert-file", server.certificate_file, "--key-file", server.key_file]
    command += ["--trusted-ca-file", ca.certificate_file, "--client-cert-auth"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield url
    finally:
        process.kill()
        process.wait()


@pytest.mark.matrix
async def test_a_client_with_a_certificate_is_let_in_and_others_are_not(tmp_path: Path) -> None:
    ca = identity(tmp_path, "ca")
    server, user = identity(tmp_path, "server", issuer=ca), identity(tmp_path, "user", issuer=ca)
    stranger = identity(tmp_path, "stranger")
    with tls_etcd(tmp_path, ca=ca, server=server) as url:
        good = TlsFiles(ca.certificate_file, user.certificate_file, user.key_file)
        client = await connect([url.removeprefix("https://")], tls=good, timeout_s=20)
        try:
            await client.put("/a", b"1")
        finally:
            await client.close()
        for tls, reason in (
            (TlsFiles(ca.certificate_file), "refuses TLS with this client"),
            (TlsFiles(stranger.certificate_file, user.certificate_file, user.key_file), "the certificate of etcd at"),
            (
                TlsFiles(ca.certificate_file, stranger.certificate_file, stranger.key_file),
                "refuses TLS with this client",
            ),
        ):
            with pytest.raises(StoreUnreachableError, match=re.escape(reason)) as refused:
                await connect([url], tls=tls, timeout_s=patient(1))
            assert "no etcd answers" not in str(refused.value)
        nobody = f"https://127.0.0.1:{places.free_port()}"
        with pytest.raises(StoreUnreachableError, match="no etcd answers within"):
            await connect([nobody], tls=good, timeout_s=1)


async def test_a_server_without_tls_is_named(tmp_path: Path) -> None:
    ca = identity(tmp_path, "ca")
    refused = pytest.raises(StoreUnreachableError, match="refuses TLS with this client")
    with embedded.EmbeddedEtcd(tmp_path / "etcd") as plain, refused:
        await connect([plain.url.replace("http:", "https:")], tls=TlsFiles(ca.certificate_file), timeout_s=patient(1))


async def test_a_server_that_resets_the_connection_is_named(tmp_path: Path) -> None:
    """As one without TLS does that closes before it has read the whole greeting."""
    ca = identity(tmp_path, "ca")
    with closing(socket.create_server(("127.0.0.1", 0))) as server, ThreadPoolExecutor(1) as pool:
        url = f"https://127.0.0.1:{server.getsockname()[1]}"
        asked = pool.submit(tls_refusal, url, TlsFiles(ca.certificate_file), patient(5))
        with closing(server.accept()[0]) as connection:
            connection.recv(1)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        assert "refuses TLS with this client (connection reset)" in asked.result()

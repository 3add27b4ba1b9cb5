"""The embedded S3 server: its S3 port asks for the key, and its other ports for a certificate that nobody else has."""

import http.client
import json
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.object_store import ObjectStore
from capture.embedded import EmbeddedS3
from capture.embedded.s3 import binary
from capture.errors import EmbeddedError
from capture.security.certificate_files import own_certificate

#: how a client of HTTP/2, on which gRPC rests, begins: the preface, and a frame of settings
_HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5)
_SETTINGS = 4
_INNER = ("master", "master_rpc", "volume", "volume_rpc", "filer", "filer_rpc", "s3_rpc")


def _missing() -> str:
    try:
        binary()
    except EmbeddedError as error:
        return str(error)
    return ""


pytestmark = pytest.mark.skipif(bool(_missing()), reason=_missing())


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("s3")


@pytest.fixture(scope="module")
def server(directory: Path) -> Iterator[EmbeddedS3]:
    with EmbeddedS3(directory) as running:
        ObjectStore("s3://weir", running.options()).write("orders", b"rows")
        yield running


def _ports(directory: Path) -> dict[str, int]:
    return {name: port for name, port in json.loads((directory / "state.json").read_text()).items() if name != "secret"}


def test_the_s3_port_asks_for_the_key(server: EmbeddedS3) -> None:
    assert ObjectStore("s3://weir", server.options()).read("orders") == b"rows"
    for path in ("", "/weir", "/weir/orders", "/?Action=ListUsers"):
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(server.endpoint + path)
        with refused.value:
            assert refused.value.code == 403


@pytest.mark.parametrize("part", _INNER)
def test_the_other_ports_ask_for_its_certificate(
    server: EmbeddedS3, directory: Path, tmp_path: Path, part: str
) -> None:
    port = _ports(directory)[part]
    stranger = own_certificate(tmp_path / "stranger")
    with_own_key = ssl._create_unverified_context()
    with_own_key.load_cert_chain(str(stranger.cert), stranger.key)
    connections = (
        http.client.HTTPConnection("127.0.0.1", port, timeout=5),
        http.client.HTTPSConnection("127.0.0.1", port, timeout=5, context=ssl._create_unverified_context()),
        http.client.HTTPSConnection("127.0.0.1", port, timeout=5, context=with_own_key),
    )
    for connection in connections:
        try:
            connection.request("GET", "/")
            assert connection.getresponse().status == 400  # "client sent an HTTP request to an HTTPS server"
        except (OSError, http.client.HTTPException):
            pass
        finally:
            connection.close()
    with socket.create_connection(("127.0.0.1", port), timeout=5) as client:
        client.sendall(_HTTP2)
        assert client.recv(9)[3:4] != bytes([_SETTINGS])


def test_it_leaves_no_sockets(tmp_path: Path) -> None:
    with EmbeddedS3(tmp_path):
        ports = _ports(tmp_path).values()
        assert any(_sockets(port) for port in ports)
    assert not any(_sockets(port) for port in ports)


def _sockets(port: int) -> list[Path]:
    return list(Path("/tmp").glob(f"seaweedfs-*-{port}.sock"))


def test_no_other_port_listens(server: EmbeddedS3, directory: Path) -> None:
    inodes = set()
    for link in Path(f"/proc/{server.pid}/fd").iterdir():
        inodes.add(str(link.readlink()).removeprefix("socket:[").removesuffix("]"))
    listening = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and words[9] in inodes:
                address, port = words[1].split(":")
                assert address == "0100007F", "it listens on more than 127.0.0.1"
                listening.add(int(port, 16))
    assert listening == set(_ports(directory).values())

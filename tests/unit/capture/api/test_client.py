"""The client before a server whose certificate is wrong, or which speaks the other of HTTP and HTTPS."""

import socket
import sys
import threading
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


@pytest.mark.sample(0.2)
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


@pytest.mark.skipif(sys.platform != "linux", reason="the system shows the timers of its connections in /proc")
def test_a_connection_that_waits_for_an_answer_is_tested_now_and_then() -> None:
    """A server whose machine has lost power closes nothing: `weir diff` waited for ever."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with Client(f"http://127.0.0.1:{port}", token="t") as client:
            asking = threading.Thread(target=_ask_in_vain, args=(client,))
            asking.start()
            with server.accept()[0] as connection:
                assert connection.recv(1)
                assert _timer(connection.getpeername()[1], port) == _KEEPALIVE_TIMER
            asking.join()


def _ask_in_vain(client: Client) -> None:
    with pytest.raises(ServerUnreachableError):
        client.diff("shop")


#: see proc_net_tcp.rst of the kernel
_KEEPALIVE_TIMER = "02"


def _timer(local: int, remote: int) -> str:
    """The kind of timer that the connection has."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    ports = f":{local:04X}", f":{remote:04X}"
    [timer] = [one[5].partition(":")[0] for one in lines if one[1].endswith(ports[0]) and one[2].endswith(ports[1])]
    return timer

"""Wrong certificates of every server that captures call: each is one line with its cause and its cure."""

import ssl
import threading
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from socketserver import ThreadingTCPServer

import pytest
from anyio import to_thread

from agent.sources.mysql.server.connection import connect as connect_mysql
from agent.sources.postgres.server.connection import connect as connect_postgres
from capture.embedded import EmbeddedMariaDB, EmbeddedPostgres
from reactor.errors import WeirError
from reactor.settings import TlsFiles
from reactor.store import sql
from reactor.store.etcd import connect as connect_etcd
from tests.contracts.store_bed import DURABLE
from tests.integration.agent.sources.postgres.server.test_connection import Gate
from tests.integration.reactor.store.etcd.test_tls import tls_etcd
from tests.patience import patient
from tests.unit.reactor import certificates
from tests.unit.reactor.certificates import SERVERS, Identity

pytestmark = [pytest.mark.matrix, pytest.mark.parametrize("case", SERVERS)]

_CERTIFICATE = r"certificate of .* is not trusted \(.*"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Identity:
    directory = tmp_path_factory.mktemp("tls")
    directory.chmod(0o755)
    return certificates.authority(directory)


async def check(case: str, option: str, connect: Callable[[], Awaitable[object]], *, why: str = "") -> None:
    if not SERVERS[case]:
        await connect()
        return
    with pytest.raises(WeirError, match=why or _CERTIFICATE + SERVERS[case]) as refused:
        await connect()
    text = str(refused.value)
    assert "\n" not in text
    assert option in text or "name its authority" not in text


async def check_source(case: str, option: str, connect: Callable[[], object]) -> None:
    await check(case, option, partial(to_thread.run_sync, connect))


async def check_store(case: str, option: str, url: str, *, why: str = "") -> None:
    async def connect() -> None:
        await (await sql.connect(url, timeout_s=patient(5))).close()

    await check(case, option, connect, why=why)


@pytest.fixture(scope="module")
def secured(root: Identity, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedMariaDB]:
    made = readable_server(root, "its authority's")
    settings = {**DURABLE, "ssl_cert": made.certificate_file, "ssl_key": made.key_file}
    directory = tmp_path_factory.mktemp("secured")
    with EmbeddedMariaDB(directory / "my", unsafe_no_fsync=True, settings=settings) as server:
        server.create_database("weir")
        yield server


def readable_server(root: Identity, case: str) -> Identity:
    """As ``certificates.server``, for a server of another user."""
    made = certificates.server(root, case)
    Path(made.key_file).chmod(0o644)
    return made


async def test_mariadb_as_source_and_as_store(case: str, root: Identity, secured: EmbeddedMariaDB) -> None:
    readable_server(root, case)
    secured.execute("FLUSH SSL")
    query = f"?ssl-mode=verify_identity&ssl-ca={root.certificate_file}"
    await check_source(case, "ssl-ca", lambda: connect_mysql(secured.uri() + query).close())
    await check_store(case, "ssl-ca", secured.uri("weir") + query)


async def test_postgresql_as_source_and_as_store(case: str, root: Identity, postgres: EmbeddedPostgres) -> None:
    made = certificates.server(root, case)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.certificate_file, made.key_file)
    with ThreadingTCPServer(("127.0.0.1", 0), partial(Gate, context, postgres.port)) as gate:
        gate.daemon_threads = True
        thread = threading.Thread(target=gate.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            url = postgres.uri().replace(f":{postgres.port}/", f":{gate.server_address[1]}/")
            url += f"?sslmode=verify-full&sslrootcert={root.certificate_file}"
            await check_source(case, "sslrootcert", lambda: connect_postgres(url).close())
            # libpq does not say what is wrong with it
            why = _CERTIFICATE + r"\); check sslrootcert and the host's name, that it has not ended"
            await check_store(case, "sslrootcert", url, why=why)
        finally:
            gate.shutdown()
            thread.join()


async def test_etcd(case: str, root: Identity, tmp_path: Path) -> None:
    made, user = certificates.server(root, case), certificates.identity(tmp_path, "user", issuer=root)
    files = TlsFiles(root.certificate_file, user.certificate_file, user.key_file)
    with tls_etcd(tmp_path, ca=root, server=made) as url:

        async def connect() -> None:
            await (await connect_etcd([url], tls=files, timeout_s=patient(5))).close()

        await check(case, "etcd-ca-file", connect)

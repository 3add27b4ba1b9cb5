"""MySQL store: read-only servers, several hosts, users, names, TLS, refused servers. See also ``test_servers``."""

import asyncio
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from capture.embedded import EmbeddedMariaDB
from reactor.errors import StoreAuthError, StoreError, StoreUnreachableError
from reactor.store import sql
from reactor.store.sql.mysql import MysqlDatabase
from tests.contracts.store_bed import DURABLE
from tests.integration.agent.sources.mysql.server.test_connection import make_certificate
from tests.integration.reactor.store.sql.test_servers import answer, connected

_GALERA = Path("/usr/lib/galera/libgalera_smm.so")


@pytest.fixture(scope="module")
def server(flavour: type[EmbeddedMariaDB], tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedMariaDB]:
    """One that tests may restart and change, with TLS."""
    directory = tmp_path_factory.mktemp("store")
    make_certificate(directory)
    tls = {"ssl_cert": str(directory / "cert.pem"), "ssl_key": str(directory / "key.pem")}
    with flavour(directory / "my", unsafe_no_fsync=True, settings={**DURABLE, **tls}) as part:
        part.create_database("weir")
        yield part


@pytest.mark.matrix
async def test_a_primary_that_becomes_a_standby_takes_no_commit_even_from_who_could_write_to_it(
    server: EmbeddedMariaDB,
) -> None:
    async with connected(server.uri("weir")) as client:
        await client.put("/o", b"1")
        server.execute("SET GLOBAL read_only = 1")
        try:
            with pytest.raises(StoreUnreachableError, match="read-only"):
                await client.put("/o", b"2")
            with pytest.raises(StoreUnreachableError, match=r"read-only.*primary"):
                await sql.connect(server.uri("weir"), timeout_s=1)
        finally:
            server.execute("SET GLOBAL read_only = 0")
        assert await answer(client, "/o") == b"1"
        await client.put("/o", b"3")


async def test_of_several_hosts_the_first_that_can_be_written_to_is_used(server: EmbeddedMariaDB) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        place = f"127.0.0.1:{silent.getsockname()[1]}"
        several = server.uri("weir").replace("@", f"@{place},")
        async with connected(several) as client:
            assert await client.put("/h", b"")
        with pytest.raises(StoreUnreachableError):
            await sql.connect(server.uri("weir").replace(f"127.0.0.1:{server.port}", place), timeout_s=1)


@pytest.mark.matrix
async def test_a_creation_that_was_interrupted_is_completed(server: EmbeddedMariaDB) -> None:
    server.create_database("half")
    async with connected(server.uri("half")) as client:
        await client.put("/a", b"1")
    tables = ("weir_lineage", "weir_change", "weir_lease", "weir_key", "weir_store")
    for count in range(1, 4):
        server.execute(f"DROP TABLE {', '.join(tables[:count])}", database="half")
        async with connected(server.uri("half")) as client:
            assert await answer(client, "/a") == b"1"
    server.execute("DELETE FROM weir_lineage", database="half")
    async with connected(server.uri("half")) as client:
        await client.put("/a", b"2")
    assert server.execute("SELECT count(*) FROM weir_lineage", database="half") == [[1]]


async def test_a_user_who_may_not_create_views_goes_without_them(server: EmbeddedMariaDB) -> None:
    server.create_database("plain")
    server.execute("CREATE USER plain@'%' IDENTIFIED BY 'p'")
    server.execute("GRANT SELECT, INSERT, UPDATE, DELETE, CREATE, INDEX ON plain.* TO plain@'%'")
    async with connected(f"mysql://plain:p@127.0.0.1:{server.port}/plain") as client:
        await client.put("/a", b"1")
        assert await answer(client, "/a") == b"1"
    assert server.execute("SELECT table_name FROM information_schema.views WHERE table_schema = 'plain'") == []


async def test_text_sorts_and_differs_by_code_points(server: EmbeddedMariaDB) -> None:
    names = ["/t/a", "/t/A", "/t/a ", "/t/ä", "/t/\N{GRINNING FACE}", "/t/\ue000", "/t/%s?';--\\"]
    async with connected(server.uri("weir")) as client:
        for name in names:
            assert await client.get(name) is None
            await client.put(name, name.encode())
        found = (await client.get_prefix("/t/")).items
        assert [item.key for item in found] == sorted(names)
        assert all(item.value == item.key.encode() for item in found)
        with pytest.raises(StoreError, match="more than 750 characters"):
            await client.put("/t/" + "x" * 750, b"")


async def test_tls_is_used_and_checked_as_the_url_says(server: EmbeddedMariaDB, tmp_path: Path) -> None:
    url, certificate = server.uri("weir"), make_certificate(tmp_path)
    own = server.data_directory.parent.parent / "cert.pem"
    for query, is_encrypted in (
        ("", True),
        ("?ssl_mode=REQUIRED", True),
        (f"?ssl-mode=verify-ca&ssl-ca={own}", True),
        (f"?ssl-mode=verify_identity&ssl-ca={own}", True),
        ("?ssl-mode=disabled", False),
    ):
        async with connected(url + query) as client:
            database = client._reads._database
            assert isinstance(database, MysqlDatabase)
            assert isinstance(database._session._sock, ssl.SSLSocket) is is_encrypted
    for query, text in (
        (f"?ssl-mode=verify_ca&ssl-ca={certificate}", "not trusted"),
        ("?ssl-mode=verify_identity", "not trusted"),
        ("?ssl-mode=verify_ca&ssl-ca=/nowhere.pem", "ssl-ca=/nowhere.pem"),
    ):
        with pytest.raises(StoreError, match=text) as caught:
            await sql.connect(url + query)
        assert "\n" not in str(caught.value)


@pytest.mark.matrix
async def test_what_the_server_refuses_is_explained_in_one_line_without_secrets(server: EmbeddedMariaDB) -> None:
    server.execute("CREATE USER poor@'%' IDENTIFIED BY 'geheim'")
    server.create_database("bare")
    server.execute("GRANT SELECT ON bare.* TO poor@'%'")
    place = f"127.0.0.1:{server.port}"
    for url, kind, text in (
        (f"mysql://weir:geheim@{place}/weir", StoreAuthError, "refuses the user or its password"),
        (f"mysql://poor:geheim@{place}/bare", StoreAuthError, "let it create"),
        (f"mysql://poor:geheim@{place}/weir", StoreAuthError, "let it create"),
        (server.uri("nowhere"), StoreError, "no such database"),
        ("mariadb://weir:geheim@127.0.0.1:1/db", StoreUnreachableError, "MariaDB at 127.0.0.1:1/db does not answer"),
    ):
        with pytest.raises(kind, match=text) as caught:
            await sql.connect(url)
        assert "\n" not in str(caught.value)
        assert "geheim" not in str(caught.value)


@pytest.mark.parametrize(
    ("variable", "value", "text"),
    [
        ("innodb_flush_log_at_trx_commit", "2", "may forget commits in a crash; set innodb_flush_log_at_trx_commit"),
        ("sync_binlog", "0", "since it has a binary log; set sync_binlog"),
        ("max_allowed_packet", "1048576", "set max_allowed_packet"),
        ("binlog_format", "STATEMENT", "logs statements"),
    ],
)
async def test_a_server_whose_settings_break_the_stores_promises_is_refused(
    server: EmbeddedMariaDB, variable: str, value: str, text: str
) -> None:
    ((before,),) = server.execute(f"SELECT @@global.{variable}")
    server.execute(f"SET GLOBAL {variable} = {value}")
    try:
        with pytest.raises(StoreError, match=text) as caught:
            await sql.connect(server.uri("weir"))
        assert "\n" not in str(caught.value)
    finally:
        server.execute(f"SET GLOBAL {variable} = {before}")


@pytest.mark.matrix
@pytest.mark.skipif(not _GALERA.exists(), reason="no Galera on this machine; apt-get install galera-4")
async def test_a_galera_cluster_is_refused(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    galera = {
        "wsrep_on": "ON",
        "wsrep_provider": str(_GALERA),
        "wsrep_cluster_address": "gcomm://",
        "wsrep_node_address": "127.0.0.1",
        "wsrep_provider_options": f"base_port={port};gmcast.listen_addr=tcp://127.0.0.1:{port}",
        "innodb_autoinc_lock_mode": "2",
    }
    with EmbeddedMariaDB(tmp_path / "galera", unsafe_no_fsync=True, settings={**DURABLE, **galera}) as server:
        async with asyncio.timeout(60):
            while ["wsrep_ready", "ON"] not in server.execute("SHOW STATUS LIKE 'wsrep_ready'"):  # noqa: ASYNC110
                await asyncio.sleep(0.05)  # it answers before it is a cluster
        server.create_database("weir")
        with pytest.raises(StoreError, match="is a Galera cluster, where several servers accept writes at once"):
            await sql.connect(server.uri("weir"))

"""The embedded parts: they start, keep ports and data, survive kills, and never outlive us."""

import asyncio
import http.client
import os
import signal
import socket
import ssl
import stat
import subprocess
import sys
import textwrap
import time
import urllib.request
from pathlib import Path

import psycopg
import pymysql
import pytest

from capture.embedded import EmbeddedEtcd, EmbeddedMariaDB, EmbeddedPostgres, children, places
from capture.embedded.postgres import tool
from capture.errors import EmbeddedError, PortInUseError
from capture.security.certificate_files import own_certificate
from reactor.errors import StoreUnreachableError
from reactor.settings import TlsFiles
from reactor.store.etcd import connect
from tests.patience import patient


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def wait_gone(*pids: int, timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + patient(timeout_s)
    while any(is_alive(pid) for pid in pids):
        assert time.monotonic() < deadline, "a child has outlived its parent"
        time.sleep(0.05)


def test_postgres_decodes_logically_with_scram(postgres: EmbeddedPostgres) -> None:
    with psycopg.connect(postgres.dsn()) as connection:
        assert connection.execute("SHOW wal_level").fetchone() == ("logical",)
    with pytest.raises(psycopg.OperationalError, match="password"):
        psycopg.connect(postgres.uri().replace(postgres.password, "wrong"))


def test_postgres_makes_databases_once(postgres: EmbeddedPostgres) -> None:
    postgres.create_database("embedded")
    assert postgres.has_database("embedded")
    assert not postgres.has_database("embedde")
    assert postgres.execute("SELECT current_database()::text", database="embedded") == [["embedded"]]


def test_postgres_brings_its_tools(postgres: EmbeddedPostgres) -> None:
    for name in ("pgbench", "pg_recvlogical", "psql"):
        assert subprocess.run([tool(name), "--version"], capture_output=True, check=True).stdout


def test_postgres_keeps_data_port_and_password_over_kills(tmp_path: Path) -> None:
    with EmbeddedPostgres(tmp_path / "pg") as part:
        uri = part.uri()
        part.execute("CREATE TABLE t (i int)")
        part.kill()
        part.start()
        assert part.execute("SELECT count(*) FROM t") == [[0]]
        sockets = Path(part.socket_directory)
        assert sockets.exists()
    assert not sockets.exists()
    with EmbeddedPostgres(tmp_path / "pg") as again:
        assert again.uri() == uri
        assert (tmp_path / "pg" / "state.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.matrix
def test_postgres_forgets_a_half_made_data_directory(tmp_path: Path) -> None:
    (tmp_path / "pg" / "data.new" / "base").mkdir(parents=True)
    with EmbeddedPostgres(tmp_path / "pg", unsafe_no_fsync=True) as part:
        assert part.execute("SELECT 1") == [[1]]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has directories that others cannot enter")
def test_postgres_runs_below_a_private_directory(tmp_path: Path) -> None:
    private = tmp_path / "root"
    private.mkdir(mode=0o700)
    with EmbeddedPostgres(private / "pg", unsafe_no_fsync=True) as part:
        assert not children.is_reachable_by_all(private / "pg")
        assert part.execute("SELECT 1") == [[1]]
        assert Path(f"/proc/{part.pid}").stat().st_uid != 0


def test_mariadb_writes_a_binlog_that_describes_itself(mariadb: EmbeddedMariaDB) -> None:
    sql = "SELECT @@log_bin, @@binlog_format, @@binlog_row_metadata, @@binlog_checksum, @@server_id"
    assert mariadb.execute(sql) == [[1, "ROW", "FULL", "CRC32", mariadb.port]]
    with pytest.raises(pymysql.err.OperationalError, match="Access denied"):
        pymysql.connect(host="127.0.0.1", port=mariadb.port, user="weir", password="wrong")
    with pytest.raises(pymysql.err.OperationalError, match="Access denied"):
        pymysql.connect(host="127.0.0.1", port=mariadb.port, user="root", password="")


@pytest.mark.matrix
def test_mariadb_keeps_data_port_and_password_over_kills(tmp_path: Path) -> None:
    (tmp_path / "my" / "data.new" / "mysql").mkdir(parents=True)  # left by a run that was killed
    with EmbeddedMariaDB(tmp_path / "my", settings={"max_binlog_size": "4096"}) as part:
        uri = part.uri()
        part.create_database("kept")
        part.execute("CREATE TABLE t (i int)", database="kept")
        part.kill()
        part.start()
        assert part.execute("SELECT count(*), @@max_binlog_size FROM t", database="kept") == [[0, 4096]]
        if os.geteuid() == 0:
            assert Path(f"/proc/{part.pid}").stat().st_uid != 0
        socket = Path(part.socket)
        assert socket.exists()
    assert not socket.exists()
    with EmbeddedMariaDB(tmp_path / "my", unsafe_no_fsync=True) as again:
        assert again.uri() == uri
        assert again.has_database("kept")
        assert not again.has_database("kep")


def test_etcd_keeps_its_url_over_restarts(tmp_path: Path) -> None:
    with EmbeddedEtcd(tmp_path / "etcd", unsafe_no_fsync=True) as part:
        url = part.url
        part.kill()
        part.start()
        assert part.url == url
        part.restart()
        assert part.is_running
    assert not part.is_running


@pytest.mark.matrix
def test_an_etcd_that_was_killed_at_its_first_start_starts_again(tmp_path: Path) -> None:
    """Once it has made its first file it does not start over, and without a record of its member it never has
    a leader."""
    for number in range(3):
        (tmp_path / str(number)).mkdir()
        part = EmbeddedEtcd(tmp_path / str(number), unsafe_no_fsync=True)
        part._prepare()
        part._launch()
        while not list((tmp_path / str(number) / "data").glob("member/wal/*.wal")):
            part._check_alive()
        part.kill()
        again = EmbeddedEtcd(tmp_path / str(number), unsafe_no_fsync=True)
        again.start(timeout_s=30)
        again.stop()


def test_what_an_etcd_has_stored_is_kept_without_its_state_file(tmp_path: Path) -> None:
    with EmbeddedEtcd(tmp_path, unsafe_no_fsync=True):
        before = {path.name for path in (tmp_path / "data").glob("member/wal/*.wal")}
    (tmp_path / "state.json").unlink()
    part = EmbeddedEtcd(tmp_path, unsafe_no_fsync=True)
    part._prepare()
    assert {path.name for path in (tmp_path / "data").glob("member/wal/*.wal")} == before


@pytest.mark.matrix
def test_an_etcd_with_a_certificate_answers_nobody_else_on_this_machine(tmp_path: Path) -> None:
    """Neither clients nor peers: whoever writes to the store owns the cluster. It takes over what one without has."""
    with EmbeddedEtcd(tmp_path / "etcd", unsafe_no_fsync=True) as plain:
        assert _asked(plain.url).startswith(b'{"health":"true"')
        asyncio.run(_put(plain.url, None))
    tls = own_certificate(tmp_path / "tls")
    assert stat.S_IMODE(Path(str(tls.key)).stat().st_mode) == 0o600
    with EmbeddedEtcd(tmp_path / "etcd", unsafe_no_fsync=True, tls=tls) as part:
        assert asyncio.run(_get(part.url, tls)) == b"kept"
        peer = f"https://127.0.0.1:{part._state['peer']}"
        stranger = own_certificate(tmp_path / "stranger")
        for url in (part.url, peer):
            known = ssl.create_default_context(cafile=tls.ca)
            for secret in (None, stranger):
                if secret:
                    known.load_cert_chain(str(secret.cert), secret.key)
                with pytest.raises((OSError, http.client.HTTPException)):
                    _asked(url, known)
            with pytest.raises(OSError):
                _asked(url.replace("https", "http"))
        with pytest.raises(StoreUnreachableError, match="certificate"):
            asyncio.run(_get(part.url, TlsFiles(tls.ca)))
    assert own_certificate(tmp_path / "tls") == tls
    (tmp_path / "tls" / "ca.pem").unlink()
    own_certificate(tmp_path / "tls")
    with EmbeddedEtcd(tmp_path / "etcd", unsafe_no_fsync=True, tls=tls) as part:
        assert asyncio.run(_get(part.url, tls)) == b"kept"


def _asked(url: str, context: ssl.SSLContext | None = None) -> bytes:
    with urllib.request.urlopen(f"{url}/health", timeout=10, context=context) as answer:
        return bytes(answer.read())


async def _put(url: str, tls: TlsFiles | None) -> None:
    client = await connect([url], tls=tls)
    await client.put("/k", b"kept")
    await client.close()


async def _get(url: str, tls: TlsFiles) -> bytes:
    client = await connect([url], tls=tls)
    found = await client.get("/k")
    await client.close()
    assert found is not None
    return found.value


def test_a_taken_port_is_named(tmp_path: Path) -> None:
    with (
        EmbeddedEtcd(tmp_path / "etcd", unsafe_no_fsync=True),
        pytest.raises(PortInUseError, match=r"port \d+ .* taken"),
    ):
        EmbeddedEtcd(tmp_path / "etcd").start()


def test_a_damaged_state_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text("{")
    with pytest.raises(EmbeddedError, match=r"state\.json is damaged"):
        EmbeddedEtcd(tmp_path).start()


@pytest.mark.matrix
def test_parts_that_do_not_start_name_their_log(tmp_path: Path) -> None:
    with EmbeddedPostgres(tmp_path / "pg", unsafe_no_fsync=True):
        pass
    (tmp_path / "pg" / "data" / "global" / "pg_control").write_bytes(b"nonsense")
    with pytest.raises(EmbeddedError, match=r"postgres\.log"):
        EmbeddedPostgres(tmp_path / "pg").start()


def test_children_die_with_a_killed_parent(tmp_path: Path) -> None:
    program = textwrap.dedent(
        """
        import signal, sys
        from capture.embedded import EmbeddedEtcd, EmbeddedMariaDB, EmbeddedPostgres
        e, p, m = (sys.argv[1] + name for name in ("/e", "/p", "/m"))
        parts = EmbeddedEtcd(e), EmbeddedPostgres(p), EmbeddedMariaDB(m)
        for part in parts: part.start()
        sys.stdout.write(" ".join(str(part.pid) for part in parts) + "\\n"); sys.stdout.flush()
        signal.pause()
        """
    )
    with subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pids = [int(word) for word in parent.stdout.readline().split()]
        assert len(pids) == 3
        assert all(is_alive(pid) for pid in pids)
        parent.send_signal(signal.SIGKILL)
    wait_gone(*pids)
    with EmbeddedPostgres(tmp_path / "p") as again:
        assert again.execute("SELECT 1") == [[1]]


def test_free_ports_are_outside_the_range_of_outgoing_connections() -> None:
    assert all(places.free_port() < 32_768 for _ in range(20))


def test_a_port_that_was_chosen_is_not_chosen_again_and_takes_a_server() -> None:
    port = places.free_port()
    assert not places._hold(port)
    with socket.create_server(("127.0.0.1", port)) as server:
        assert server.getsockname()[1] == port
        assert not places.is_free(port)
    places.require_free(port, who="a second run")

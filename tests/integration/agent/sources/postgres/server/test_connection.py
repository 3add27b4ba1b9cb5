"""The handshake with a real server: TLS in every mode, md5, SCRAM, Unix sockets; and the stream over TLS."""

import contextlib
import os
import socket
import ssl
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from socketserver import BaseRequestHandler, ThreadingTCPServer
from typing import Any
from urllib.parse import quote

import pytest

from agent.errors import SourceAuthError, SourceConfigError, SourceError, SourceUnreachableError
from agent.sources.postgres.server.connection import catalog_session, connect
from agent.sources.postgres.snapshot.export import create_slot
from agent.sources.postgres.snapshot.rows import session
from capture.embedded import EmbeddedPostgres
from tests.integration.agent.sources.postgres.sync_rig import make_rig


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed certificate for ``localhost``; the key lies beside it."""
    return make_certificate(tmp_path_factory.mktemp("tls") / "server.crt")


def make_certificate(path: Path) -> Path:
    command = ["openssl", "req", "-new", "-x509", "-days", "2", "-nodes", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=DNS:localhost", "-out", str(path), "-keyout", str(path.with_suffix(".key"))]
    subprocess.run(command, check=True, capture_output=True)
    return path


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPostgres]:
    """A server that knows a user for every method; it was built without TLS."""
    directory = tmp_path_factory.mktemp("methods")
    with EmbeddedPostgres(directory, unsafe_no_fsync=True) as server:
        _add_users(server, directory / "data" / "pg_hba.conf")
        yield server


def _add_users(server: EmbeddedPostgres, rules: Path) -> None:
    for name, encryption in (("by_md5", "md5"), ("by_scram", "scram-sha-256"), ("by_text", "scram-sha-256")):
        server.execute(
            f"SET password_encryption = '{encryption}'; CREATE ROLE {name} LOGIN REPLICATION PASSWORD 'p:w@d'"
        )
    lines = "host all by_md5 all md5\nhost all by_text all password\nhost all barred all reject\n"
    rules.write_text(lines + rules.read_text())
    server.execute("SELECT pg_reload_conf()")


@dataclass(frozen=True)
class TlsServer:
    """``plain`` behind a gate that speaks PostgreSQL's way into TLS."""

    port: int
    plain: EmbeddedPostgres

    def uri(self, database: str = "postgres") -> str:
        return self.plain.uri(database).replace(f":{self.plain.port}/", f":{self.port}/") + "?sslmode=require"


@pytest.fixture(scope="module")
def server(certificate: Path, plain: EmbeddedPostgres) -> Iterator[TlsServer]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, certificate.with_suffix(".key"))
    with behind_gate(context, plain) as server:
        yield server


@contextlib.contextmanager
def behind_gate(context: ssl.SSLContext, plain: EmbeddedPostgres) -> Iterator[TlsServer]:
    with ThreadingTCPServer(("127.0.0.1", 0), partial(Gate, context, plain.port)) as gate:
        gate.daemon_threads = True
        thread = threading.Thread(target=gate.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield TlsServer(gate.server_address[1], plain)
        gate.shutdown()
        thread.join()


class Gate(BaseRequestHandler):
    """One connection: answers the request for TLS, then passes bytes both ways."""

    def __init__(self, context: ssl.SSLContext, port: int, *arguments: Any) -> None:
        self._context = context
        self._port = port
        super().__init__(*arguments)

    def handle(self) -> None:
        raw: socket.socket = self.request
        if raw.recv(8)[4:] != struct.pack("!i", 80877103):
            return
        raw.sendall(b"S")
        try:
            client = self._context.wrap_socket(raw, server_side=True)
        except OSError:
            return  # the client does not trust us
        with client, socket.create_connection(("127.0.0.1", self._port)) as upstream:
            back = threading.Thread(target=_pass, args=(upstream, client))
            back.start()
            _pass(client, upstream)
            back.join()


def _pass(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while block := source.recv(1 << 16):
            target.sendall(block)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


def uri(server: EmbeddedPostgres | TlsServer, user: str, query: str = "", *, host: str = "localhost") -> str:
    return f"postgresql://{user}:p%3Aw%40d@{host}:{server.port}/postgres{query}"


@pytest.mark.sample(0.2)
@pytest.mark.parametrize("user", ["by_md5", "by_scram", "by_text"])
@pytest.mark.parametrize("mode", ["prefer", "require"])
def test_every_password_method_over_tls(server: TlsServer, user: str, mode: str) -> None:
    for replication in (False, True):
        with connect(uri(server, user, f"?sslmode={mode}"), replication=replication) as connection:
            assert isinstance(connection.socket, ssl.SSLSocket)
            assert connection.query("SELECT current_user") == [(user,)]


def test_the_systems_authorities_are_read_only_to_verify(
    server: TlsServer, plain: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They take thirty milliseconds of CPU for each connection."""
    read = []
    monkeypatch.setattr(ssl.SSLContext, "load_default_certs", lambda context, *_: read.append(context))
    for way in (uri(server, "by_scram"), server.uri(), plain.uri()):
        connect(way).close()
    plain.execute("SELECT 1")
    assert read == []
    with pytest.raises(SourceAuthError, match="not trusted"):
        connect(uri(server, "by_scram", "?sslmode=verify-full"))
    assert len(read) == 1


@pytest.mark.parametrize("user", ["by_md5", "by_scram"])
def test_password_methods_without_tls(plain: EmbeddedPostgres, user: str) -> None:
    with connect(uri(plain, user, "?sslmode=disable"), replication=True) as connection:
        assert not isinstance(connection.socket, ssl.SSLSocket)
        assert connection.query("SELECT current_user") == [(user,)]


def test_a_server_certificate_is_verified_when_asked(server: TlsServer, certificate: Path) -> None:
    root = f"&sslrootcert={certificate}"
    for mode in ("verify-ca", "verify-full"):
        with connect(uri(server, "by_scram", f"?sslmode={mode}{root}")) as connection:
            assert connection.query("SELECT 1") == [("1",)]
        with pytest.raises(SourceAuthError, match=r"certificate of .* is not trusted"):
            connect(uri(server, "by_scram", f"?sslmode={mode}"))
    with pytest.raises(SourceAuthError, match=r"certificate of .* is not trusted .*; connect to a name"):
        connect(uri(server, "by_scram", f"?sslmode=verify-full{root}", host="127.0.0.1"))
    with connect(uri(server, "by_scram", f"?sslmode=verify-ca{root}", host="127.0.0.1")):
        pass


def test_an_authority_that_is_named_is_verified_against_in_every_mode(
    server: TlsServer, certificate: Path, tmp_path: Path
) -> None:
    """As libpq does for ``require``. The file was read, and whoever answered was trusted."""
    other = make_certificate(tmp_path / "other.crt")
    text = quote(certificate.read_text())
    for mode in ("", "sslmode=prefer&", "sslmode=require&"):
        for root in (certificate, text):
            connect(uri(server, "by_scram", f"?{mode}sslrootcert={root}")).close()
        with pytest.raises(SourceAuthError, match=r"is not trusted .*; name its authority with sslroot"):
            connect(uri(server, "by_scram", f"?{mode}sslrootcert={other}"))
    with pytest.raises(SourceAuthError, match="is not trusted"):
        connect(uri(server, "by_scram", "?sslrootcert=system"))


@pytest.fixture(scope="module")
def choosy(certificate: Path, plain: EmbeddedPostgres) -> Iterator[TlsServer]:
    """It asks for a client's certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, certificate.with_suffix(".key"))
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(certificate)
    with behind_gate(context, plain) as server:
        yield server


@pytest.mark.parametrize("mode", ["", "sslmode=require&", "sslmode=verify-full&sslrootcert=CERTIFICATE&"])
@pytest.mark.parametrize("replication", [False, True])
def test_a_clients_certificate(choosy: TlsServer, certificate: Path, mode: str, *, replication: bool) -> None:
    key = certificate.with_suffix(".key")
    mode = mode.replace("CERTIFICATE", str(certificate))
    text, both = quote(certificate.read_text()), quote(certificate.read_text() + key.read_text())
    for given in (f"sslcert={certificate}&sslkey={key}", f"sslcert={text}&sslkey={quote(key.read_text())}",
                  f"sslcert={both}", f"sslcert=file:{certificate}&sslkey=file:{key}"):  # fmt: skip
        with connect(uri(choosy, "by_scram", f"?{mode}{given}"), replication=replication) as connection:
            assert connection.query("SELECT current_user") == [("by_scram",)]
    assert not any("memfd:pem" in _target(path) for path in Path("/proc/self/fd").iterdir())


def _target(descriptor: Path) -> str:
    """Return what it is open on; nothing if another thread has closed it meanwhile."""
    try:
        return os.readlink(descriptor)
    except FileNotFoundError:
        return ""


def test_a_clients_certificate_that_is_missing_or_not_the_servers(
    choosy: TlsServer, certificate: Path, tmp_path: Path
) -> None:
    """The server's alert may be lost with the connection."""
    other = make_certificate(tmp_path / "other.crt")
    for query in ("sslmode=require", f"sslcert={other}&sslkey={other.with_suffix('.key')}"):
        with pytest.raises(SourceError, match=r"asks for a client's certificate.*sslcert.*sslkey"):
            connect(uri(choosy, "by_scram", f"?{query}"))
    key = quote(other.with_suffix(".key").read_text())
    for given, cause in (
        (f"sslcert={certificate}&sslkey={key}", rf"sslcert {certificate} with sslkey \(given as text\) .*mismatch"),
        (f"sslcert={certificate}&sslkey=/none", rf"sslcert {certificate} with sslkey /none .*no such file"),
        (f"sslcert={quote(certificate.read_text())}", r"sslcert \(given as text\) cannot be used"),
    ):
        with pytest.raises(SourceConfigError, match=cause) as caught:
            connect(uri(choosy, "by_scram", f"?{given}"))
        assert "PRIVATE" not in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_password_that_must_be_bound_to_the_tls_session_is_not_given_otherwise(server: TlsServer) -> None:
    """Behind the gate is a server that does not know of it, as behind one who listens in."""
    for user in ("by_md5", "by_scram", "by_text"):
        with pytest.raises(SourceAuthError, match="does not bind the password to the TLS session"):
            connect(uri(server, user, "?sslmode=require&channel_binding=require"))
        connect(uri(server, user, "?sslmode=require&channel_binding=prefer")).close()


def test_refusals(server: TlsServer, plain: EmbeddedPostgres) -> None:
    with pytest.raises(SourceAuthError, match="refuses the password of user by_md5"):
        connect(uri(server, "by_md5").replace("w%40d", "x"))
    with pytest.raises(SourceAuthError, match=r"refuses user barred \(pg_hba.conf rejects"):
        connect(uri(server, "barred"))
    with pytest.raises(SourceUnreachableError, match="broke off while connecting"):
        connect(uri(server, "by_text", "?sslmode=disable"))
    with pytest.raises(SourceConfigError, match="does not speak TLS; turn ssl on there or use sslmode=disable"):
        connect(plain.uri() + "?sslmode=require")
    with pytest.raises(SourceConfigError, match="sslrootcert /none cannot be read"):
        connect(uri(server, "by_scram", "?sslmode=verify-full&sslrootcert=/none"))


def test_a_refused_query_leaves_the_session_usable(postgres: EmbeddedPostgres) -> None:
    with connect(postgres.uri()) as connection:
        with pytest.raises(SourceError, match="22012: division by zero"):
            connection.query("SELECT 1/0")
        with pytest.raises(SourceError, match="42P01"):
            connection.start_copy("COPY nothing TO STDOUT")
        assert connection.query("SELECT NULL, 'ä', 2") == [(None, "ä", "2")]
        connection.close()
        connection.close()


def test_a_session_that_the_server_ends_is_unreachable(postgres: EmbeddedPostgres) -> None:
    with connect(postgres.uri()) as connection, connect(postgres.uri()) as other:
        (pid,) = connection.query("SELECT pg_backend_pid()")[0]
        other.query(f"SELECT pg_terminate_backend({pid}, 5000)")
        with pytest.raises(SourceUnreachableError):
            connection.query("SELECT 1")
        connection.close()


def test_a_unix_socket(postgres: EmbeddedPostgres) -> None:
    source = f"postgresql:///postgres?host={postgres.socket_directory}&port={postgres.port}&user=postgres"
    os.environ["WEIR_TEST_PASSWORD"] = postgres.password
    try:
        with connect(source + "&password=env:WEIR_TEST_PASSWORD", replication=True) as connection:
            assert connection.query("SELECT 1") == [("1",)]
    finally:
        del os.environ["WEIR_TEST_PASSWORD"]


@pytest.mark.matrix
async def test_the_stream_over_tls(server: TlsServer, tmp_path: Path) -> None:
    rig = make_rig(server.plain, tmp_path, "CREATE TABLE t (id int PRIMARY KEY, v text)", ["t"])
    rig.uri = server.uri(rig.name)
    async with rig.running():
        rig.execute("INSERT INTO t SELECT i, repeat('z', 100) FROM generate_series(1, 50000) i")
        await rig.wait_resolved()
    assert rig.logged() == rig.expected()


def test_rows_that_a_policy_hides_are_an_error_and_never_fewer_rows(postgres: EmbeddedPostgres) -> None:
    """A table that seems empty would be taken in without its rows."""
    postgres.create_database("policies")
    uri = postgres.uri("policies")
    with connect(uri) as connection:
        connection.query(
            "DROP ROLE IF EXISTS weir_reader; CREATE ROLE weir_reader LOGIN PASSWORD 'pw'; "
            "CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1); GRANT SELECT ON t TO weir_reader; "
            "ALTER TABLE t ENABLE ROW LEVEL SECURITY; CREATE POLICY none ON t USING (false)"
        )
    with connect(f"postgresql://weir_reader:pw@127.0.0.1:{postgres.port}/policies") as connection:
        assert connection.query("SELECT current_user") == [("weir_reader",)]
        with pytest.raises(SourceError, match="row-level security"):
            connection.query("SELECT id FROM t")
    with connect(uri) as connection:
        assert connection.query("SELECT id FROM t") == [("1",)]


_LIMITS = ("statement_timeout", "idle_in_transaction_session_timeout", "transaction_timeout", "lock_timeout")


def test_limits_of_the_server_do_not_end_a_snapshot(postgres: EmbeddedPostgres) -> None:
    postgres.create_database("limits")
    uri = postgres.uri("limits")
    with connect(uri) as connection:
        known = {str(name) for (name,) in connection.query("SELECT name FROM pg_settings")}
        limits = [limit for limit in _LIMITS if limit in known]  # transaction_timeout came with PostgreSQL 17
        for limit in limits:
            connection.query(f"ALTER DATABASE limits SET {limit} = '1min'")
    with session(uri, None) as connection:
        assert [connection.query(f"SHOW {limit}") for limit in limits] == [[("0",)]] * len(limits)
    with create_slot(uri, "limits", is_temporary=True) as export, session(uri, export.snapshot) as connection:
        assert connection.query("SELECT 1") == [("1",)]
        unlimited = [limit for limit in limits if limit != "lock_timeout"]
        assert [export._connection.query(f"SHOW {limit}") for limit in unlimited] == [[("0",)]] * len(unlimited)


def test_settings_of_the_database_end_no_session_and_refuse_no_publication(postgres: EmbeddedPostgres) -> None:
    postgres.create_database("settings")
    uri = postgres.uri("settings")
    settings = {
        **dict.fromkeys((*_LIMITS[:3], "idle_session_timeout"), "200ms"),
        **dict.fromkeys(("default_transaction_read_only", "default_transaction_deferrable"), "on"),
        "default_transaction_isolation": "serializable",
    }
    with connect(uri) as connection:
        known = {str(name) for (name,) in connection.query("SELECT name FROM pg_settings")}
        for name in known.intersection(settings):
            connection.query(f"ALTER DATABASE settings SET {name} = '{settings[name]}'")
    with catalog_session(uri) as connection:
        for _ in range(2):
            connection.query("SELECT pg_catalog.pg_sleep(0.3)")
            time.sleep(0.3)
        connection.query("CREATE PUBLICATION p; DROP PUBLICATION p")
        assert connection.query("SHOW transaction_isolation") == [("read committed",)]

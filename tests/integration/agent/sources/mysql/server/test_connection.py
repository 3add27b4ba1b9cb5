"""Connecting to real servers: passwords, TLS, refusals, and a socket that stands where it should."""

import datetime
import ipaddress
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from agent.errors import SourceAuthError, SourceConfigError, SourceError, SourceUnreachableError
from agent.sources.mysql.binlog.request import request_binlog
from agent.sources.mysql.position.consistency import current_place
from agent.sources.mysql.server.connection import connect
from capture.embedded import EmbeddedMariaDB
from tests.integration.agent.sources.mysql.binlog_rig import lines, read_until, run, streaming, where
from tests.mysql_package import why_not
from tests.mysql_server import EmbeddedMysql, is_mariadb

_COM_QUERY = 3


@pytest.fixture(scope="module")
def secured(
    flavour: type[EmbeddedMariaDB], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[EmbeddedMariaDB, Path]]:
    """A server with TLS and passwords of all its kinds, and its certificate."""
    directory = tmp_path_factory.mktemp("tls")
    certificate = make_certificate(directory)
    settings = {"ssl_cert": str(certificate), "ssl_key": str(directory / "key.pem"), "ssl_ca": str(certificate)}
    if flavour is EmbeddedMariaDB:
        settings["plugin_load_add"] = "auth_ed25519"
    with flavour(directory / "my", unsafe_no_fsync=True, settings=settings) as server:
        yield server, certificate


def make_certificate(directory: Path) -> Path:
    """Signed by itself, for 127.0.0.1, readable by the server's user."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "weir test")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    plain = serialization.NoEncryption()
    (directory / "key.pem").write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
    (directory / "cert.pem").write_bytes(certificate.public_bytes(pem))
    directory.chmod(0o755)
    return directory / "cert.pem"


def test_values_come_as_text(server: EmbeddedMariaDB) -> None:
    with connect(server.uri()) as connection:
        assert connection.is_mariadb is is_mariadb(server)
        assert connection.server_version >= ((10, 6) if is_mariadb(server) else (8, 4))
        assert connection.is_tls is not is_mariadb(server)  # MySQL makes itself a certificate
        assert connection.query("SELECT 1, NULL, 'ä€', CAST('x' AS BINARY), 1.50") == [("1", None, "ä€", "x", "1.50")]
        assert connection.query("SELECT @@time_zone, @@sql_mode, @@autocommit") == [("+00:00", "", "1")]
        connection.execute("SET @a = 1")
        assert connection.query("SELECT @a, CONNECTION_ID()") == [("1", str(connection.thread_id))]
        with pytest.raises(SourceError, match=r"1146: Table 'mysql\.such' doesn't exist"):
            connection.query("SELECT * FROM mysql.such")
        assert connection.query("SELECT 2") == [("2",)]


def test_the_socket_is_at_the_answer(server: EmbeddedMariaDB) -> None:
    with connect(server.uri()) as connection:
        connection.send_command(_COM_QUERY, b"SELECT 'here'")
        connection.socket.settimeout(10.0)
        answer = connection.socket.recv(4096)
        assert answer[:5] == b"\1\0\0\1\1"  # one packet that says: one column
        assert b"here" in answer


def test_tls_is_used_where_it_can_be_and_checked_as_configured(secured: tuple[EmbeddedMariaDB, Path]) -> None:
    server, certificate = secured
    for query in ("", "?ssl-mode=required", f"?ssl-mode=verify_ca&ssl-ca={certificate}",
                  f"?ssl-mode=verify_identity&ssl-ca={certificate}"):  # fmt: skip
        with connect(server.uri() + query) as connection:
            assert connection.is_tls
            assert connection.query("SHOW STATUS LIKE 'Ssl_version'")[0][1]
    with connect(server.uri() + "?ssl-mode=disabled") as connection:
        assert not connection.is_tls
    with connect(server.uri() + f"?socket={server.socket}") as connection:
        assert not connection.is_tls
    with pytest.raises(SourceAuthError, match=r"not trusted.*ssl-ca"):
        connect(server.uri() + "?ssl-mode=verify_ca")
    elsewhere = server.uri().replace("127.0.0.1", "localhost")
    with pytest.raises(SourceAuthError, match=r"not trusted.*connect to a name"):
        connect(elsewhere + f"?ssl-mode=verify_identity&ssl-ca={certificate}")


def test_an_authority_that_is_named_is_verified_against_in_every_mode(
    secured: tuple[EmbeddedMariaDB, Path], tmp_path: Path
) -> None:
    """It was ignored in these modes, and whoever answered was trusted."""
    server, certificate = secured
    other = make_certificate(tmp_path)
    for mode in ("", "ssl-mode=preferred&", "ssl-mode=required&"):
        connect(server.uri() + f"?{mode}ssl-ca={certificate}").close()
        connect(server.uri() + f"?{mode}ssl-ca={quote(certificate.read_text())}").close()
        with pytest.raises(SourceAuthError, match=r"not trusted.*ssl-ca"):
            connect(server.uri() + f"?{mode}ssl-ca={other}")


def test_a_clients_certificate(secured: tuple[EmbeddedMariaDB, Path], tmp_path: Path) -> None:
    server, certificate = secured
    key = certificate.with_name("key.pem")
    server.execute("CREATE USER by_certificate@'%' REQUIRE X509")
    plain = f"mysql://by_certificate@127.0.0.1:{server.port}/"
    text = quote(certificate.read_text())
    files = f"ssl-cert=file:{certificate}&ssl-key=file:{key}"
    for given in (f"ssl-cert={certificate}&ssl-key={key}", f"ssl_cert={text}&ssl_key={quote(key.read_text())}",
                  files, f"ssl-mode=verify_identity&ssl-ca={certificate}&{files}"):  # fmt: skip
        with connect(f"{plain}?{given}") as connection:
            assert connection.query("SELECT 1") == [("1",)]
    for mode in ("", "?ssl-mode=required"):
        with pytest.raises(SourceAuthError, match="give ssl-cert and ssl-key if the user needs a certificate"):
            connect(plain + mode)
    other = make_certificate(tmp_path)
    with pytest.raises(SourceError, match=r"asks for a client's certificate"):
        connect(f"{plain}?ssl-cert={other}&ssl-key={tmp_path / 'key.pem'}")
    with pytest.raises(SourceConfigError, match=r"ssl-cert .* with ssl-key /none cannot be used \(no such file"):
        connect(f"{plain}?ssl-cert={certificate}&ssl-key=/none")


def test_the_systems_authorities_are_read_only_to_verify(
    secured: tuple[EmbeddedMariaDB, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They take thirty milliseconds of CPU for each connection."""
    server, _ = secured
    read = []
    monkeypatch.setattr(ssl.SSLContext, "load_default_certs", lambda context, *_: read.append(context))
    for query in ("", "?ssl-mode=required"):
        with connect(server.uri() + query) as connection:
            assert connection.is_tls
    server.execute("SELECT 1")
    assert read == []
    with pytest.raises(SourceAuthError, match="not trusted"):
        connect(server.uri() + "?ssl-mode=verify_ca")
    assert len(read) == 1


def test_a_binlog_is_read_over_tls(secured: tuple[EmbeddedMariaDB, Path]) -> None:
    server, _ = secured
    server.create_database("tls")
    run(server, "tls", "CREATE TABLE t (i int PRIMARY KEY, s varchar(200))")
    begin = where(server)
    run(server, "tls", "INSERT INTO t SELECT seq, repeat('x', 150) FROM seq_1_to_20000")
    with streaming(server, begin, "tls", query="?ssl-mode=required", arena_bytes=1 << 18) as stream:
        cuts = read_until(stream, where(server), arena_bytes=1 << 18)
    assert sum(event.count(b"x" * 150) for _, _, _, event in lines(cuts)) == 20_000


def test_passwords_of_each_kind_are_understood(secured: tuple[EmbeddedMariaDB, Path]) -> None:
    server, _ = secured
    native = {"native": "mysql_native_password", "modern": "ed25519"}
    sha2 = {"caching": "caching_sha2_password", "older": "sha256_password"}
    for user, plugin in (native if is_mariadb(server) else sha2).items():
        how = f"VIA {plugin} USING PASSWORD('pä§s')" if is_mariadb(server) else f"WITH {plugin} BY 'pä§s'"
        server.execute(f"CREATE USER {user}@'%' IDENTIFIED {how}")
        uri = f"mysql://{user}:p%C3%A4%C2%A7s@127.0.0.1:{server.port}/"
        with connect(uri) as connection:
            assert connection.query("SELECT SUBSTRING_INDEX(USER(), '@', 1)") == [(user,)]
        with pytest.raises(SourceAuthError, match=f"refuses user {user} or its password"):
            connect(uri.replace("p%C3", "q%C3"))


@pytest.mark.parametrize(
    ("plugin", "way"),
    [
        ("caching_sha2_password", "ssl-mode=disabled"),
        ("caching_sha2_password", "ssl-mode=required"),
        ("caching_sha2_password", "socket="),
        ("sha256_password", "ssl-mode=disabled"),
        ("sha256_password", "ssl-mode=required"),
    ],
)
def test_a_password_of_mysql_is_given_in_every_way(mysql: EmbeddedMysql, plugin: str, way: str) -> None:
    """In clear over TLS and the socket, encrypted with the server's key elsewhere, and scrambled when it is known."""
    user = f"u{abs(hash((plugin, way))) % 10**9}"
    mysql.execute(f"CREATE USER {user}@'%' IDENTIFIED WITH {plugin} BY 'a long one, and a comma'")
    way += mysql.socket if way.endswith("=") else ""
    uri = f"mysql://{user}:a%20long%20one%2C%20and%20a%20comma@127.0.0.1:{mysql.port}/?{way}"
    for _ in range(2):
        with connect(uri) as connection:
            assert connection.query("SELECT 1") == [("1",)]
    mysql.execute(f"ALTER USER {user}@'%' IDENTIFIED WITH {plugin} BY 'another'")
    with pytest.raises(SourceAuthError, match=f"refuses user {user} or its password") as found:
        connect(uri)
    assert "comma" not in str(found.value)


def test_certificates_that_mysql_made_are_trusted_by_every_python(
    mysql: EmbeddedMysql, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = ssl.create_default_context

    def strict(**options: Any) -> ssl.SSLContext:
        """As it is from Python 3.13 on."""
        context = usual(**options)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context

    monkeypatch.setattr(ssl, "create_default_context", strict)
    with connect(mysql.uri() + f"?ssl-mode=verify_ca&ssl-ca={mysql.data_directory / 'ca.pem'}") as connection:
        assert connection.is_tls


def test_an_account_that_has_to_change_its_password_is_refused(mysql: EmbeddedMysql) -> None:
    mysql.execute("CREATE USER expired@'%' IDENTIFIED BY 'p' PASSWORD EXPIRE")
    with pytest.raises(SourceAuthError, match=r"password or account of user expired .* has expired"):
        connect(f"mysql://expired:p@127.0.0.1:{mysql.port}/")
    mysql.execute("CREATE USER locked@'%' IDENTIFIED BY 'p' ACCOUNT LOCK")
    with pytest.raises(SourceAuthError, match="locked"):
        connect(f"mysql://locked:p@127.0.0.1:{mysql.port}/")


@pytest.mark.matrix
def test_a_mysql_without_tls_reports_it(tmp_path: Path) -> None:
    if reason := why_not():
        pytest.skip(reason)
    with EmbeddedMysql(tmp_path, unsafe_no_fsync=True, settings={"tls_version": ""}) as server:
        with pytest.raises(SourceConfigError, match=r"does not speak TLS.*ssl-mode"):
            connect(server.uri() + "?ssl-mode=required")
        with connect(server.uri()) as connection:
            assert not connection.is_tls


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        (lambda uri: uri + "nowhere", SourceConfigError, "no such database"),
        (lambda uri: uri + "?ssl-mode=verify_ca&ssl-ca=/no/file", SourceConfigError, "cannot be read"),
        (lambda uri: uri.replace("127.0.0.1", "no.such.host.invalid"), SourceUnreachableError, "is not known"),
        (lambda uri: uri + "?socket=/no/socket", SourceUnreachableError, "cannot be reached"),
    ],
)
def test_refusals_name_cause_and_cure(
    server: EmbeddedMariaDB, change: Callable[[str], str], error: type[SourceError], match: str
) -> None:
    with pytest.raises(error, match=match) as found:
        connect(change(server.uri()))
    assert server.password not in str(found.value)
    assert "\n" not in str(found.value)


def test_missing_rights_are_named(server: EmbeddedMariaDB) -> None:
    server.execute("CREATE OR REPLACE USER poor@'%' IDENTIFIED BY 'p'")
    with connect(f"mysql://poor:p@127.0.0.1:{server.port}/") as connection:
        right = "BINLOG MONITOR" if is_mariadb(server) else "REPLICATION CLIENT"
        with pytest.raises(SourceAuthError, match=rf"user poor lacks a privilege.*{right}"):
            current_place(connection)
        with pytest.raises(SourceAuthError, match="user poor lacks a privilege"):
            connection.command(0x15, bytes(18))
        with pytest.raises(SourceAuthError, match="run: GRANT REPLICATION SLAVE"):
            request_binlog(connection, where(server), server_id=5, by_gtid=False, heartbeat_s=1.0)


def test_a_mariadb_without_tls_reports_it(mariadb: EmbeddedMariaDB) -> None:
    with pytest.raises(SourceConfigError, match=r"does not speak TLS.*ssl-mode"):
        connect(mariadb.uri() + "?ssl-mode=required")


def test_who_is_no_database_is_not_waited_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(SourceUnreachableError, match="check that MySQL or MariaDB listens there"):
            connect(f"mysql://u:p@127.0.0.1:{port}/?connect-timeout=1")
    with pytest.raises(SourceUnreachableError, match="cannot be reached"):
        connect(f"mysql://u:p@127.0.0.1:{port}/?connect-timeout=1")


def test_a_query_can_be_aborted_and_times_out(server: EmbeddedMariaDB) -> None:
    with connect(server.uri()) as connection:
        aborting = threading.Timer(0.2, connection.abort)
        aborting.start()
        with pytest.raises(SourceUnreachableError, match="was lost"):
            connection.query("SELECT SLEEP(60)")
        aborting.join()
    with connect(server.uri()) as connection:
        with pytest.raises(SourceUnreachableError, match="no answer in time"):
            connection.query("SELECT SLEEP(60)", timeout_s=0.2)
        with pytest.raises(SourceUnreachableError):
            connection.query("SELECT 1")
        connection.close()
        connection.close()

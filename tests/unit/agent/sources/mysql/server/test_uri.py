"""Source URIs are read as the server's own programs read their options, and no error repeats a password."""

from pathlib import Path

import pytest

from agent.errors import SourceConfigError
from agent.sources.common.tls import TlsMaterial
from agent.sources.mysql.decode.table_ids import check_distinct, table_id
from agent.sources.mysql.server.uri import SslMode, Target, parse_uri


def test_a_full_uri() -> None:
    target = parse_uri("mysql://u%40x:p%2Fw@db.example:3307/shop?ssl-mode=VERIFY_IDENTITY&ssl-ca=/ca.pem")
    assert target == Target(
        "db.example", 3307, "u@x", "shop", "p/w", ssl_mode=SslMode.VERIFY_IDENTITY, tls=TlsMaterial("/ca.pem")
    )
    assert str(target) == "mysql://db.example:3307/shop"
    assert "p/w" not in repr(target)


def test_defaults() -> None:
    assert parse_uri("mariadb://me@h") == Target("h", 3306, "me")
    assert str(parse_uri("mariadb://me@h")) == "mysql://h:3306"
    assert str(parse_uri("mysql://me@[::1]:3307/")) == "mysql://[::1]:3307"


@pytest.mark.parametrize(
    ("query", "mode"),
    [
        ("", SslMode.PREFERRED),
        ("ssl-ca=/ca.pem", SslMode.VERIFY_CA),
        ("ssl-mode=preferred&ssl-ca=/ca.pem", SslMode.VERIFY_CA),
        ("ssl-mode=required&ssl-ca=/ca.pem", SslMode.VERIFY_CA),
        ("ssl-mode=verify_identity&ssl-ca=/ca.pem", SslMode.VERIFY_IDENTITY),
        ("ssl-mode=disabled&ssl-ca=/ca.pem", SslMode.DISABLED),
        ("ssl-cert=/c&ssl-key=/k", SslMode.REQUIRED),
        ("ssl-mode=verify_ca&ssl-cert=/c", SslMode.VERIFY_CA),
    ],
)
def test_what_is_named_decides_how_much_is_verified(query: str, mode: SslMode) -> None:
    assert parse_uri(f"mysql://u@h/d?{query}").ssl_mode is mode


def test_a_unix_socket() -> None:
    target = parse_uri("mysql:///db?socket=/run/mysqld/mysqld.sock&user=u")
    assert (target.socket, target.database, target.user) == ("/run/mysqld/mysqld.sock", "db", "u")
    assert str(target) == "mysql:///run/mysqld/mysqld.sock/db"


def test_dashes_underscores_and_capitals_are_one() -> None:
    assert parse_uri("mysql://u@h?ssl_mode=Verify-CA").ssl_mode is SslMode.VERIFY_CA
    assert parse_uri("mysql://u@h?connect_timeout=3").connect_timeout_s == 3


def test_passwords_by_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pw").write_text("from file\n")
    monkeypatch.setenv("MYPW", "from env")
    assert parse_uri("mysql://u@h/d?password=env:MYPW").password == "from env"
    assert parse_uri(f"mysql://u@h/d?password=file:{tmp_path}/pw").password == "from file"
    assert parse_uri("mysql://u@h/d?password=plain").password == "plain"


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("postgresql://u:secret@h/d", "postgresql scheme"),
        ("mysql://:secret@h/d", "names no user"),
        ("mysql://u:secret@h:port/d", "malformed"),
        ("mysql://u:secret@h/d?ssl-mode=maybe", "ssl-mode 'maybe' is not known"),
        ("mysql://u:secret@h/d?sslmode=required", "unknown parameter 'sslmode'"),
        ("mysql://u:secret@h/d?ssl-key=/secret", "ssl-key needs its certificate; give ssl-cert"),
        ("mysql://u:secret@h/d?ssl-mode=disabled&ssl-cert=/c", "ssl-cert is used with TLS only; use ssl-mode=required"),
        ("mysql://u@h/d?password=env:NOT_SET_HERE", "variable NOT_SET_HERE, which is not set"),
        ("mysql://u@h/d?password=file:/none/here", "password file /none/here cannot be read"),
        ("mysql://u@h/d?port=x", "port of the source URI must be a number from 1 to 65535"),
        ("mysql://u@h/d?connect-timeout=soon", "connect-timeout of the source URI must be a number from 1 to 3600"),
    ],
)
def test_malformed_uris_are_one_line_without_secrets(uri: str, message: str) -> None:
    with pytest.raises(SourceConfigError, match=message) as caught:
        parse_uri(uri)
    assert "secret" not in str(caught.value)


def test_table_ids_last() -> None:
    # These numbers stand in etcd and in lakes: they may never change.
    assert table_id("shop", "orders") == 5799016102194269868
    assert table_id("a", "bc") != table_id("ab", "c")
    assert 0 < table_id("", "") < 2**63
    check_distinct([("a", "b"), ("a", "c"), ("a", "b")])

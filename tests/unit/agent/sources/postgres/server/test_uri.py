"""Source URIs are read as libpq reads them, and no error repeats a password."""

from pathlib import Path

import pytest

from agent.errors import SourceConfigError
from agent.sources.common.tls import TlsMaterial
from agent.sources.postgres.server.uri import Target, parse_uri


def test_a_full_uri() -> None:
    target = parse_uri("postgresql://u%40x:p%2Fw@db.example:6432/shop?sslmode=verify-full&sslrootcert=/ca.pem")
    assert target == Target("db.example", 6432, "shop", "u@x", "p/w", "verify-full", TlsMaterial("/ca.pem"))
    assert str(target) == "postgresql://db.example:6432/shop"
    assert "p/w" not in repr(target)


def test_defaults() -> None:
    assert parse_uri("postgresql://me@h") == Target("h", 5432, "me", "me")


@pytest.mark.parametrize(
    ("query", "mode"),
    [
        ("", "prefer"),
        ("sslmode=allow", "prefer"),
        ("sslmode=disable&sslrootcert=/ca.pem", "disable"),
        ("sslrootcert=/ca.pem", "verify-ca"),
        ("sslmode=prefer&sslrootcert=/ca.pem", "verify-ca"),
        ("sslmode=require&sslrootcert=/ca.pem", "verify-ca"),
        ("sslmode=verify-full&sslrootcert=/ca.pem", "verify-full"),
        ("sslrootcert=system", "verify-full"),
        ("sslcert=/c&sslkey=/k", "require"),
        ("sslcert=/c&sslkey=/k&sslrootcert=/ca.pem", "verify-ca"),
        ("sslmode=verify-ca&sslcert=/c", "verify-ca"),
    ],
)
def test_what_is_named_decides_how_much_is_verified(query: str, mode: str) -> None:
    """libpq verifies against an authority that is named also where ``require`` is asked for."""
    assert parse_uri(f"postgresql://u@h/d?{query}").sslmode == mode


def test_a_key_is_in_no_repr() -> None:
    assert "/k" not in repr(parse_uri("postgresql://u@h/d?sslcert=/c&sslkey=/k"))


def test_a_unix_socket() -> None:
    target = parse_uri("postgresql:///db?host=/run/pg&port=5433&user=u")
    assert (target.socket_directory, target.port, target.database, target.user) == ("/run/pg", 5433, "db", "u")
    assert str(target) == "postgresql:///run/pg:5433/db"


@pytest.mark.parametrize(
    ("uri", "places"),
    [
        ("postgresql://u@a:1,b:2/d", ["a:1", "b:2"]),
        ("postgresql://u:p,w%40@a,b:2,[::1]/d", ["a:5432", "b:2", "[::1]:5432"]),
        ("postgresql://u@a,b/d?port=7", ["a:7", "b:7"]),
        ("postgresql://u@/d?host=a,/run/pg&port=1,2", ["a:1", "/run/pg:2"]),
        ("postgresql://u@[fe80::1]:5/d", ["[fe80::1]:5"]),
    ],
)
def test_several_hosts(uri: str, places: list[str]) -> None:
    target = parse_uri(uri)
    assert [str(place) for place in target.places] == [f"postgresql://{place}/d" for place in places]
    assert str(target) == f"postgresql://{','.join(places)}/d"
    assert target.wants_primary == (len(places) > 1)
    assert {place.password for place in target.places} == {target.password}


@pytest.mark.parametrize(
    ("uri", "words"),
    [
        ("postgresql://u@a,b,c/d?port=1,2", "has 3 hosts and 2 ports; write one port for all"),
        ("postgresql://u@a:1,b:99999/d", "port of the source URI must be a number from 1 to 65535"),
        ("postgresql://u@a:1,b:x/d", "is malformed"),
        (f"postgresql://u@{','.join('h' * 17)}/d", "has 17 hosts; name 16 at most"),
        ("postgresql://u@a,b/d?target_session_attrs=standby", "use one of any, primary, read-write"),
    ],
)
def test_several_hosts_that_are_wrong(uri: str, words: str) -> None:
    with pytest.raises(SourceConfigError, match=words):
        parse_uri(uri)


@pytest.mark.parametrize(
    ("value", "wants_primary"), [("any", False), ("primary", True), ("read-write", True), ("", True)]
)
def test_a_standby_is_passed_over(value: str, wants_primary: bool) -> None:
    query = f"?target_session_attrs={value}" if value else ""
    assert parse_uri(f"postgresql://u@a,b/d{query}").wants_primary == wants_primary


def test_passwords_by_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pw").write_text("from file\n")
    monkeypatch.setenv("PGPW", "from env")
    assert parse_uri("postgresql://u@h/d?password=env:PGPW").password == "from env"
    assert parse_uri(f"postgresql://u@h/d?password=file:{tmp_path}/pw").password == "from file"
    assert parse_uri("postgresql://u@h/d?password=plain").password == "plain"


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("mysql://u:secret@h/d", "mysql scheme"),
        ("postgresql://:secret@h/d", "names no user"),
        ("postgresql://u:secret@h:port/d", "malformed"),
        ("postgresql://u:secret@h/d?sslmode=maybe", "sslmode 'maybe' is not known"),
        ("postgresql://u:secret@h/d?ssl=on", "unknown parameter 'ssl'"),
        (
            "postgresql://u:secret@h/d?channel_binding=no",
            "channel_binding 'no' is not known; use one of prefer, require",
        ),
        ("postgresql://u:secret@h/d?sslkey=/secret", "sslkey needs its certificate; give sslcert"),
        ("postgresql://u:secret@h/d?sslmode=disable&sslcert=/c", "sslcert is used with TLS only; use sslmode=require"),
        ("postgresql://u:secret@h/d?sslrootcert=system&sslmode=require", "sslrootcert=system is safe with .* only"),
        ("postgresql://u@h/d?sslcert=/c&sslkey=file:/none/here", "sslkey file /none/here cannot be read"),
        ("postgresql://u@h/d?password=env:NOT_SET_HERE", "variable NOT_SET_HERE, which is not set"),
        ("postgresql://u@h/d?password=file:/none/here", "password file /none/here cannot be read"),
        ("postgresql://u@h/d?port=x", "port of the source URI must be a number from 1 to 65535"),
        (
            "postgresql://u@h/d?connect_timeout=soon",
            "connect_timeout of the source URI must be a number from 1 to",
        ),
    ],
)
def test_malformed_uris_are_one_line_without_secrets(uri: str, message: str) -> None:
    with pytest.raises(SourceConfigError, match=message) as caught:
        parse_uri(uri)
    assert "secret" not in str(caught.value)

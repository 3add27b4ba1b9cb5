"""Secrets never show, and come back only to whoever has the key."""

import re
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agent.errors import SourceConfigError
from agent.sources.mysql.server import uri as mysql
from agent.sources.postgres.server import uri as postgres
from capture.errors import ConfigError
from capture.security.key_file import new_key
from capture.security.secrets import Keeper, mask, resolve

#: what cures say to write
PLACEHOLDER = "postgresql://user:password@host/db"


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("postgresql://u:pw@h:1/d", "postgresql://u:***@h:1/d"),
        ("postgresql://u:p@ss@h/d?sslmode=require", "postgresql://u:***@h/d?sslmode=require"),
        ("postgresql://u@h/d?password=pw&x=1", "postgresql://u@h/d?password=***&x=1"),
        ("postgresql://u@h/d?password=env:PW", "postgresql://u@h/d?password=env:PW"),
        ("s3://b/p?aws_secret_access_key=k&region=eu", "s3://b/p?aws_secret_access_key=***&region=eu"),
        ("s3://b/p?access-key=k", "s3://b/p?access-key=***"),
        ("delta+file:///a:b@c", "delta+file:///a:b@c"),
        ("cannot reach mysql://a:b@h, nor pg://c:d@h", "cannot reach mysql://a:***@h, nor pg://c:***@h"),
        ("no uri at all", "no uri at all"),
        ("postgresql://u:p@s/w@h/d?a=1", "postgresql://u:***@h/d?a=1"),
        ("postgresql://u:p?s@w#x@h/d", "postgresql://u:***@h/d"),
        ("postgresql://me@corp:pw@h/d", "postgresql://me@corp:***@h/d"),
        ("postgresql://u@h:5432/d?sslmode=require", "postgresql://u@h:5432/d?sslmode=require"),
        (
            "malformed; write postgresql://user:password@host:port/db",
            "malformed; write postgresql://user:password@host:port/db",
        ),
        ("kafka://h:9092/topic?protocol=avro", "kafka://h:9092/topic?protocol=avro"),
    ],
)
def test_passwords_are_masked(text: str, masked: str) -> None:
    assert mask(text) == masked
    assert mask(masked) == masked


@given(st.text(alphabet="abcXYZ019!$&'()*+,;=:@%~._-/?#[]{}\"", min_size=1))
def test_no_part_of_a_password_is_left(password: str) -> None:
    assert mask(f"postgresql://user:{password}@host/db") in ("postgresql://user:***@host/db", PLACEHOLDER)


@pytest.mark.parametrize("scheme", ["postgresql", "mysql", "mariadb"])
@given(secret=st.text(alphabet="QXZ789@/?#:%", min_size=1).filter(lambda text: any(c in text for c in "@/?#")))
@example(secret="p@QXZZ/mine99")
@example(secret="p@QXZZ?mine99")
@example(secret="1234?QXZZ9")
@example(secret="p@QX#mine99")
def test_no_error_shows_a_part_of_a_password_that_is_not_escaped(scheme: str, secret: str) -> None:
    parse = mysql.parse_uri if scheme != "postgresql" else postgres.parse_uri
    uri, shown = f"{scheme}://user:{secret}@host.example/db", ""
    try:
        shown = str(parse(uri))
    except SourceConfigError as error:
        shown = str(error)
    parts = [part for part in re.split("[@/?#:%]", secret) if len(part) > 2]
    assert not any(part in shown for part in parts)


def test_references_are_looked_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pw").write_text("from file\n")
    monkeypatch.setenv("SHELL_TEST_PW", "p@ss/word")
    resolved = urlsplit(resolve("postgresql://u@h:5432/d?password=env:SHELL_TEST_PW&sslmode=disable"))
    assert (resolved.username, resolved.password, resolved.query) == ("u", "p%40ss%2Fword", "sslmode=disable")
    assert resolve(f"s3://b/p?secret_access_key=file:{tmp_path}/pw") == "s3://b/p?secret_access_key=from%20file"
    assert resolve("delta+file:///a b") == "delta+file:///a b"


def test_a_reference_to_nothing_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="variable SHELL_TEST_NONE is not set"):
        resolve("postgresql://u@h/d?password=env:SHELL_TEST_NONE")
    with pytest.raises(ConfigError, match=r"cannot read the secret file .*none"):
        resolve(f"postgresql://u@h/d?password=file:{tmp_path}/none")


def test_what_is_sealed_opens_with_the_same_key_only() -> None:
    keeper = Keeper(new_key())
    sealed = keeper.seal("postgresql://u:geheim@h/d")
    assert "geheim" not in repr(sealed)
    assert keeper.open(sealed) == "postgresql://u:geheim@h/d"
    with pytest.raises(ConfigError, match=r"sealed with another key.*--secret-key-file") as caught:
        Keeper(new_key()).open(sealed)
    assert "geheim" not in str(caught.value)


def test_references_are_stored_as_references(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHELL_TEST_PW", "geheim")
    keeper = Keeper(new_key())
    sealed = keeper.seal("postgresql://u@h/d?password=env:SHELL_TEST_PW")
    assert keeper.open(sealed).endswith("env:SHELL_TEST_PW")
    assert resolve(keeper.open(sealed)) == "postgresql://u:geheim@h/d"


def test_a_cluster_of_one_machine_makes_its_own_key(tmp_path: Path) -> None:
    path = tmp_path / "new" / "secret.key"
    first = Keeper.from_own_file(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert Keeper.from_own_file(path).open(first.seal("x://y")) == "x://y"
    assert list(path.parent.iterdir()) == [path]


def test_key_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read the secret key file"):
        Keeper.from_file(tmp_path / "none")
    (tmp_path / "bad").write_text("not a key")
    with pytest.raises(ConfigError, match="not a Fernet key"):
        Keeper.from_file(tmp_path / "bad")


def test_a_malformed_uri_is_refused_without_its_secret() -> None:
    with pytest.raises(ConfigError, match="a URI is malformed") as caught:
        resolve("postgresql://u:geheim@[::1/d?password=x")
    assert "geheim" not in str(caught.value)

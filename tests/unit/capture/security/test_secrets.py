"""Secrets never show, and come back only to whoever has the key."""

from pathlib import Path
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capture.errors import ConfigError
from capture.security.secrets import Keeper, mask, new_key, resolve


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
        ("kafka://h:9092/topic?protocol=avro", "kafka://h:9092/topic?protocol=avro"),
    ],
)
def test_passwords_are_masked(text: str, masked: str) -> None:
    assert mask(text) == masked
    assert mask(masked) == masked


@given(st.text(alphabet="abcXYZ019!$&'()*+,;=:@%~._-", min_size=4).filter(lambda text: "***" not in text))
def test_no_password_is_left(password: str) -> None:
    assert password not in mask(f"postgresql://user:{password}@host/db").replace("postgresql://user:", "")


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
    assert keeper.connectable(sealed) == "postgresql://u:geheim@h/d"


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

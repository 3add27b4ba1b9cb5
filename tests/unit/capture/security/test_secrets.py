"""Secrets never show, and come back only to whoever has the key."""

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agent.errors import SourceConfigError
from agent.sources.mysql.server import uri as mysql
from agent.sources.postgres.server import uri as postgres
from capture.errors import ConfigError
from capture.security.key_file import new_key
from capture.security.secrets import Keeper, mask, mask_uri, resolve

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
        ("s3://b/p?secret_access_key=a'b\"c: no", "s3://b/p?secret_access_key=*** no"),
        ("'s3://b/p?token=a', 's3://b/p?token=b'.", "'s3://b/p?token=***', 's3://b/p?token=***'."),
        ("s3://b/p?t%6fken=a", "s3://b/p?t%6fken=***"),
        ("az://b/p?sas_key=a", "az://b/p?sas_key=***"),
    ],
)
def test_passwords_are_masked(text: str, masked: str) -> None:
    assert mask(text) == masked
    assert mask(masked) == masked


@given(st.text(alphabet="abcXYZ019!$&'()*+,;=:@%~._-/?#[]{}\"", min_size=1))
def test_no_part_of_a_password_is_left(password: str) -> None:
    assert mask(f"postgresql://user:{password}@host/db") in ("postgresql://user:***@host/db", PLACEHOLDER)


@given(st.text(min_size=1), st.sampled_from(["{}?password=x&user=u", "{}", "{}?sslmode=require"]))
@example("a secret77", "{}")
@example("user:password@secret77", "{}")
def test_no_part_of_a_password_is_left_in_a_uri(password: str, end: str) -> None:
    """Where a URI is alone, nothing in it ends it. Blanks and quotes ended the password."""
    shown = mask_uri(f"postgresql://user:{password}@host/{end.format('db')}")
    assert shown == f"postgresql://user:***@host/{end.format('db')}".replace("password=x", "password=***")
    assert mask_uri(shown) == shown


@pytest.mark.sample(0.2)
@pytest.mark.parametrize("scheme", ["delta+az://c/x", "postgresql://u@h/d", "iceberg+rest://h"])
@pytest.mark.parametrize(
    "name",
    [
        *("password", "pass%77ord", "PASSWD", "passphrase", "pwd", "sas_key", "azure_storage_sas_key", "sas_token"),
        *(
            "sas",
            "sig",
            "aws_secret_access_key",
            "aws_sse_customer_key_base64",
            "adls.connection-string",
            "account_key",
        ),
        *("header.Authorization", "header.x", "bearer", "credential", "token", "s3.session-token", "client_secret"),
        *("google_service_account_key", "oauth-auth", "x-signature"),
    ],
)
@given(st.text(alphabet=st.characters(exclude_characters="&", exclude_categories=["Cs"]), min_size=1))
@example("a'secret77")
@example('{"private_key":"secret77"}')
def test_no_part_of_a_secret_parameter_is_left(scheme: str, name: str, value: str) -> None:
    shown = mask_uri(f"{scheme}?{name}={value}&sslmode=require")
    assert shown in (f"{scheme}?{name}=***&sslmode=require", f"{scheme}?{name}={value}&sslmode=require")
    assert shown.endswith(f"{name}=***&sslmode=require") or re.fullmatch("(env|file):.+", unquote(value), re.DOTALL)


def test_a_parameter_that_is_a_uri_hides_its_password() -> None:
    for value in ("http://u:secret77@p/", "http%3A%2F%2Fu%3Asecret77%40p%2F", "az://x%3Fsas_token=secret77"):
        assert "secret77" not in mask_uri(f"delta+s3://b/x?proxy_url={value}")
    assert mask_uri("delta+s3://b/x?AWS_ENDPOINT_URL=http://h:1&AWS_REGION=eu").endswith(
        "?AWS_ENDPOINT_URL=http://h:1&AWS_REGION=eu"
    )


def test_what_is_stored_for_display_has_no_secret() -> None:
    sealed = Keeper(new_key()).seal("postgresql://u:a secret77@h/d?application_name='x'&password=a'secret77")
    assert sealed.masked == "postgresql://u:***@h/d?application_name='x'&password=***"


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

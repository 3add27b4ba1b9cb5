"""Reach of a changefeed: what it may name by the settings, never the server's own secrets; existing ones keep it."""

from pathlib import Path
from urllib.parse import quote

import pytest
from structlog.testing import capture_logs

from agent.sources.postgres.server.uri import parse_uri
from capture.config import load_server_settings
from capture.errors import ConfigError
from capture.security.reach import Reach
from capture.security.secrets import mask, mask_uri, resolve


def reach(directory: Path, **settings: object) -> Reach:
    return Reach(load_server_settings(data_dir=directory / "data", **settings).reach)


def source(reference: str) -> str:
    return f"postgresql://u@db/shop?password={reference}"


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A data directory as a server makes it, and files around it."""
    data = tmp_path / "data"
    (data / "secrets" / "more").mkdir(parents=True)
    for name in ("secret.key", "api-token", "secrets/shop", "secrets/more/shop"):
        (data / name).write_text(f"content of {name}\n")
    (tmp_path / "outside").write_text("content of outside\n")
    (data / "secrets" / "link").symlink_to(tmp_path / "outside")
    (data / "secrets" / "key").symlink_to(data / "secret.key")
    return tmp_path


def test_without_settings_secrets_made_for_changefeeds_are_allowed(
    files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEIR_SECRET_SHOP", "from env")
    one, data = reach(files), files / "data"
    found = {
        "env:WEIR_SECRET_SHOP": "from env",
        "file:shop": "content of secrets/shop",
        f"file:{data}/secrets/more/shop": "content of secrets/more/shop",
        "plain": "plain",
    }
    for reference, content in found.items():
        one.check(source=source(reference), sink=f"delta+s3://b/x?AWS_SECRET_ACCESS_KEY={reference}")
        assert one.look_up(reference) == content
    assert resolve(source("file:shop"), one.look_up) == "postgresql://u:content%20of%20secrets%2Fshop@db/shop?"[:-1]
    one.check(source="postgresql://u:env%3AHOME@anywhere.example/d", sink="delta+file:///anywhere")


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ("env:HOME", r"env:HOME is not allowed \(setting secret-references: env:WEIR_SECRET_\*"),
        ("env:WEIR_ETCD_PASSWORD", "WEIR_ETCD_PASSWORD is the server's own; name a secret WEIR_SECRET_"),
        ("env:WEIR_TOKEN", "is the server's own"),
        ("file:/etc/passwd", "file:/etc/passwd is not allowed"),
        ("file:{0}/outside", "is not allowed"),
        ("file:{0}/data/secret.key", "is the server's own; put secrets of changefeeds into"),
        ("file:{0}/data/secrets/../secret.key", "is the server's own"),
        ("file:../secret.key", "is the server's own"),
        ("file:../api-token", "is the server's own"),
        ("file:link", "is not allowed"),
        ("file:key", "is the server's own"),
        ("file:/proc/self/environ", "is the server's own"),
        ("file:/proc/1/root{0}/data/secret.key", "is the server's own|cannot be a file"),
        ("file:{0}/data/secret.key%0A", "is not allowed"),
        ("file:%00", "cannot be a file"),
    ],
)
def test_what_is_not_allowed_is_refused_with_its_setting(files: Path, reference: str, said: str) -> None:
    one = reach(files)
    uri = source(reference.format(files))
    for asked in ({"source": uri}, {"sink": f"delta+s3://b/x?k={reference.format(files)}"}):
        with pytest.raises(ConfigError, match=said):
            one.check(**asked)
    with pytest.raises(ConfigError):
        one.check(source=uri.replace("?password=", "?password=x&password="))


def test_settings_allow_more_but_never_the_servers_own(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = files / "elsewhere.key"
    key.write_text("key")
    one = reach(
        files, secret_references="env:*,file:/*", secret_key_file=key, tls_ca_file=files / "ca.pem", tls_key_file=key
    )
    monkeypatch.setenv("SHOP_PW", "pw")
    one.check(source=source("env:SHOP_PW"))
    one.check(source=source(f"file:{files}/outside"))
    for reference in (f"file:{key}", f"file:{files}/ca.key", "file:../secret.key", "env:WEIR_ETCD_PASSWORD"):
        with pytest.raises(ConfigError, match="the server's own"):
            one.check(source=source(reference))
        with pytest.raises(ConfigError, match="the server's own"):
            one.look_up(reference)


def test_a_secret_that_is_a_reference_is_none(files: Path) -> None:
    (files / "data" / "secrets" / "shop").write_text("env:HOME\n")
    with pytest.raises(ConfigError, match="is a reference again; name the secret itself"):
        reach(files).look_up("file:shop")


@pytest.mark.parametrize(
    ("uri", "is_allowed"),
    [
        ("postgresql://u@db.example.org/d", True),
        ("postgresql://u@DB.Example.org:5432/d", True),
        ("postgresql://u@a.shop.example.org/d", True),
        ("postgresql://u@shop.example.org.evil.net/d", False),
        ("postgresql://u@evil.net/d", False),
        ("postgresql://db.example.org@evil.net/d", False),
        ("postgresql://u@db.example.org/d?host=evil.net", False),
        ("postgresql://u@db.example.org,evil.net/d", False),
        ("mysql://u@db.example.org/d?socket=/run/mysqld.sock", False),
        ("mysql://u@10.1.2.3/d", True),
        ("mysql://u@10.2.2.3/d", False),
        ("mysql://u@192.168.0.1:3306/d", True),
        ("mysql://u@192.168.0.1:3307/d", False),
        ("mysql://u@192.168.0.1:3306/d?port=22", False),
        ("mysql://u@[2001:db8::1]:3306/d", True),
        ("mysql://u@[2001:db9::1]/d", False),
        ("mysql://u@/d", False),
        ("postgresql://u@192.168.0.1:3306,db.example.org:5/d", True),
        ("postgresql://u@192.168.0.1,db.example.org:3306/d", False),
        ("postgresql://u@192.168.0.1,db.example.org/d?port=3306", True),
        ("postgresql://u@192.168.0.1,db.example.org/d?port=1,3306", False),
        ("postgresql://u@/d?host=192.168.0.1,other.example&port=3306", False),
    ],
)
def test_hosts_of_sources(tmp_path: Path, uri: str, is_allowed: bool) -> None:
    hosts = "db.example.org, *.shop.example.org, 10.1.0.0/16, 192.168.0.1:3306, 2001:db8::/32"
    one = reach(tmp_path, source_hosts=hosts)
    if is_allowed:
        return one.check(source=uri)
    with pytest.raises(ConfigError, match=r"setting source-hosts: db\.example\.org"):
        one.check(source=uri)
    return None


@pytest.mark.parametrize(
    ("uri", "is_allowed"),
    [
        ("delta+file:///lake", True),
        ("delta+file:///lake/shop?retention_seconds=5", True),
        ("delta+file:///lakehouse", False),
        ("delta+file:///lake/../etc", False),
        ("delta+file:///lake/%2e%2e/etc", False),
        ("delta+file:///", False),
        ("delta+s3://bucket/weir/x", True),
        ("delta+s3://bucket/other", False),
        ("delta+s3://bucket/weir/x?AWS_ENDPOINT_URL=https://minio.example", True),
        ("delta+s3://bucket/weir/x?AWS_ENDPOINT_URL=http://169.254.169.254", False),
        ("delta+s3://bucket/weir/x?proxy_url=http://169.254.169.254", False),
        ("delta+s3://bucket/weir/x?azure_authority_host=http://169.254.169.254", False),
        ("delta+abfss://shop@account.dfs.core.windows.net/x", True),
        ("delta+abfss://other@account.dfs.core.windows.net/x", False),
        ('delta+gs://bucket/x?service_account_key={"gcs_base_url":"http://169.254.169.254"}', False),
        ("blackhole://", False),
        ("iceberg+sql://db.example/catalog?warehouse=s3://bucket/weir", True),
        ("iceberg+sql://db.example/catalog?warehouse=/srv/lake/shop", True),
        ("iceberg+sql://db.example/catalog?warehouse=/srv/lake/../other", False),
        ("iceberg+sql://db.example/catalog?warehouse=/etc", False),
        ("iceberg+sql://db.example/catalog?warehouse=s3://other", False),
        ("iceberg+sql://db.example/catalog?warehouse=s3://bucket/weir&adls.account-host=169.254.169.254", False),
        ("iceberg+sql://db.example/catalog?warehouse=shop", True),
        ("delta+az://cont/x?account_name=shop", True),
        ("delta+az://cont/x?azure_storage_account_name=evil", False),
        ("iceberg+sql://db.example/catalog?warehouse=shop&adls.account-name=evil", False),
        ("delta+az://cont/x?azure_storage_use_emulator=true", False),
        ("delta+az://cont/x?account_name=shop&use_emulator=false", True),
    ],
)
def test_prefixes_of_sinks(tmp_path: Path, uri: str, is_allowed: bool) -> None:
    prefixes = "delta+file:///lake, delta+s3://bucket/weir/, https://minio.example, delta+gs://bucket"
    prefixes += ", delta+abfss://shop@account.dfs.core.windows.net"
    prefixes += ", delta+az://cont, https://shop.blob.core.windows.net"
    prefixes += ", iceberg+sql://db.example, s3://bucket, file:///srv/lake"
    one = reach(tmp_path, sink_prefixes=prefixes)
    if is_allowed:
        return one.check(sink=uri)
    with pytest.raises(ConfigError, match="setting sink-prefixes: delta"):
        one.check(sink=uri)
    return None


@pytest.mark.parametrize("prefixes", ["", "delta+s3://bucket, delta+az://cont, iceberg+rest://h"])
@pytest.mark.parametrize("value", ["evil.net/", "x@169.254.169.254/", "a.b", "", "a:1", "ｅu-1", "eu\n"])
@pytest.mark.parametrize("uri", ["delta+s3://bucket/x?aws_region=", "iceberg+rest://h/x?s3.region="])
def test_a_part_of_a_hosts_name_is_no_whole_one(tmp_path: Path, uri: str, value: str, prefixes: str) -> None:
    """Clients connect to s3.REGION.amazonaws.com and to ACCOUNT.blob.core.windows.net."""
    one = reach(tmp_path, sink_prefixes=prefixes)
    for name in (uri, "delta+az://cont/x?account_name="):
        with pytest.raises(ConfigError, match="has letters, digits and hyphens only"):
            one.check(sink=f"{name}{quote(value)}")
    one.check(sink=f"{uri}eu-central-1")
    one.check(sink=f"{uri}env:WEIR_SECRET_REGION")


def test_links_in_a_sinks_path_are_what_they_lead_to(tmp_path: Path) -> None:
    (tmp_path / "lake").mkdir()
    (tmp_path / "also").symlink_to(tmp_path / "lake")
    (tmp_path / "lake" / "out").symlink_to("/etc")
    for prefix in ("lake", "also"):
        one = reach(tmp_path, sink_prefixes=f"delta+file://{tmp_path}/{prefix}")
        one.check(sink=f"delta+file://{tmp_path}/lake/shop")
        one.check(sink=f"delta+file://{tmp_path}/also/shop")
        with pytest.raises(ConfigError, match="setting sink-prefixes"):
            one.check(sink=f"delta+file://{tmp_path}/lake/out")


def test_what_exists_keeps_what_it_uses_with_one_warning(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_PW", "pw")
    one = reach(files, source_hosts="other.example")
    with capture_logs() as logs:
        for _ in range(3):
            one.note("shop", source=source("env:SHOP_PW"), sink="delta+file:///lake")
    assert [line["changefeed"] for line in logs] == ["shop", "shop"]
    assert {line["log_level"] for line in logs} == {"warning"}
    assert one.look_up("env:SHOP_PW") == "pw"


@pytest.mark.parametrize(
    "option",
    ["aws_web_identity_token_file", "azure_federated_token_file", "service_account", "application_credentials"],
)
def test_a_file_that_a_storage_option_names_counts_as_a_reference(files: Path, option: str) -> None:
    one = reach(files, secret_references=f"file:{files}/allowed/*")
    one.check(sink=f"delta+s3://b/x?{option}={files}/allowed/token")
    for name in ("/etc/shadow", f"{files}/allowed/../secret.key", "/proc/self/environ"):
        with pytest.raises(ConfigError, match=r"is not allowed|is the server's own"):
            one.check(sink=f"delta+s3://b/x?{option}={name}")


@pytest.mark.parametrize("option", ["sslkey", "sslcert", "ssl-key", "ssl_cert"])
def test_a_certificates_file_counts_as_a_reference(files: Path, option: str) -> None:
    """Whoever may create changefeeds could else use any key of the server, before a database of his choice."""
    one = reach(files, secret_references=f"file:{files}/allowed/*")
    scheme = "mysql" if option.startswith("ssl-") else "postgresql"
    one.check(source=f"{scheme}://u@h/d?{option}={files}/allowed/client.pem")
    for name in ("/etc/ssl/private/other.key", f"{files}/allowed/../secret.key"):
        with pytest.raises(ConfigError, match=r"is not allowed|is the server's own"):
            one.check(source=f"{scheme}://u@h/d?{option}={name}")
    text = quote("-----BEGIN PRIVATE KEY-----\nMIIE\n-----END PRIVATE KEY-----\n")
    one.check(source=f"{scheme}://u@h/d?{option}={text}")
    for shown in (mask_uri, mask):
        assert "MIIE" not in shown(f"{scheme}://u@h/d?{option}={text}")
        assert "MIIE" not in shown(f"{scheme}://u@h/d?{option}={text.replace('%20', '+')}&sslmode=require")


def test_a_reference_to_a_key_is_resolved_to_its_text(files: Path) -> None:
    """It travels with the URI, so that no executor needs the file."""
    pem = "-----BEGIN PRIVATE KEY-----\nMII+/E=\n-----END PRIVATE KEY-----\n"
    (files / "data" / "secrets" / "client.key").write_text(pem)
    one = reach(files)
    uri = "postgresql://u@h/d?sslcert=%2Fc.pem&sslkey=file:client.key"
    one.check(source=uri.replace("sslcert=%2Fc.pem", "sslcert=file:client.pem"))
    assert parse_uri(resolve(uri, one.look_up)).tls.key.strip() == pem.strip()

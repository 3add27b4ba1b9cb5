"""Settings: where they come from, and what the user reads when one is wrong."""

import json
from pathlib import Path

import pytest

from capture.config import load_changefeed_config, load_server_settings
from capture.errors import ConfigError
from reactor.records.changefeed import ChangefeedConfig
from reactor.records.formats import needed_by


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("WEIR_ADDR", "WEIR_ETCD", "WEIR_CLUSTER_ID", "WEIR_DATA_DIR", "WEIR_SESSION_TTL_SECONDS"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "weir.toml"


def test_there_is_a_default_for_everything(file: Path) -> None:
    settings = load_server_settings()
    assert settings.etcd == ()
    assert settings.addr == "127.0.0.1:8300"
    assert settings.log_storage_uri.endswith("/weir-data/log")


def test_flags_win_over_variables_over_the_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text('addr = "a:1"\ncluster-id = "from-file"\ndata-dir = "/file"\n[spark]\n"spark.x-y" = "1"\n')
    monkeypatch.setenv("WEIR_CLUSTER_ID", "from-env")
    monkeypatch.setenv("WEIR_DATA_DIR", "/env")
    settings = load_server_settings(file, data_dir=Path("/flag"), addr=None)
    assert (settings.addr, settings.cluster_id, settings.data_dir) == ("a:1", "from-env", Path("/flag"))
    assert settings.spark == {"spark.x-y": "1"}


def test_several_endpoints_are_separated_by_commas(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_server_settings(etcd="http://a:1, http://b:2").etcd == ("http://a:1", "http://b:2")
    monkeypatch.setenv("WEIR_ETCD", "http://c:3,http://d:4")
    assert load_server_settings().etcd == ("http://c:3", "http://d:4")
    file.write_text('etcd = ["http://e:5"]')
    monkeypatch.delenv("WEIR_ETCD")
    assert load_server_settings(file).etcd == ("http://e:5",)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('clutser-id = "x"', r"unknown key 'clutser-id' in .*weir.toml; did you mean 'cluster-id'\?"),
        ("zzz = 1", r"unknown key 'zzz' in .*; known keys: addr, .*"),
        ('session-ttl-seconds = "soon"', r"'session-ttl-seconds' in .*weir.toml: input should be a valid integer"),
        (
            "session-ttl-seconds = 1",
            r"'session-ttl-seconds' in .*weir.toml: input should be greater than or equal to 5",
        ),
        ('addr = "nowhere"', r"'addr' in .*weir.toml: 'nowhere' is not host:port"),
        ('cluster-id = "owner"', r"'cluster-id' in .*weir.toml: cluster id 'owner' is a word of the key space"),
        ("addr = 8300", r"'addr' in .*weir.toml: must be a text in quotes"),
        ('[spark]\n"spark.executor.memory" = 4', r"'spark.spark.executor.memory' in .*: must be a text in quotes"),
        ("x = = 1", r"weir.toml is not TOML"),
    ],
)
def test_a_wrong_file_is_explained_in_one_line(file: Path, content: str, message: str) -> None:
    file.write_text(content)
    with pytest.raises(ConfigError, match=message) as caught:
        load_server_settings(file)
    assert "\n" not in str(caught.value)


def test_wrong_flags_and_variables_are_called_by_their_names(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="'addr' in --addr:"):
        load_server_settings(addr="x")
    monkeypatch.setenv("WEIR_SESSION_TTL_SECONDS", "2")
    with pytest.raises(ConfigError, match="in WEIR_SESSION_TTL_SECONDS:"):
        load_server_settings()


def test_a_missing_file_is_named(file: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*weir\.toml"):
        load_server_settings(file)


def test_passwords_do_not_show_in_settings() -> None:
    assert "geheim" not in repr(load_server_settings(etcd_password="geheim"))


def test_a_changefeed_file_is_read(file: Path) -> None:
    file.write_text('force-replicate = true\n[filter]\nrules = ["a.*", "!a.tmp*"]\n')
    config = load_changefeed_config(file)
    assert config.force_replicate
    assert config.filter.rules == ("a.*", "!a.tmp*")


def test_layouts_have_properties_with_names_of_their_own(file: Path) -> None:
    file.write_text(
        '[[layout]]\nmatcher = ["shop.*"]\npartition-by = ["day(made)"]\nsort-by = ["id"]\n'
        'properties = { "write.parquet.compression-codec" = "zstd" }\n'
    )
    [layout] = load_changefeed_config(file).layout
    assert (layout.matcher, layout.partition_by, layout.sort_by) == (("shop.*",), ("day(made)",), ("id",))
    assert layout.properties == {"write.parquet.compression-codec": "zstd"}
    for wrong, message in (
        (
            '[[layout]]\nmatcher = ["a.b"]\npartition-bi = []',
            "unknown key 'layout.partition-bi' in .*; did you mean 'partition-by'",
        ),
        ('[[layout]]\npartition-by = ["a"]', "'layout.0.matcher' in .*: field required"),
        ('[[layout]]\nmatcher = ["a.b"]\nproperties = { a = 1 }', "'layout.0.properties.a' in .*: must be a text"),
    ):
        file.write_text(wrong)
        with pytest.raises(ConfigError, match=message):
            load_changefeed_config(file)


@pytest.mark.parametrize(
    "content", ['slot = "s"\nzero-dates = "string"', '[source]\nslot = "s"\nzero-dates = "string"']
)
def test_settings_of_a_source_are_stored_as_v0_1_0_did_wherever_they_are_written(file: Path, content: str) -> None:
    file.write_text(content)
    config = load_changefeed_config(file)
    assert config.source_settings == {"slot": "s", "zero_dates": "string"}
    stored = json.loads(config.encode())
    assert (stored["slot"], stored["zero_dates"], "source" in stored) == ("s", "string", False)
    assert ChangefeedConfig.decode(config.encode(), key="k") == config


def test_settings_of_a_source_that_nobody_here_knows_are_kept_for_its_plugin(file: Path) -> None:
    file.write_text('[source]\nmax-depth = 3\nstrict = true\nslot = "s"')
    config = load_changefeed_config(file)
    assert config.source_settings == {"max_depth": 3, "strict": True, "slot": "s"}
    assert ChangefeedConfig.decode(config.encode(), key="k") == config
    assert needed_by(config) == {"source": 2}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            'slot = "a"\n[source]\nslot = "b"',
            r"slot is set below \[source\] and outside of it; keep the one below \[source\]$",
        ),
        ('[source]\nzero-dates = "never"', r"'zero-dates' in .*: input should be 'null', 'strict' or 'string'"),
        ("[source]\ntables = [1]", r"'source.tables.*' in .*: input should be"),
        ("force-replicat = true", r"unknown key 'force-replicat' in .*; did you mean 'force-replicate'\?"),
        ("[filter]\nrule = []", r"unknown key 'filter.rule' in .*; did you mean 'rules'\?"),
        ('[filter]\nrules = "a.*"', r"'filter.rules' in .*: must be a list; correct its value"),
        ("filter = 3", r"'filter' in .*: must be a table"),
        ("[[filter.event-filters]]\nmachter = []", r"unknown key 'filter.event-filters.machter' .*mean 'matcher'"),
        ("split-rows = 1\nsplit_rows = 2", r"'split-rows' and 'split_rows' are the same key; keep one"),
        ("split-rows = " + "9" * 30, r"'split-rows' in .*: input should be less than"),
        ("gc-ttl-seconds = nan", r"'gc-ttl-seconds' in .*: input should be a"),
        ("dump-chunk-rows = 1", r"'dump-chunk-rows' in .*: input should be greater than"),
    ],
)
def test_a_wrong_changefeed_file_is_explained(file: Path, content: str, message: str) -> None:
    file.write_text(content)
    with pytest.raises(ConfigError, match=message):
        load_changefeed_config(file)


def test_other_captures_are_listened_to_on_the_same_host() -> None:
    assert load_server_settings(addr="10.0.0.1:8300").listen_peer_addr == "10.0.0.1:0"
    assert load_server_settings(addr="[::1]:8300").listen_peer_addr == "[::1]:0"
    assert load_server_settings(peer_addr="h:9").listen_peer_addr == "h:9"
    with pytest.raises(ConfigError, match="'peer-addr' in --peer-addr"):
        load_server_settings(peer_addr="h")


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"addr": "localhost:1", "peer_addr": "[::1]:2"},
        {"addr": "10.0.0.1:8300", "insecure": True},
        {"addr": "10.0.0.1:8300", "tls_ca_file": "ca", "tls_cert_file": "c", "tls_key_file": "k"},
    ],
)
def test_loopback_needs_no_tls_and_other_addresses_do(given: dict[str, object]) -> None:
    load_server_settings(**given).check_reach()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"addr": "10.0.0.1:8300"}, r"addr 10.0.0.1:8300 can be reached from other machines.*; give .* or --insecure"),
        ({"addr": "0.0.0.0:1"}, "addr 0.0.0.0:1 can be reached"),
        ({"addr": "database:1"}, "addr database:1 can be reached"),
        ({"peer_addr": "[2001:db8::1]:2"}, "peer-addr .* can be reached"),
        ({"tls_cert_file": "c", "tls_key_file": "k"}, "TLS needs .* together; give tls-ca-file too"),
    ],
)
def test_what_other_machines_reach_is_encrypted_or_refused(given: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_server_settings(**given).check_reach()


def test_a_spark_cluster_over_a_network_is_protected_or_refused() -> None:
    protected = {"spark.authenticate": "true", "spark.network.crypto.enabled": "true", "spark.authenticate.secret": "x"}
    for given in (
        {"spark_master": "local[2]"},
        {"spark_master": "spark://h:7077", "spark": protected},
        {"spark_master": "spark://h:7077", "insecure_spark": True},
    ):
        load_server_settings(**given).check_spark()
    with pytest.raises(ConfigError, match=r"^spark://localhost does not ask who.*authenticate.*--insecure-spark"):
        load_server_settings(spark_master="spark://localhost").check_spark()
    with pytest.raises(ConfigError, match=r"spark://h:7077 is reached over a network.*authenticate.*--insecure-spark"):
        load_server_settings(spark_master="spark://h:7077").check_spark()
    with pytest.raises(ConfigError, match=r"sc://h/;user_id=me is reached.* give use_ssl=true in spark-master, or"):
        load_server_settings(spark_master="sc://h/;user_id=me").check_spark()
    assert "geheim" not in repr(load_server_settings(spark={"spark.authenticate.secret": "geheim"}))


@pytest.mark.parametrize(
    ("given", "etcd", "sql"),
    [
        ("", (), ""),
        ("http://a:1,https://b:2", ("http://a:1", "https://b:2"), ""),
        ("sqlite", (), "sqlite:///var/lib/we%20ir/store.db"),
        ("sqlite:///srv/weir.db", (), "sqlite:///srv/weir.db"),
        ("postgresql://weir@h/db", (), "postgresql://weir@h/db"),
        ("mysql://weir@h1,h2/db", (), "mysql://weir@h1,h2/db"),
        ("mariadb://weir@h/db", (), "mariadb://weir@h/db"),
    ],
)
def test_a_store_is_etcd_or_a_database(given: str, etcd: tuple[str, ...], sql: str) -> None:
    settings = load_server_settings(store=given, data_dir=Path("/var/lib/we ir"))
    assert (settings.etcd_urls, settings.sql_store) == (etcd, sql)


def test_a_store_that_nobody_knows_and_two_stores_are_refused() -> None:
    with pytest.raises(ConfigError, match="'store' in --store: must be sqlite"):
        load_server_settings(store="redis://h")
    with pytest.raises(ConfigError, match="leave one of them out"):
        load_server_settings(store="sqlite", etcd="http://a:1")


def test_secrets_of_changefeeds_are_not_read_from_the_store() -> None:
    settings = load_server_settings(store="sqlite:///srv/weir.db")
    assert Path("/srv/weir.db-wal") in settings.reach.protected

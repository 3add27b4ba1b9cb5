"""Wrong inputs of every kind: each is refused in one line with cause and cure, and none is begun."""

import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from agent.filter.events import check_words
from agent.filter.expressions import parse as parse_expression
from agent.filter.tables import parse_rule
from agent.sinks import open_sink
from agent.sources.mysql.server import uri as mysql
from agent.sources.postgres.server import uri as postgres
from capture.__main__ import run
from capture.api.inputs import spec_of
from capture.cli.main import main
from capture.config import load_changefeed_config, load_server_settings
from capture.python.entry import connect
from capture.python.hosting import prepared
from capture.security.own_token import TOKEN_FILE, own_token
from capture.security.secrets import Keeper, mask, mask_uri, resolve
from capture.terminal import console
from reactor.errors import WeirError
from reactor.ids import parse_changefeed_id, parse_cluster_id
from reactor.records.changefeed import FilterConfig, SinkMode
from tests.patience import patient

SECRET = "geheim77"

COMMANDS = [
    *("repair -c x --rows-per-second 0", "diff -c x --sample nan", "diff -c x --sample inf", "diff -c x --sample -0.1"),
    *("store import /dev/zero sqlite:///x/y", "store import /tmp sqlite:///x/y", "log inspect /dev/zero"),
    *("changefeed list --token-file /dev/zero", "changefeed list --token-file /tmp", "secret new-key /dev/zero"),
    *("certs issue ../x", "certs issue a --days 0", "certs issue a --dir /nowhere/y", "certs init --dir /dev/null/x"),
    *("token create --role viewer --expires -1d", "token create --role viewer --expires ٣d", "audit --limit 1e3"),
    *("changefeed create -c x --source-uri postgresql://u@h/%00 --sink-uri delta+file:///x", "token revoke ../x"),
    *("changefeed create -c x --source-uri postgresql://u@h/d --sink-uri delta+file:///%0a", "log inspect /tmp"),
    f"changefeed update -c x --source-uri postgresql://u:{SECRET}@h/%00",
    "changefeed create -c x --source-uri postgresql://u@h/d --sink-uri delta+file:///x --config /dev/zero",
    *("frobnicate", "changefeed frobnicate", "changefeed create", "changefeed create -c x", "changefeed query"),
    *("changefeed create -c x --source-uri y", "changefeed create -c x --source-uri y --sink-uri z --mode none"),
    *("changefeed create -c x --source-uri y --sink-uri z --sink-mode none", "changefeed query -c x extra"),
    *("changefeed create -c x --source-uri y --sink-uri z --start-ts -1", "changefeed rewind -c x --ts -1"),
    *("changefeed create -c x --source-uri y --sink-uri z --start-ts 1e3", "changefeed rewind -c x --ts 9" + "9" * 30),
    *("changefeed create -c x --source-uri y --sink-uri z --start-ts 9223372036854775808", "changefeed rewind -c x"),
    *("changefeed create -c x --source-uri y --sink-uri z --target-ts abc", "changefeed resume -c x --ts 3"),
    *(
        "changefeed resume -c x --overwrite-checkpoint-ts -5",
        "changefeed split -c x",
        "changefeed split -c x --table t -x",
    ),
    *("changefeed split -c x --table a.b --spans 0", "changefeed split -c x --table a.b --spans many"),
    *("changefeed move-table -c x", "changefeed move-table -c x --table a.b", "changefeed join -c x", "capture drain"),
    *("capture drain a --timeout -1", "capture drain a --timeout soon", "capture drain a b", "owner resign now"),
    *("server --frobnicate", "server extra", "server --etcd", "server --addr nowhere", "server --addr 1.2.3.4:99999"),
    *("server --addr host:-1", "server --peer-addr x", "server --cluster-id a_b", "server --cluster-id __meta__"),
    *("token create --role admin --expires 99999d", "token create --role admin --name a/b", "audit --limit 0"),
    *("changefeed list --token-file /dev/null", "token create --role king", "token create --role admin --expires 0"),
    *(
        "server --config /nowhere/x.toml",
        "server --log-level",
        "log inspect",
        "log inspect /nowhere/x",
        "--versio",
        "-x",
    ),
]
CHANGEFEEDS = [
    *(
        "x",
        "= 1",
        "[",
        "a = ",
        "force-replicat = true",
        "\x00",
        "a = 2024-13-01",
    ),
    *("dump-chunk-rows = 0", "dump-chunk-rows = 999", "dump-chunk-rows = 10000001", "dump-chunk-rows = 1.5"),
    *("dump-chunk-rows = 'many'", "dump-chunk-rows = true", "dump-chunk-rows = []", "dump-chunk-rows = nan"),
    *("log-retention-seconds = -1", "log-retention-seconds = 'x'", "log-retention-seconds = 4611686018427387905"),
    *("held-retention-seconds = -1", "held-retention-bytes = -1", "held-retention-bytes = inf", "stuck-seconds = 59"),
    *("stuck-seconds = -60", "stuck-seconds = 0", "flush-timeout-seconds = 4", "flush-timeout-seconds = 3601"),
    *("flush-timeout-seconds = -1", "gc-ttl-seconds = -1", "gc-ttl-seconds = 1e30", "sync-point-interval-seconds = -1"),
    *("split-large-tables = 'x'", "split-rows = 0", "split-rows = 999", "split-rows = -1", "zero-dates = 'maybe'"),
    *(
        "zero-dates = 1",
        "unlogged-cascades = 'no'",
        "slot = 1",
        "publication = []",
        "filter = 1",
        "[filter]\nrule = []",
    ),
    *(
        "[filter]\nrules = 'a.b'",
        "[filter]\nrules = 1",
        "[filter]\nrules = [1]",
        "[filter]\nrules = [[]]",
        "[[filter]]",
    ),
    *("[[filter.event-filters]]\nmatcher = 'x'", "[[filter.event-filters]]\nignore-event = 'x'", "source = 1"),
    *(
        "[[filter.event-filters]]\nignore = ['x']",
        "[filter.event-filters]\nx = 1",
        "[[filter.column-selectors]]\nx = 1",
    ),
    *(
        "[[filter.column-selectors]]\nmatcher = ['a.b']",
        "[[filter.column-selectors]]\ncolumns = 'a'",
        "[source]\na = {}",
    ),
    *("dump-chunk-rows = '5000'", "log-retention-seconds = true", "log-retention-seconds = 5.0", "force-replicate = 1"),
    *("a = " + "[" * 5_000, "a = " + "[" * 5_000 + "]" * 5_000, "a = " + "{a=" * 5_000 + "1" + "}" * 5_000),
    *("a" + ".a" * 1_500 + " = 1", "a = " + "9" * 10_000, "x" * 100_000 + " = 1", "\ufeffdump-chunk-rows = 5000"),
    *("[filter]\nrules = [" + "'a.b'," * 20_001 + "]", "[filter]\nrules = ['" + "x" * 65_537 + "']", "#" * (5 << 20)),
    *("dump_chunk_rows = 5000\ndump-chunk-rows = 5000", "a = 1\na = 2", "dump-chunk-rows = 0x", "ä = 1", "[a]\n[a]"),
]
SERVERS = [
    *(
        "x",
        "adr = 'h:1'",
        "addr = 1",
        "addr = 'h'",
        "addr = 'h:x'",
        "addr = 'h:99999'",
        "addr = ':'",
        "peer-addr = 'x'",
    ),
    *("advertise-addr = 'x'", "advertise-peer-addr = 1", "etcd = 1", "etcd = {}", "cluster-id = 1", "cluster-id = ''"),
    *(
        "cluster-id = 'a/b'",
        "cluster-id = '..'",
        "session-ttl-seconds = 4",
        "session-ttl-seconds = 601",
        "umask = '888'",
    ),
    *("data-dir = ''", "log-file = ''", "secret-key-file = ''", "tls-ca-file = ''", "etcd-key-file = ''"),
    *("session-ttl-seconds = 'x'", "session-ttl-seconds = -1", "data-dir = 1", "log-storage = 1", "spark = 'x'"),
    *("spark = ['x']", "spark-master = 1", "secret-key-file = 1", "log-level = 1", "log-file = []", "umask = 77"),
    *('data-dir = "a\\u0000b"', 'secret-key-file = "a\\u0000"', 'addr = "h\\n:80"', 'addr = "\\u001b[31m:80"'),
    *('etcd = ["http://a\\nb:1"]', 'log-level = "a\\tb"', 'source-hosts = ["\\u0000"]', 'peer-addr = "a\\u0085:1"'),
    *("spark-master = ''", "spark-master = 'nonsense'", "spark-master = 'local[0]'", "spark-master = 'spark://'"),
    *("umask = '0'", "umask = '777'", "umask = 'rw'", "[spark]\na = 1", "peer-auth = 'maybe'"),
]
SOURCES = [
    *(
        "",
        "x",
        "postgresql",
        "postgresql:",
        "postgresql://",
        f"postgresql://:{SECRET}@h/d",
        "postgresql://h/d",
        "http://u@h",
    ),
    *(f"postgresql://u:{SECRET}@h:x/d", f"postgresql://u:{SECRET}@h:99999/d", f"postgresql://u:{SECRET}@[h/d"),
    *(
        f"postgresql://u:{SECRET}@h/d?sslmode=maybe",
        f"postgresql://u:{SECRET}@h/d?sslmod=x",
        "postgresql://u@h/d?port=0",
    ),
    *(
        "postgresql://u@h/d?port=65536",
        "postgresql://u@h/d?port=-1",
        "postgresql://u@h/d?port=٣",
        "postgresql://u@h/d?port=1e3",
    ),
    *("postgresql://u@h/d?connect_timeout=0", "postgresql://u@h/d?connect_timeout=-1", "postgresql://u@h/d#x", "mysql"),
    *(
        f"postgresql://u:a@{SECRET}/b@h/d",
        f"postgresql://u:a?{SECRET}@h/d",
        f"postgresql://u:a#{SECRET}@h/d",
        "mysql://",
    ),
    *("postgresql://u@h/d?password=env:WEIR_TEST_NOT_SET", "postgresql://u@h/d?password=file:/nowhere/x", "mysql://h"),
    *(f"mysql://:{SECRET}@h/d", f"mysql://u:{SECRET}@h:x/d", f"mysql://u:{SECRET}@h/d?ssl-mode=maybe", "mariadb://h"),
    *(f"mysql://u:{SECRET}@h/d?sslmode=required", "mysql://u@h/d?port=0", "mysql://u@h/d?port=x", "mysql://u@h/d?x=1"),
    *("mysql://u@h/d?connect-timeout=soon", "mysql://u@h/d?connect-timeout=0", "mysql://u@h/d?connect-timeout=3601"),
    *(f"mysql://u:a@{SECRET}/b@h/d", f"mariadb://u:1?{SECRET}@h/d", "mysql://u@h/d?password=env:WEIR_TEST_NOT_SET"),
]
SINKS = [
    *(
        "",
        "x",
        "delta",
        "delta://",
        "delta:///x",
        "parquet:///x",
        "delta+file://",
        "delta+file://x",
        "delta+file://h/x",
    ),
    *(
        "delta+file:x",
        "delta+s3://",
        "delta+s3:///x",
        "delta+ftp://h/x",
        "file:///x",
        "://",
        "delta+file://[x/",
        "blackhole://?a=1",
    ),
    *("delta+file:///x?retention_seconds=-1", "delta+file:///x?retention_seconds=x", "delta+file:///x?retention=1"),
    *("delta+file:///x?retention_seconds=1e9", "delta+file:///x?retention_seconds=999999999999", "delta+file:///x?a=1"),
    *("delta+file:///x?deletion_vectors=yes", "delta+file:///x?deletion_vectors=", "delta+file:///x?AWS_REGION=eu"),
    *("delta+s3://b/x?AWS_REGION=env:WEIR_TEST_NOT_SET", "oracle://h"),
    *("delta+file:///x?deletion_vectors=true&deletion_vectors=false", "delta+s3://b/x?AWS_REGION=file:/dev/zero"),
    *("delta+s3://b/x?AWS_REGION=file:/nowhere/x", f"delta+file://u:a@{SECRET}@h/x", f"parquet://u:{SECRET}@h"),
]
#: of which it shows only when they are used; no server is asked
USED_SINKS = [
    *("delta+file:///dev/null", "delta+file:///proc/x", "iceberg+file:///dev/null", "iceberg+file:///dev/null/x"),
    *("delta+file:///tmp/" + "x" * 300, "iceberg+file:///tmp/" + "x" * 300, "delta+az://c/x?account_key=no!"),
    *("delta+s3://b/x?AWS_ENDPOINT_URL=nonsense", "delta+s3://b/x?AWS_ALLOW_HTTP=maybe", "delta+s3://b/x?timeout=soon"),
    *(
        "delta+s3://b/x?nonsense=1",
        "delta+gs://b/x?GOOGLE_SERVICE_ACCOUNT_KEY={}",
        "iceberg+rest://h?warehouse=x&a=\x1b",
    ),
    *(
        "iceberg+rest://h:x",
        "iceberg+rest://h:99999",
        "iceberg+sql://h:x/d?warehouse=/x",
        "iceberg+rest://h?auth=basic",
    ),
    *(
        "iceberg+rest://h?ssl=x",
        "iceberg+rest://h?name=x",
        "iceberg+rest://h?uri=http://evil",
        "iceberg+rest://?tls=false",
    ),
    *("iceberg+rest://h?py-io-impl=os.abort", "iceberg+sql://h/d?warehouse=/x&s3.retry-strategy-impl=os.abort"),
    *(f"iceberg+rest://h?token={SECRET}%0a", f"iceberg+rest://h?header.x-key={SECRET}%c4%80", "iceberg+sql://h/d"),
    *("iceberg+rest://127.0.0.1:1?tls=false&rest.sigv4-enabled=maybe", "iceberg+sql://h/d?warehouse=x"),
    *(
        "iceberg+sql://h/d?warehouse=s3://",
        "iceberg+sql://h/d?warehouse=../x",
        "iceberg+sql://h/d?warehouse=/x&dialect=",
    ),
    *("iceberg+sql://h/d?warehouse=/x&dialect=nope", "iceberg+sql://127.0.0.1:1/d?warehouse=/x"),
    *(f"iceberg+sql://h/d?dialect=sqlite&warehouse=/x&{name}=maybe" for name in ("echo", "init_catalog_tables")),
]
RULES = [
    "",
    ".",
    "a",
    "a.",
    ".b",
    "a.b.c",
    "!",
    "/",
    "/(/",
    "/a/b",
    '"a',
    'a."b',
    "/[/.b",
    "a b c",
    "a,b",
    "a." + "[" * 20_000,
    "*." + "x" * 257,
    "/a{99999999999999999999}/.b",
]
#: control characters, of which a URI's parser leaves some out, and half a surrogate pair, as arguments may have
URIS = [
    "x://h/\0",
    "x://h/%00",
    "x://h/d\n",
    "x://h\t/d",
    "x://h/%0a%1b",
    "x://u:\x1b@h/d",
    "x://h/\ud800",
    "x://h/" + "x" * 17_000,
]
EXPRESSIONS = [
    *(
        "",
        " ",
        ";",
        "a = ",
        "= 1",
        "a = 1; b = 2",
        "a ==== 1",
        "SELECT 1",
        "(SELECT 1)",
        "a IN (SELECT b FROM c)",
        "a IN ()",
        "(a = 1",
    ),
    *(
        "a = 1)",
        "a = 'x",
        "t.a = 1",
        "sleep(1)",
        "count(*) > 1",
        "a = @x",
        "a = ?",
        "DROP TABLE a",
        "a := 1",
        "*",
        "a b c",
    ),
    *("(" * 3000 + "a = 1" + ")" * 3000, " OR ".join(["a = 1"] * 1500), "NOT " * 3000 + "a", "a = " + "1" * 30_000),
]
IDS = [
    "",
    " ",
    "a_b",
    "a b",
    "-a",
    "a-",
    "a--b",
    "a/b",
    "..",
    "ä",
    "a\n",
    "x" * 300,
    "a.b",
    "*",
    "a'b",
    "\x00",
    "a%2Fb",
]

CASES: list[tuple[str, Callable[[str], object], str]] = [
    *(("source", lambda uri: (mysql if uri[:1] == "m" else postgres).parse_uri(uri), text) for text in SOURCES),
    *(("sink", lambda uri: open_sink(uri, changefeed="x", mode=SinkMode.UPSERT), text) for text in SINKS),
    *(
        ("sink", lambda uri: open_sink(uri, changefeed="x", mode=SinkMode.UPSERT).check([]), text)
        for text in USED_SINKS
    ),
    *(("rule", parse_rule, text) for text in RULES),
    *(("expression", parse_expression, text) for text in EXPRESSIONS),
    *(("source uri", lambda uri: spec_of("x", uri, "delta+file:///x"), text) for text in URIS),
    *(("sink uri", lambda uri: spec_of("x", "postgresql://u@h/d", uri), text) for text in URIS),
    *(("changefeed id", parse_changefeed_id, text) for text in IDS),
    *(("cluster id", parse_cluster_id, text) for text in (*IDS, "__meta__")),
    *(
        ("reference", resolve, f"x://u@h/d?password={text}")
        for text in ("env:WEIR_TEST_NOT_SET", "file:/nowhere/x", "file:/", "file:/dev/zero")
    ),
    *(("key", lambda text: Keeper(text.encode()), text) for text in ("", "x", "ä", "x" * 44, "=" * 44)),
    *(
        (
            "event",
            lambda word: check_words(FilterConfig.model_validate({"event_filters": [{"ignore_event": [word]}]})),
            text,
        )
        for text in ("", "x", "inserts", "all", "drop")
    ),
]


def is_one_line(text: str) -> None:
    assert text.strip()
    assert text.isprintable(), ascii(text)
    assert "Traceback" not in text
    assert "a fault in Weir" not in text
    assert SECRET not in text
    assert len(text) < 1000


def test_a_file_without_an_end_is_not_read_whole() -> None:
    for name in ("/dev/zero", "a\0b"):
        with pytest.raises(WeirError) as found:
            load_changefeed_config(Path(name))
        is_one_line(console.one_line(str(found.value)))


def test_arguments_in_another_encoding(capsys: pytest.CaptureFixture[str]) -> None:
    """The shell passes bytes on, which Python shows as halves of surrogate pairs."""
    for arguments in (["changefeed", "query", "-c", "caf\udce9"], ["\udcff"], ["tables", "--server", "http://\udcff"]):
        assert main(arguments) == 2
        text = capsys.readouterr().err
        assert text == f"error: argument {len(arguments)} is not in this terminal's encoding; write it in UTF-8\n"


def test_files_of_secrets_that_hold_no_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "secret"
    file.write_bytes(b"\xff\xfe")
    monkeypatch.chdir(tmp_path)
    assert main(["changefeed", "list", "--server", "http://127.0.0.1:1", "--token-file", str(file)]) == 1
    is_one_line(capsys.readouterr().err.strip())
    for take in (
        lambda: postgres.parse_uri(f"postgresql://u@h/d?password=file:{file}"),
        lambda: mysql.parse_uri(f"mysql://u@h/d?password=file:{file}"),
        lambda: open_sink(f"delta+s3://b/x?AWS_REGION=file:{file}", changefeed="x", mode=SinkMode.UPSERT),
        lambda: own_token(tmp_path, "new"),
    ):
        (tmp_path / TOKEN_FILE).write_bytes(b"\xff")
        with pytest.raises(WeirError) as found:
            take()
        is_one_line(str(found.value))


@pytest.mark.parametrize(
    "text",
    [
        *("x" * 200_000, "x@" * 100_000, "x://" * 50_000, "x://x:" * 40_000, "x://x:" * 40_000 + "@", "@" * 200_000),
        *(
            ":" * 200_000,
            "?a=" * 70_000,
            "&" * 200_000,
            "?" + "a" * 200_000,
            "a.+-" * 50_000 + "://u:p@h",
            "//" * 99_999,
            "?a=" + "'" * 200_000,
            "?a=" + "' " * 100_000,
        ),
    ],
    ids=lambda text: text[:8],
)
def test_masking_takes_no_longer_for_any_text(text: str) -> None:
    """All that is logged or answered is masked, in the event loop: a text of 60,000 letters took 73 s."""
    begun = time.process_time()
    mask(text)
    mask_uri(text)
    assert time.process_time() - begun < patient(2)


def test_there_are_enough() -> None:
    assert len(CASES) + len(COMMANDS) + len(CHANGEFEEDS) + len(SERVERS) >= 300


@pytest.mark.parametrize(
    ("kind", "take", "text"), CASES, ids=lambda value: ascii(value)[:40] if isinstance(value, str) else ""
)
def test_values(kind: str, take: Callable[[str], object], text: str) -> None:
    with pytest.raises(WeirError) as found:
        take(text)
    is_one_line(str(found.value))


@pytest.mark.sample(0.2)
@pytest.mark.parametrize(
    ("load", "text"),
    [*((load_changefeed_config, text) for text in CHANGEFEEDS), *((load_server_settings, text) for text in SERVERS)],
)
def test_files(load: Callable[[Path], object], text: str, tmp_path: Path) -> None:
    file = tmp_path / "x.toml"
    file.write_text(text)
    with pytest.raises(WeirError) as found:
        load(file)
    is_one_line(str(found.value))


@pytest.mark.sample(0.2)
@pytest.mark.parametrize("line", COMMANDS)
def test_command_lines(
    line: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WEIR_SERVER", "http://127.0.0.1:1")
    assert main(line.split()) in (1, 2)
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    is_one_line(captured.err.strip())
    assert list(tmp_path.iterdir()) == [], "nothing is begun"


def test_an_empty_directory_of_certificates_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["certs", "init", "--dir", ""]) == 2
    is_one_line(capsys.readouterr().err.strip())
    assert list(tmp_path.iterdir()) == []


PATHS = ("data-dir", "log-file", "secret-key-file", "tls-ca-file", "tls-cert-file", "tls-key-file")


@pytest.mark.parametrize("option", PATHS)
def test_an_empty_path_is_refused(
    option: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was the directory in which the command ran: a capture put its store, keys and log there."""
    monkeypatch.chdir(tmp_path)
    assert main(["server", f"--{option}", ""]) == 1
    error = capsys.readouterr().err
    assert error == f"error: '{option}' in --{option}: is empty; give a path, or leave it out\n"
    assert list(tmp_path.iterdir()) == [], "nothing is begun"


def test_an_empty_directory_of_the_embedded_interface_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(WeirError, match="--data-dir: is empty"):
        prepared("", {})


@pytest.mark.parametrize("server", [None, 8300, Path("weir-data"), ["http://127.0.0.1:1"]])
def test_a_server_that_is_no_text_is_refused(server: Any) -> None:
    with pytest.raises(WeirError, match=r"^the server is .*; give its URL, such as http://"):
        connect(server)


@pytest.mark.parametrize("name", ["WEIR_LOG_LEVEL", "WEIR_ETCDS", "WEIR_X", "WEIR_", "WEIR_DATA-DIR", "WEIR_SECRET"])
def test_variables_that_are_no_settings(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "WEIR_LOG_LEVEL":
        monkeypatch.setenv("WEIR_LOG_LEVL", "debug")
        with pytest.raises(WeirError, match="unknown variable WEIR_LOG_LEVL; did you mean WEIR_LOG_LEVEL"):
            load_server_settings()
        return
    monkeypatch.setenv(name, "x")
    with pytest.raises(WeirError, match=f"unknown variable {name};"):
        load_server_settings()


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        *(("WEIR_SERVR", "WEIR_SERVER"), ("WEIR_SERVER_URL", "WEIR_SERVER"), ("WEIR_TOKN", "WEIR_TOKEN")),
        *(("WEIR_API_TOKEN", "WEIR_TOKEN"), ("WEIR_TOKENFILE", "WEIR_TOKEN_FILE"), ("WEIR_CAFILE", "WEIR_CA_FILE")),
    ],
)
def test_a_misspelt_variable_of_a_client_is_refused(
    name: str, meant: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Else the request would go to another server, or without the token."""
    monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert main(["changefeed", "remove", "-c", "feed"]) == 1
    assert capsys.readouterr().err == f"error: unknown variable {name}; did you mean {meant}?\n"
    with pytest.raises(WeirError, match=f"unknown variable {name}; did you mean {meant}"):
        connect("http://127.0.0.1:1").local.status()


def test_a_client_reports_variables_that_are_not_its_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They may be those of a program beside it; a server's are known to it."""
    for name in ("WEIR_IMAGE_TAG", "WEIR_ETCD_CA_FILE", "WEIR_STORE", "WEIR_SECRET_SHOP"):
        monkeypatch.setenv(name, "x")
    assert main(["changefeed", "list", "--server", "http://127.0.0.1:1"]) == 1
    warning, error = capsys.readouterr().err.splitlines()
    assert warning.startswith("warning: the variable WEIR_IMAGE_TAG has no meaning and is ignored; ")
    assert error.startswith("error: no Weir server at http://127.0.0.1:1")


@pytest.mark.parametrize(
    "name", ["WEIR_SECRET_SHOP", "WEIR_PORT", "WEIR_PORT_8300_TCP", "WEIR_SERVICE_HOST", "WEIR_API_SERVICE_PORT"]
)
def test_variables_of_others_are_left_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "x")
    load_server_settings()


def test_the_version_is_an_option_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("weir ")


class _Main(ModuleType):
    """A module whose main is interrupted where it handles nothing yet."""

    @staticmethod
    def main() -> int:
        signal.raise_signal(signal.SIGINT)
        return 0


def test_ctrl_c_on_the_way_into_a_command_and_behind_it_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "capture.cli.main", _Main("capture.cli.main"))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(SystemExit) as left:
            run()
        signal.raise_signal(signal.SIGINT)  # while the interpreter ends
    finally:
        signal.signal(signal.SIGINT, before)
    assert left.value.code == 130


class _Importing(ModuleType):
    """A module that is being imported when Ctrl-C comes."""

    def __getattr__(self, name: str) -> object:
        signal.raise_signal(signal.SIGINT)
        return None


def test_ctrl_c_while_modules_are_imported_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "capture.cli.main", _Importing("capture.cli.main"))
    before = signal.getsignal(signal.SIGINT)
    try:
        with pytest.raises(SystemExit) as left:
            run()
    finally:
        signal.signal(signal.SIGINT, before)
    assert left.value.code == 130

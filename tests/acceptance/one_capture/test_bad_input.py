"""Wrong input of users: one line with cause and cure on stderr, exit code not 0, and nothing half-created."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from capture.api.client import Client
from capture.embedded import EmbeddedPostgres
from tests.acceptance.bed import Bed
from tests.patience import HANG_S

pytestmark = [pytest.mark.acceptance, pytest.mark.spark, pytest.mark.timeout(200)]


@pytest.fixture(scope="module")
def bed(bed: Bed) -> Bed:
    bed.execute("CREATE TABLE keyless (i int)")
    bed.postgres.execute("CREATE ROLE reader LOGIN PASSWORD 'reader'")
    bed.postgres.execute("CREATE DATABASE keyed")
    bed.postgres.execute("CREATE TABLE t (i int PRIMARY KEY)", database="keyed")
    return bed


def weir(bed: Bed, *arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    server = f"http://{bed.processes[0].address}"
    return subprocess.run(
        [sys.executable, "-m", "capture", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "WEIR_SERVER": server, **environment},
    )


def create(bed: Bed, *, source: str = "", sink: str = "", name: str = "feed") -> "subprocess.CompletedProcess[str]":
    source = source or bed.postgres.uri("keyed")
    sink = sink or f"delta+file://{bed.lake('bad')}"
    return weir(bed, "changefeed", "create", "-c", name, "--source-uri", source, "--sink-uri", sink)


def is_one_line(done: "subprocess.CompletedProcess[str]", *words: str) -> None:
    assert done.returncode == 1, done.stdout
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1, done.stderr
    for word in words:
        assert word in done.stderr


def nothing_is_left(bed: Bed) -> None:
    """No changefeed, no slot, no publication, no table in the lake."""
    with Client(bed.processes[0].address) as client:
        assert client.list() == []
    assert bed.postgres.execute("SELECT slot_name::text FROM pg_replication_slots") == []
    for database in (bed.database, "keyed"):
        assert bed.postgres.execute("SELECT pubname::text FROM pg_publication", database=database) == []
    assert not bed.lake("bad").exists() or not any(bed.lake("bad").rglob("*.parquet"))


def test_unknown_schemes(bed: Bed) -> None:
    is_one_line(create(bed, source="oracle://u:geheim@h/d"), "oracle")
    is_one_line(create(bed, sink="parquet:///lake"), "parquet")
    nothing_is_left(bed)


@pytest.mark.matrix
def test_wrong_password(bed: Bed) -> None:
    done = create(bed, source=bed.postgres.uri("keyed").replace(bed.postgres.password, "geheim"))
    is_one_line(done, "password", "postgres")
    assert "geheim" not in done.stderr
    nothing_is_left(bed)


@pytest.mark.matrix
def test_host_down(bed: Bed) -> None:
    is_one_line(create(bed, source="postgresql://u:p@127.0.0.1:1/d"), "127.0.0.1:1")
    nothing_is_left(bed)


@pytest.mark.matrix
def test_database_missing(bed: Bed) -> None:
    is_one_line(create(bed, source=bed.postgres.uri("nowhere")), "nowhere", "no such database")
    nothing_is_left(bed)


def test_no_replication_privilege(bed: Bed) -> None:
    uri = f"postgresql://reader:reader@127.0.0.1:{bed.postgres.port}/keyed"
    is_one_line(create(bed, source=uri), "reader", "REPLICATION")
    nothing_is_left(bed)


def test_table_without_key(bed: Bed) -> None:
    is_one_line(create(bed, source=bed.source_uri), "keyless", "force-replicate = true")
    nothing_is_left(bed)


def test_sink_that_cannot_be_written(bed: Bed, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    is_one_line(create(bed, sink=f"delta+file://{tmp_path}/file/lake"), "file/lake")
    nothing_is_left(bed)


def test_sink_with_somebody_elses_table(bed: Bed, tmp_path: Path) -> None:
    import pyarrow as pa
    from deltalake import write_deltalake

    write_deltalake(tmp_path / "public" / "t", pa.table({"i": [1]}))
    is_one_line(create(bed, sink=f"delta+file://{tmp_path}"), "public")
    nothing_is_left(bed)


@pytest.mark.matrix
def test_no_free_slot(bed: Bed) -> None:
    names = [f"taken_{index}" for index in range(20)]
    for name in names:
        bed.postgres.execute(f"SELECT pg_create_physical_replication_slot('{name}')")
    try:
        is_one_line(create(bed), "slot", "max_replication_slots")
    finally:
        for name in names:
            bed.postgres.execute(f"SELECT pg_drop_replication_slot('{name}')")
    nothing_is_left(bed)


@pytest.mark.matrix
def test_wal_level(bed: Bed, tmp_path: Path) -> None:
    with EmbeddedPostgres(tmp_path / "replica", unsafe_no_fsync=True, wal_level="replica") as other:
        other.execute("CREATE TABLE t (i int PRIMARY KEY)")
        is_one_line(create(bed, source=other.uri()), "wal_level", "logical")
    nothing_is_left(bed)


@pytest.mark.matrix
def test_ids(bed: Bed) -> None:
    is_one_line(create(bed, name="a_b"), "'a_b'", "letters and digits")
    is_one_line(weir(bed, "changefeed", "query", "-c", "unknown"), "unknown")
    assert create(bed, name="taken").returncode == 0
    is_one_line(create(bed, name="taken"), "taken")
    assert weir(bed, "changefeed", "remove", "-c", "taken").returncode == 0
    is_one_line(weir(bed, "changefeed", "remove", "-c", "taken"), "taken")


@pytest.mark.matrix
def test_check_creates_nothing(bed: Bed) -> None:
    sink = f"delta+file://{bed.lake('checked')}"
    options = ["-c", "feed", "--source-uri", bed.postgres.uri("keyed"), "--sink-uri", sink, "--check"]
    done = weir(bed, "changefeed", "create", *options)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("changefeed feed can be created: ")
    nothing_is_left(bed)
    is_one_line(weir(bed, "changefeed", "create", *options, "--target-ts", "1"), "target Ts 1 has passed")


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[source]\npublication = "nowhere"', ("no publication nowhere",)),
        (
            "[[filter.event-filters]]\nmatcher = ['*.*']\nignore-insert-value-expr = \"i = 'abc'\"",
            ("i = 'abc'", "type"),
        ),
        ("[[filter.column-selectors]]\nmatcher = ['*.*']\ncolumns = ['x']", ("leaves out i", "key")),
    ],
)
def test_settings_that_do_not_fit_the_source(bed: Bed, tmp_path: Path, text: str, words: tuple[str, ...]) -> None:
    file = tmp_path / "feed.toml"
    file.write_text(text)
    options = ["--source-uri", bed.postgres.uri("keyed"), "--sink-uri", f"delta+file://{bed.lake('bad')}"]
    is_one_line(weir(bed, "changefeed", "create", "-c", "feed", *options, "--config", str(file)), *words)
    nothing_is_left(bed)


def test_ctrl_c_during_create_leaves_nothing(bed: Bed) -> None:
    """The source answers after the creator has left."""
    sink = f"delta+file://{bed.lake('left')}"
    options = ["-c", "feed", "--source-uri", bed.postgres.uri("keyed"), "--sink-uri", sink]
    with psycopg.connect(bed.postgres.dsn("keyed")) as lock:
        # no new session opens this one; the cached catalogs (pg_publication) are opened where pg_internal.init is stale
        lock.execute("LOCK TABLE pg_catalog.pg_inherits IN ACCESS EXCLUSIVE MODE")
        with running(bed, "changefeed", "create", *options) as creating:
            bed.wait_for("the check waits for the source", lambda: waits(bed))
            creating.send_signal(signal.SIGINT)
            assert creating.wait(HANG_S) == 130
            assert creating.stderr is not None
            assert creating.stderr.read() == ""
    bed.wait_for("the check has ended", lambda: not is_checked(bed))
    with Client(bed.processes[0].address) as client:
        bed.wait_for("it is written down", lambda: client.audit(1)[0].status == 499)
    nothing_is_left(bed)


_CHECKS = "FROM pg_stat_activity WHERE datname = 'keyed' AND pid <> pg_backend_pid()"


def waits(bed: Bed) -> bool:
    return bool(bed.postgres.execute(f"SELECT 1 {_CHECKS} AND wait_event_type = 'Lock'"))


def is_checked(bed: Bed) -> bool:
    return bool(bed.postgres.execute(f"SELECT 1 {_CHECKS}"))


@pytest.mark.matrix
def test_a_spark_that_is_away_is_waited_for_and_sigterm_ends_that(bed: Bed, tmp_path: Path) -> None:
    options = ["--data-dir", str(tmp_path), "--log-storage", str(tmp_path / "log"), "--addr", "127.0.0.1:0"]
    options += ["--secret-key-file", str(bed.directory / "secret.key"), "--cluster-id", "sparkless"]
    options += ["--spark-master", "spark://127.0.0.1:1", "--insecure-spark"]
    with running(bed, "server", "--etcd", bed.etcd.url, *options) as one:
        assert one.stderr is not None
        line = next(json.loads(line) for line in one.stderr if "waits for Spark" in line)
        assert "no master answers at spark://127.0.0.1:1" in line["reason"]
        one.send_signal(signal.SIGTERM)
        assert one.wait(HANG_S) == 128 + signal.SIGTERM
        assert "Traceback" not in one.stderr.read()


@contextmanager
def running(bed: Bed, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
    """The command while it runs. It heeds Ctrl-C also where the tests run in the background of a shell, which makes all
    below them ignore it."""
    environment = {**os.environ, "WEIR_SERVER": f"http://{bed.processes[0].address}"}
    command = [sys.executable, "-m", "capture", *arguments]
    with subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as one:
        try:
            yield one
        finally:
            one.kill()


@pytest.mark.matrix
def test_config_files(bed: Bed, tmp_path: Path) -> None:
    file = tmp_path / "feed.toml"
    file.write_text("force-replicat = true")
    options = ["--source-uri", bed.postgres.uri("keyed"), "--sink-uri", "delta+file:///x", "--config", str(file)]
    is_one_line(weir(bed, "changefeed", "create", "-c", "feed", *options), "force-replicat", "force-replicate")
    file.write_text("adr = 1")
    is_one_line(weir(bed, "server", "--config", str(file)), "'adr'", "'addr'")


@pytest.mark.matrix
def test_servers_that_cannot_start(bed: Bed, tmp_path: Path) -> None:
    options = ["--data-dir", str(tmp_path / "data"), "--log-storage", str(tmp_path / "log")]
    taken = weir(bed, "server", "--addr", bed.processes[0].address, "--etcd", bed.etcd.url, *options)
    is_one_line(last_line(taken), "Address already in use", "--addr")
    lost = weir(bed, "server", "--addr", "127.0.0.1:0", "--etcd", "http://127.0.0.1:1", *options)
    is_one_line(last_line(lost), "etcd", "127.0.0.1:1")
    no_java = weir(bed, "server", "--addr", "127.0.0.1:0", "--etcd", bed.etcd.url, *options, JAVA_HOME=str(tmp_path))
    is_one_line(last_line(no_java), "JAVA_HOME")


def last_line(done: "subprocess.CompletedProcess[str]") -> "subprocess.CompletedProcess[str]":
    """A server logs before it fails; the error is what comes last, and everything else is JSON."""
    *logged, error = done.stderr.splitlines()
    for line in logged:
        json.loads(line)
    done.stderr = f"{error}\n"
    return done

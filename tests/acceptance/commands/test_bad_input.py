"""What users get wrong: one line with cause and cure on stderr, exit code not 0, and nothing half-created."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from capture.api.client import Client
from capture.embedded import EmbeddedPostgres
from tests.acceptance.bed import DATABASE, Bed

pytestmark = [pytest.mark.acceptance, pytest.mark.spark, pytest.mark.timeout(200)]


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    with Bed(tmp_path_factory.mktemp("bed"), captures=1) as bed:
        bed.postgres.execute("CREATE TABLE keyless (i int)", database=DATABASE)
        bed.postgres.execute("CREATE ROLE reader LOGIN PASSWORD 'reader'")
        bed.postgres.execute("CREATE DATABASE keyed")
        bed.postgres.execute("CREATE TABLE t (i int PRIMARY KEY)", database="keyed")
        yield bed


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
    for database in (DATABASE, "keyed"):
        assert bed.postgres.execute("SELECT pubname::text FROM pg_publication", database=database) == []
    assert not bed.lake("bad").exists() or not any(bed.lake("bad").rglob("*.parquet"))


def test_unknown_schemes(bed: Bed) -> None:
    is_one_line(create(bed, source="oracle://u:geheim@h/d"), "oracle")
    is_one_line(create(bed, sink="parquet:///lake"), "parquet")
    nothing_is_left(bed)


def test_wrong_password(bed: Bed) -> None:
    done = create(bed, source=bed.postgres.uri("keyed").replace(bed.postgres.password, "geheim"))
    is_one_line(done, "password", "postgres")
    assert "geheim" not in done.stderr
    nothing_is_left(bed)


def test_host_down(bed: Bed) -> None:
    is_one_line(create(bed, source="postgresql://u:p@127.0.0.1:1/d"), "127.0.0.1:1")
    nothing_is_left(bed)


def test_database_missing(bed: Bed) -> None:
    is_one_line(create(bed, source=bed.postgres.uri("nowhere")), "nowhere", "no such database")
    nothing_is_left(bed)


def test_no_replication_privilege(bed: Bed) -> None:
    uri = f"postgresql://reader:reader@127.0.0.1:{bed.postgres.port}/keyed"
    is_one_line(create(bed, source=uri), "reader", "REPLICATION")
    nothing_is_left(bed)


def test_table_without_key(bed: Bed) -> None:
    is_one_line(create(bed, source=bed.postgres.uri(DATABASE)), "keyless", "force-replicate = true")
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


def test_wal_level(bed: Bed, tmp_path: Path) -> None:
    with EmbeddedPostgres(tmp_path / "replica", unsafe_no_fsync=True, wal_level="replica") as other:
        other.execute("CREATE TABLE t (i int PRIMARY KEY)")
        is_one_line(create(bed, source=other.uri()), "wal_level", "logical")
    nothing_is_left(bed)


def test_ids(bed: Bed) -> None:
    is_one_line(create(bed, name="a_b"), "'a_b'", "letters and digits")
    is_one_line(weir(bed, "changefeed", "query", "-c", "unknown"), "unknown")
    assert create(bed, name="taken").returncode == 0
    is_one_line(create(bed, name="taken"), "taken")
    assert weir(bed, "changefeed", "remove", "-c", "taken").returncode == 0
    is_one_line(weir(bed, "changefeed", "remove", "-c", "taken"), "taken")


def test_config_files(bed: Bed, tmp_path: Path) -> None:
    file = tmp_path / "feed.toml"
    file.write_text("force-replicat = true")
    options = ["--source-uri", bed.postgres.uri("keyed"), "--sink-uri", "delta+file:///x", "--config", str(file)]
    is_one_line(weir(bed, "changefeed", "create", "-c", "feed", *options), "force-replicat", "force-replicate")
    file.write_text("adr = 1")
    is_one_line(weir(bed, "server", "--config", str(file)), "'adr'", "'addr'")


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

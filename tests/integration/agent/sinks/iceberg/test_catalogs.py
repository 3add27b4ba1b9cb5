"""Tables of every kind of catalog: embedded, in a database, behind REST; and in a bucket."""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from agent.errors import SinkConfigError, SinkError, SinkUriError, TableHeldError
from agent.rows.changes import BEFORE_KEY
from agent.sinks import open_sink
from capture.embedded import EmbeddedPostgres, EmbeddedS3
from reactor.records.changefeed import SinkMode
from tests import iceberg_rest
from tests.contracts.sink_bed import SPAN, TABLE, Bed
from tests.integration.agent.sinks.iceberg.lake import edit_metadata, place_of, table_of
from tests.unit.agent.changes_build import delete, insert, update


@pytest.fixture
def rest(tmp_path: Path) -> Iterator[str]:
    with iceberg_rest.running(tmp_path, token="secret-token") as port:
        yield f"iceberg+rest://127.0.0.1:{port}?tls=false&token=secret-token"


@pytest.fixture
def sqlite(tmp_path: Path) -> str:
    return f"iceberg+sql://localhost{tmp_path}/catalog.db?dialect=sqlite&warehouse={tmp_path}/lake"


@pytest.fixture
def in_postgres(postgres: EmbeddedPostgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    database = re.sub("[^a-z0-9]", "_", tmp_path.name)
    postgres.create_database(database)
    user, _, place = postgres.uri(database).removeprefix("postgresql://").rpartition("@")
    name, _, password = user.partition(":")
    monkeypatch.setenv("CATALOG_PASSWORD", password)
    return f"iceberg+sql://{place}?user={name}&password=env:CATALOG_PASSWORD&warehouse={tmp_path}/lake"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedS3]:
    with EmbeddedS3(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def in_bucket(server: EmbeddedS3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in server.options().items():
        monkeypatch.setenv(name, value)
    return f"iceberg+sql://localhost{tmp_path}/catalog.db?dialect=sqlite&warehouse=s3://weir/{tmp_path.name}"


@pytest.fixture
def in_glue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Moto, which takes commits without looking at the version that they were made from."""
    server = pytest.importorskip("moto.server", reason="no moto: pip install 'weir-cdc[glue]' 'moto[glue,server]'")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    running = server.ThreadedMotoServer(port=0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    urlopen(Request(f"http://{host}:{port}/moto-api/reset", method="POST")).close()
    yield f"iceberg+glue://us-east-1?warehouse={tmp_path}/lake&glue.endpoint=http://{host}:{port}"
    running.stop()


@pytest.mark.sample(0.2)
@pytest.mark.parametrize(
    "catalog", ["rest", "sqlite", "in_postgres", "in_glue", pytest.param("in_bucket", marks=pytest.mark.matrix)]
)
@pytest.mark.parametrize("mode", SinkMode)
def test_a_tables_life(catalog: str, mode: SinkMode, request: pytest.FixtureRequest) -> None:
    bed = Bed(request.getfixturevalue(catalog), mode)
    bed.open().check([TABLE])
    bed.load((1, "a", "x"), (2, "b", "y"))
    moved = update(7, "a", "x", before=(1, None, None), before_kind=BEFORE_KEY, ts=110)
    for _ in range(2):
        assert bed.flush(100, 200, [moved, delete(2, None, None, ts=120), insert(3, "c", "z", ts=130)]).error == ""
    bed.assert_at(200)
    bed.assert_holds((7, "a", "x"), (3, "c", "z"))
    with pytest.raises(SinkError):
        bed.flush(100, 150, [delete(3, None, None, ts=110)])
    bed.open().check([TABLE])


def test_a_catalogs_server_chooses_no_code(tmp_path: Path) -> None:
    """pyiceberg calls what ``py-io-impl`` names with the properties, whose names would be the arguments here."""
    command = {"/bin/sh": "", "-c": "", f"touch {tmp_path}/ran": ""}
    config = {"defaults": command, "overrides": {"py-io-impl": "subprocess.Popen"}}
    with iceberg_rest.running(tmp_path, config=config) as port:
        bed = Bed(f"iceberg+rest://127.0.0.1:{port}?tls=false", SinkMode.UPSERT)
        bed.load((1, "a", "x"))
        assert bed.flush(100, 200, [insert(2, "b", "y", ts=120)]).error == ""
        bed.assert_holds((1, "a", "x"), (2, "b", "y"))
    assert not (tmp_path / "ran").exists()


def test_who_changes_a_tables_properties_chooses_no_code_and_no_server(tmp_path: Path) -> None:
    bed = Bed(f"iceberg+file://{tmp_path}/lake", SinkMode.UPSERT)
    bed.load((1, "a", "x"))

    def give(**named: str) -> None:
        properties = {name.replace("_", "-").replace("--", "."): value for name, value in named.items()}
        edit_metadata(bed, TABLE, lambda metadata: metadata | {"properties": metadata["properties"] | properties})

    give(py_io_impl="os.abort", s3__retry_strategy_impl="os.abort", s3__endpoint="http://192.0.2.1", hf__token="t")
    assert bed.flush(100, 200, [insert(2, "b", "y", ts=120)]).error == ""
    access = table_of(bed, TABLE).io.properties
    assert not [name for name in access if name.startswith(("s3.", "hf."))], "requests would be sent there"
    give(write__py_location_provider__impl="shutil.rmtree")
    with pytest.raises(TableHeldError, match="remove the property, then resume"):
        bed.open().committed_ts(TABLE, SPAN)


def test_a_wrong_token_is_refused_in_one_line(rest: str) -> None:
    with pytest.raises(SinkConfigError) as caught:
        open_sink(rest.replace("secret", "wrong"), changefeed="feed", mode=SinkMode.UPSERT).check([TABLE])
    assert "wrong-token" not in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("uri", "says"),
    [
        ("iceberg+file:///lake?warehouse=s3://b", "unknown option 'warehouse'"),
        ("iceberg+file:///lake?anything=1", "unknown option 'anything'"),
        ("iceberg+file:///a%23b", "has the character '#'"),
        ("iceberg+sql://host/db", "needs warehouse="),
        ("iceberg+sql://me:secret@host/db?warehouse=s3://b", "user and password as options"),
        ("iceberg+rest://me:secret@host", "credentials as options"),
        ("iceberg+rest://host?dialect=sqlite", "'dialect' is one of iceberg.sql"),
        ("iceberg+hive://host/db", "there is no sink for iceberg\\+hive://"),
    ],
)
def test_what_cannot_be_is_refused_when_it_is_opened(uri: str, says: str) -> None:
    with pytest.raises(SinkUriError, match=says) as caught:
        open_sink(uri, changefeed="feed", mode=SinkMode.UPSERT)
    assert "secret" not in str(caught.value)


def test_a_database_that_is_not_there_is_named_without_its_password(tmp_path: Path) -> None:
    uri = f"iceberg+sql://127.0.0.1:1/db?user=me&password=secret&warehouse={tmp_path}"
    with pytest.raises(SinkError) as caught:
        open_sink(uri, changefeed="feed", mode=SinkMode.UPSERT).check([TABLE])
    assert caught.value.retryable
    assert "secret" not in str(caught.value)


def test_a_warehouse_that_cannot_be_written_is_refused_at_create(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    uri = f"iceberg+sql://localhost{tmp_path}/catalog.db?dialect=sqlite&warehouse={tmp_path}/file/lake"
    with pytest.raises(SinkError, match="cannot write to file://"):
        open_sink(uri, changefeed="feed", mode=SinkMode.UPSERT).check([TABLE])


def test_a_directory_that_is_not_mounted_is_no_lost_table(tmp_path: Path) -> None:
    bed = Bed(f"iceberg+file://{tmp_path}/lake", SinkMode.UPSERT)
    bed.load((1, "a", "x"))
    (tmp_path / "lake").rename(tmp_path / "away")
    for ask in (lambda: bed.at(), lambda: bed.flush(100, 200, [insert(2, "b", "y", ts=110)])):
        with pytest.raises(SinkError, match="mount it") as caught:
            ask()
        assert caught.value.retryable
    (tmp_path / "away").rename(tmp_path / "lake")
    bed.assert_at(100)


def test_a_catalog_that_is_put_back_is_opened_again(tmp_path: Path) -> None:
    """SQLite stays with the file that it has opened, though that is removed."""
    bed = Bed(f"iceberg+file://{tmp_path}/lake", SinkMode.UPSERT)
    bed.load((1, "a", "x"))
    shutil.copytree(tmp_path / "lake", tmp_path / "backup")
    assert bed.flush(100, 150, [insert(2, "b", "y", ts=120)]).committed
    shutil.rmtree(tmp_path / "lake")
    shutil.copytree(tmp_path / "backup", tmp_path / "lake")
    bed.assert_at(100)
    assert bed.flush(100, 160, [insert(3, "c", "z", ts=130)]).committed
    code = f"""
from agent.sinks import open_table
found = open_table("iceberg+file://{tmp_path}/lake", "public/t").scan(["id"]).read_all()
print(sorted(found["id"].to_pylist()))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[1, 3]\n", "for another process, too"


def test_without_boto3_glue_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.sinks.iceberg.table.catalogs.lake.find_spec", lambda _: None)
    with pytest.raises(SinkUriError, match=r"needs boto3, which is not installed: pip install 'weir-cdc\[glue\]'"):
        open_sink("iceberg+glue://eu-central-1?warehouse=s3://b", changefeed="feed", mode=SinkMode.UPSERT)


@pytest.mark.parametrize(
    ("uri", "says"),
    [
        ("iceberg+glue://eu-central-1", "needs warehouse="),
        ("iceberg+glue://eu-central-1/db?warehouse=s3://b", "names a region, for instance"),
        ("iceberg+glue://eu-central-1?warehouse=s3://b&dialect=sqlite", "'dialect' is not one of iceberg.glue"),
    ],
)
def test_what_glue_cannot_take_is_refused(uri: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.sinks.iceberg.table.catalogs.lake.find_spec", lambda _: object())
    with pytest.raises(SinkUriError, match=says):
        open_sink(uri, changefeed="feed", mode=SinkMode.UPSERT)


def test_a_name_that_glue_would_change_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.sinks.iceberg.table.catalogs.lake.find_spec", lambda _: object())
    sink = open_sink("iceberg+glue://eu-central-1?warehouse=s3://b", changefeed="feed", mode=SinkMode.UPSERT)
    named = TABLE.with_(table_id=7, name="Orders", location="")
    assert list(sink.unfit([TABLE, named])) == [7]


def test_no_table_is_renamed_in_glue(in_glue: str) -> None:
    bed = Bed(in_glue, SinkMode.UPSERT)
    bed.load((1, "a", "x"))
    place = place_of(bed, TABLE)
    with pytest.raises(SinkError, match="Glue does not rename tables in one step"):
        place.rename_to(place.renamed("other"))
    bed.assert_holds((1, "a", "x"))

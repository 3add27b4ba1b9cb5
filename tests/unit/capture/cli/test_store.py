"""``weir store``: files and stores by their names, and what is said when one cannot be used."""

import json
import stat
from pathlib import Path

import anyio
import pytest

from capture.cli.main import main
from capture.directory import locked
from capture.embedded import EmbeddedEtcd
from capture.security.own_token import LOCK_FILE
from reactor import keys
from reactor.records.formats import NEWEST, ClusterFormat
from reactor.store import sql
from reactor.store.etcd import connect
from reactor.store.port import MetaStore

CLUSTER = "shop"
KEY = f"{keys.cluster_prefix(CLUSTER)}default/upstream/main"


def run(*arguments: str | Path) -> int:
    return main(["store", *map(str, arguments)])


def url(file: Path) -> str:
    return f"sqlite://{file}"


async def put_cluster(client: MetaStore) -> None:
    await client.put(str(keys.FormatKey(CLUSTER)), ClusterFormat(number=NEWEST).encode())
    await client.put(KEY, b"postgresql://weir:sealed@db/shop")


def stored(file: Path) -> dict[str, bytes]:
    async def read() -> dict[str, bytes]:
        client = await sql.connect(url(file))
        try:
            return {item.key: item.value for item in (await client.get_prefix(keys.ROOT)).items}
        finally:
            await client.close()

    return anyio.run(read)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    file = tmp_path / "source.db"

    async def write() -> None:
        client = await sql.connect(url(file))
        await put_cluster(client)
        await client.close()

    anyio.run(write)
    return file


def test_a_file_is_for_its_owner_only_and_can_be_imported(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, target = tmp_path / "backup.json", tmp_path / "target.db"
    assert run("export", url(source), file, "--cluster-id", CLUSTER) == 0
    assert capsys.readouterr().out == f"{file} has cluster shop with 2 keys\n"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir() if "backup" in path.name or "tmp" in path.name] == ["backup.json"]
    assert run("import", file, url(target), "--json") == 0
    assert json.loads(capsys.readouterr().out)["keys"] == 2
    assert stored(target)[KEY] == b"postgresql://weir:sealed@db/shop"


def test_a_moved_cluster_is_left_behind_halted_and_can_be_removed(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "target.db"
    assert run("migrate", url(source), url(target), "--cluster-id", CLUSTER) == 0
    assert capsys.readouterr().out == (
        f"cluster shop with 2 keys is in {url(target)}; start its captures with that store\n"
    )
    assert b"it was moved to" in stored(source)[str(keys.FormatKey(CLUSTER))]
    assert run("remove", url(target), "--cluster-id", CLUSTER) == 1
    assert "can be used in" in capsys.readouterr().err
    assert run("remove", url(source), "--cluster-id", CLUSTER) == 0
    assert capsys.readouterr().out == "2 keys of cluster shop are removed\n"
    assert stored(source) == {}
    assert len(stored(target)) == 2


def test_the_embedded_etcd_is_started_for_it_unless_a_capture_runs_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data_dir, target = tmp_path / "data", tmp_path / "target.db"
    with EmbeddedEtcd(data_dir / "etcd", unsafe_no_fsync=True) as etcd:

        async def write() -> None:
            client = await connect([etcd.url])
            await put_cluster(client)
            await client.close()

        anyio.run(write)
    command = ("migrate", "embedded", url(target), "--cluster-id", CLUSTER, "--data-dir", data_dir)
    with locked(data_dir / LOCK_FILE, what="a capture"):
        assert run(*command) == 1
        assert "a capture" in capsys.readouterr().err
    assert run(*command) == 0
    assert stored(target)[KEY] == b"postgresql://weir:sealed@db/shop"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["export", "sqlite://{dir}/none.db", "{dir}/x"], "there is no file {dir}/none.db; correct the store's name"),
        (["export", "sqlite://{dir}/source.db", "{dir}/x"], "has no cluster default; see the cluster id"),
        (["export", "sqlite://{dir}/source.db", "{dir}/source.db"], "source.db exists already; choose another file"),
        (
            ["export", "sqlite://{dir}/source.db", "{dir}/no/x", "--cluster-id", "shop"],
            "cannot write {dir}/no/x (No such file or directory); choose another file",
        ),
        (["export", "redis://x", "{dir}/x"], "must be sqlite, sqlite:///path/of/the/file, postgresql://…"),
        (["export", "embedded", "{dir}/x", "--data-dir", "{dir}"], "{dir} has no embedded etcd; give the --data-dir"),
        (["import", "{dir}/none", "sqlite://{dir}/t.db"], "cannot read {dir}/none"),
        (["import", "{dir}/source.db", "sqlite://{dir}/t.db"], "give a file of `weir store export`"),
    ],
)
def test_what_cannot_be_used_is_named(
    arguments: list[str], said: str, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*(argument.replace("{dir}", str(tmp_path)) for argument in arguments)) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert said.replace("{dir}", str(tmp_path)) in captured.err
    assert captured.err.count("\n") == 1
    assert not (tmp_path / "x").exists()
    assert not (tmp_path / "none.db").exists()


@pytest.mark.matrix
def test_a_password_is_not_repeated(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = "postgresql://weir:very-secret@127.0.0.1:1/weir"
    assert run("migrate", url(source), target, "--cluster-id", CLUSTER) == 1
    assert "very-secret" not in capsys.readouterr().err

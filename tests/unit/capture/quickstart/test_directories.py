"""Directories of quickstarts: runs of another kind have another one by default, and never continue in each other's."""

from itertools import product
from pathlib import Path
from typing import Any

import pytest

from capture.errors import ConfigError
from capture.quickstart import quickstart
from capture.quickstart.quickstart import _default_directory

USUAL: dict[str, Any] = {
    "source": "postgres",
    "spark": "local",
    "storage": "directory",
    "format": "delta",
    "store": "etcd",
}


def test_each_kind_has_a_directory_of_its_own() -> None:
    kinds = list(product(("postgres", "mariadb"), ("directory", "s3"), ("delta", "iceberg"), ("etcd", "sqlite")))
    names = [str(_default_directory(*kind)) for kind in kinds]  # type: ignore[arg-type]
    assert len(set(names)) == len(kinds)
    assert names[0] == "weir-data"
    assert all(name.startswith("weir-data") for name in names), "git ignores them"


@pytest.mark.parametrize(
    ("there", "asked", "words"),
    [
        ("mariadb", {}, "a quickstart of mariadb"),
        ("log", {"storage": "s3"}, "its log and tables in directories"),
        ("s3", {}, "its log and tables on an S3 server"),
        ("s3", {"storage": "s3", "format": "iceberg"}, "with delta tables"),
        ("lake", {"format": "iceberg"}, "with delta tables"),
        ("lake/catalog.db", {}, "with iceberg tables"),
        ("store.db", {}, "with sqlite as its store"),
        ("etcd", {"store": "postgresql"}, "with etcd as its store"),
    ],
)
def test_a_directory_of_another_kind_is_refused(tmp_path: Path, there: str, asked: dict[str, Any], words: str) -> None:
    (tmp_path / there).mkdir(parents=True)
    with pytest.raises(ConfigError, match=f"{words}.*; choose another --dir"):
        quickstart.run(
            directory=tmp_path,
            new_member=_never,
            seconds=1,
            scale=1,
            rate=1,
            json=True,
            **(USUAL | asked),
        )
    assert [path.name for path in tmp_path.iterdir()] == [there.partition("/")[0]], "nothing is begun"


def _never(*_: object, **__: object) -> Any:
    raise AssertionError("no capture is started")

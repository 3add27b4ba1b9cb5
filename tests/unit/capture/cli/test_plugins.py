"""``weir sinks`` and ``weir sources`` list what is installed, what it can, and why something cannot be used."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.ports import plugin as plugins
from agent.ports.plugin import SINKS, SOURCES
from capture.cli.main import main
from tests.packages import plugin as plugin_package


@pytest.fixture(autouse=True)
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A sink and a source that do not import."""
    plugin_package.install(tmp_path, "toy-sink", group=SINKS, name="toy", text=None)
    plugin_package.install(tmp_path, "toy-source", group=SOURCES, name="toy", text=None)
    monkeypatch.syspath_prepend(str(tmp_path))
    for cached in (plugins.sinks, plugins.sources):
        cached.cache_clear()
    yield
    for cached in (plugins.sinks, plugins.sources):
        cached.cache_clear()


def listed(capsys: pytest.CaptureFixture[str], command: str) -> dict[str, dict[str, Any]]:
    assert main([command, "--json"]) == 0
    return {one["schemes"][0]: one for one in json.loads(capsys.readouterr().out)}


def test_sinks_with_their_guarantees_and_options(capsys: pytest.CaptureFixture[str]) -> None:
    found = listed(capsys, "sinks")
    assert found["blackhole"]["guarantee"] == "none"
    delta = found["delta+file"]
    assert (delta["package"], delta["guarantee"], delta["problem"]) == ("weir-cdc", "exactly once", "")
    assert delta["can"] == ["schema changes", "split tables", "diff", "table resync", "table maintain", "layouts"]
    assert {option["name"]: option["default"] for option in delta["options"]} == {
        "retention_seconds": "600",
        "change_data_feed": "false",
        "column_mapping": "none",
        "deletion_vectors": "",
        "readers": "",
        "soft_delete": "false",
        "synced_at": "false",
    }
    assert found["toy"]["package"] == "toy-sink"
    assert "does not import (ModuleNotFoundError: No module named 'toy_sink')" in found["toy"]["problem"]


def test_sources_with_their_settings(capsys: pytest.CaptureFixture[str]) -> None:
    found = listed(capsys, "sources")
    assert found["postgresql"]["schemes"] == ["postgresql", "postgres"]
    assert [option["name"] for option in found["postgresql"]["options"]] == ["slot", "publication", "partition-rows"]
    assert found["mysql"]["schemes"] == ["mysql", "mariadb"]
    assert [option["name"] for option in found["mysql"]["options"]] == [
        "zero-dates",
        "unlogged-cascades",
        "partition-rows",
    ]
    assert "No module named 'toy_source'" in found["toy"]["problem"]


def test_people_read_tables(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sinks"]) == 0
    assert main(["sources"]) == 0
    out = capsys.readouterr().out
    for word in ("delta+s3", "exactly once", "?retention_seconds=600", "[source]", "zero-dates=null", "toy_source"):
        assert word in out

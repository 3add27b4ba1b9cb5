"""Plugins are found by entry points, imported when they are asked for, and one that is broken harms no other."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.errors import DecodeError, SinkUriError
from agent.ports import plugin as plugins
from agent.ports.plugin import SINKS, SOURCES, SinkPlugin, SourcePlugin, load
from agent.sinks import open_sink
from agent.sources import registry
from reactor.records.changefeed import SinkMode
from tests.packages import plugin as plugin_package


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where packages are installed, for one test."""
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    plugins.sinks.cache_clear()
    yield tmp_path
    plugins.sinks.cache_clear()
    for name in set(sys.modules) - before:
        if name.startswith("toy"):
            del sys.modules[name]


def open_toy(uri: str) -> Any:
    return open_sink(uri, changefeed="f", mode=SinkMode.UPSERT)


def test_nothing_is_imported_before_it_is_asked_for() -> None:
    code = """
import sys
from agent.ports import plugin
assert {found.entry.name for found in plugin.sinks().found()} >= {"delta", "blackhole"}
assert {found.entry.name for found in plugin.sources().found()} >= {"postgresql", "postgres", "mysql", "mariadb"}
assert not [name for name in sys.modules if name.startswith(("agent.sinks", "agent.sources", "deltalake"))]
from agent.sinks import open_sink
open_sink("blackhole://", changefeed="f", mode="upsert")
assert not [name for name in sys.modules if name.startswith(("agent.sinks.delta", "agent.sources", "deltalake"))]
ours = [found for found in (*plugin.sinks().found(), *plugin.sources().found()) if found.package == "weir-cdc"]
assert len([found.plugin for found in ours]) >= 6
heavy = {"numba", "deltalake", "pyiceberg", "pyspark"} & sys.modules.keys()
assert not heavy, heavy
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_plugin_has_the_schemes_that_its_entry_points_name() -> None:
    for entry, sink in plugins.sinks().importable():
        assert {scheme.partition("+")[0] for scheme in sink.schemes} == {entry.name}
    for entry, source in plugins.sources().importable():
        assert entry.name in source.schemes
        assert source.dialect in source.schemes


def test_a_sink_of_another_package(site: Path) -> None:
    text = plugin_package.SINK.format(scheme="toy+file")
    plugin_package.install(site, "toy-sink", group=SINKS, name="toy", text=text)
    uri, scope = open_toy("toy+file:///lake")
    assert (uri.location, scope.changefeed) == ("/lake", "f")
    with pytest.raises(SinkUriError, match="unknown option 'x': toy\\+file:// has none"):
        open_toy("toy+file:///lake?x=1")
    with pytest.raises(SinkUriError, match=r"there is no sink for toy://; there are blackhole, .*, toy\+file$"):
        open_toy("toy://")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "does not import (ModuleNotFoundError: No module named 'toy_sink')"),
        ("raise RuntimeError('no licence')", "does not import (RuntimeError: no licence)"),
        ("PLUGIN = 7", "is no SinkPlugin, but int"),
    ],
)
def test_a_sink_that_does_not_import_is_named_with_its_reason(site: Path, text: str | None, reason: str) -> None:
    plugin_package.install(site, "toy-sink", group=SINKS, name="toy", text=text)
    with pytest.raises(SinkUriError) as caught:
        open_toy("toy://")
    assert f"the sink for toy:// cannot be used: 'toy' of package toy-sink {reason}" in str(caught.value)
    open_toy("blackhole://")
    assert "toy" not in plugins.sinks().schemes()


def test_nobody_takes_a_name_that_is_taken(site: Path) -> None:
    plugin_package.install(site, "toy-rival", group=SINKS, name="blackhole", text=None)
    open_toy("blackhole://")
    [rival] = [found for found in plugins.sinks().found() if found.package == "toy-rival"]
    assert rival.problem == "'blackhole' of package toy-rival is not used: package weir-cdc has that name too"


def test_a_checkout_does_not_ask_its_old_metadata(site: Path) -> None:
    plugin_package.install(site, "weir-cdc", group=SINKS, name="forgotten", text=None)
    names = {found.entry.name for found in load(SINKS, SinkPlugin).found()}
    assert "delta" in names
    assert "forgotten" not in names


def test_what_is_installed_asks_its_metadata(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin_package.install(site, "weir-cdc", group=SOURCES, name="toy", text=None)
    monkeypatch.setattr(plugins, "_PYPROJECT", site / "pyproject.toml")
    plugins._checkout.cache_clear()
    try:
        assert [found.entry.name for found in load(SOURCES, SourcePlugin).found()] == ["toy"]
    finally:
        plugins._checkout.cache_clear()


def test_a_dialect_that_no_plugin_has_is_an_error_of_the_table() -> None:
    for name in ("oracle", "mariadb"):  # the latter is a scheme, and no dialect
        with pytest.raises(DecodeError, match=f"there is no source of dialect '{name}'; install its package"):
            registry.dialect(name)

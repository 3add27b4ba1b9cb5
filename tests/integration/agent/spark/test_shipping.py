"""The archive for executors on other machines: it has the plugins, and names them."""

import subprocess
import sys
from pathlib import Path

import pytest

from agent.ports import plugin as plugins
from agent.ports.plugin import SINKS
from agent.spark.shipping import archive_in
from tests.packages import plugin as plugin_package

_ON_AN_EXECUTOR = """
import sys
sys.path.insert(0, sys.argv[1])
import agent
assert agent.__file__.startswith(sys.argv[1]), agent.__file__
from agent.sinks import open_sink
print(open_sink("toy://", changefeed="f", mode="upsert")[0].scheme)
open_sink("blackhole://", changefeed="f", mode="upsert")
from agent.sources.registry import dialect
print(type(dialect("mysql")).__name__)
"""


@pytest.mark.matrix
def test_plugins_are_found_in_the_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = tmp_path / "site"
    text = plugin_package.SINK.format(scheme="toy")
    plugin_package.install(site, "toy-sink", group=SINKS, name="toy", text=text)
    plugin_package.install(site, "toy-broken", group=SINKS, name="broken", text=None)
    monkeypatch.syspath_prepend(str(site))
    plugins.sinks.cache_clear()
    try:
        archive = archive_in(tmp_path / "work")
    finally:
        plugins.sinks.cache_clear()
        sys.modules.pop("toy_sink", None)
    command = [sys.executable, "-c", _ON_AN_EXECUTOR, str(archive)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["toy", "MysqlDialect"]

"""Capabilities of sinks: what a sink cannot do is refused when it is requested, by its plugin's capabilities alone."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.errors import SinkConfigError
from agent.ports import plugin as plugins
from agent.ports.plugin import SINKS
from capture.member.preflight import check_sink_terms, refuse_split
from reactor.records.changefeed import ChangefeedConfig, SinkMode
from tests.packages import plugin as plugin_package

_UPSERTS_ONLY = plugin_package.SINK.format(scheme="toy").replace(
    "guarantee=Guarantee.NONE", "guarantee=Guarantee.EXACTLY_ONCE, modes=frozenset(['upsert'])"
)


@pytest.fixture(autouse=True)
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A sink that upserts, and whose tables cannot be split."""
    plugin_package.install(tmp_path, "toy-terms", group=SINKS, name="toy", text=_UPSERTS_ONLY)
    monkeypatch.syspath_prepend(str(tmp_path))
    plugins.sinks.cache_clear()
    yield
    plugins.sinks.cache_clear()


def test_a_mode_that_the_sink_does_not_write_in() -> None:
    check_sink_terms("toy://", SinkMode.UPSERT, ChangefeedConfig())
    with pytest.raises(SinkConfigError, match="does not write in mode changelog; use --sink-mode upsert"):
        check_sink_terms("toy://", SinkMode.CHANGELOG, ChangefeedConfig())


def test_tables_that_cannot_be_split() -> None:
    with pytest.raises(SinkConfigError, match="tables cannot be split"):
        check_sink_terms("toy://", SinkMode.UPSERT, ChangefeedConfig(split_large_tables=True))
    with pytest.raises(SinkConfigError, match="tables cannot be split"):
        refuse_split("toy://host?password=***")
    refuse_split("delta+file:///lake")
    check_sink_terms("delta+file:///lake", SinkMode.CHANGELOG, ChangefeedConfig(split_large_tables=True))

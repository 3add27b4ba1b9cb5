"""Sources by the scheme of their URIs: what is said where there is none."""

import pytest

from agent.errors import SourceConfigError
from agent.ports.source import Scope
from agent.sources import open_source
from agent.sources.registry import check_settings
from reactor.records.changefeed import ChangefeedConfig, SinkMode

SCOPE = Scope("cluster", "feed", SinkMode.UPSERT, ChangefeedConfig())


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("", "the source URI has no scheme; there are .*mysql://.*postgresql://"),
        ("host/db", "the source URI has no scheme"),
        ("oracle://u:geheim@h/d", "there is no source for oracle://; there are .*mysql://"),
        ("postgresql://u:geheim@[::1/d", "the source URI is malformed"),
    ],
)
def test_mistakes_are_one_line_without_secrets(uri: str, message: str) -> None:
    with pytest.raises(SourceConfigError, match=message) as caught:
        open_source(uri, SCOPE)
    assert "\n" not in str(caught.value)
    assert "geheim" not in str(caught.value)
    with pytest.raises(SourceConfigError, match=message):
        check_settings(uri, SCOPE.config)

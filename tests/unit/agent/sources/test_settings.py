"""Settings of a changefeed's configuration below [source]: checked against the settings that its source has."""

import pytest

from agent.errors import SourceConfigError
from agent.sources.registry import check_settings
from reactor.records.changefeed import ChangefeedConfig


@pytest.mark.parametrize(
    ("uri", "settings"),
    [
        ("postgresql://db/shop", {"slot": "s", "publication": "p", "partition_rows": "hold"}),
        ("mysql://db/", {"zero_dates": "strict", "unlogged_cascades": "accept"}),
        ("mariadb://db/", {}),
        ("postgres://db/shop", {"zero_dates": "null"}),  # as nobody set it
    ],
)
def test_a_source_takes_its_own(uri: str, settings: dict[str, str]) -> None:
    check_settings(uri, ChangefeedConfig.model_validate({"source": settings}))


@pytest.mark.parametrize(
    ("uri", "settings", "message"),
    [
        (
            "mysql://db/",
            {"slot": "s"},
            "mysql has no setting slot .*; it knows partition-rows, unlogged-cascades, zero-dates",
        ),
        ("postgresql://db/shop", {"zero_dates": "string"}, "postgresql has no setting zero-dates .*; it knows part"),
        ("postgresql://db/shop", {"slots": "s"}, "postgresql has no setting slots "),
        ("oracle://db/shop", {}, "there is no source for oracle://"),
    ],
)
def test_a_setting_of_another_source_is_refused(uri: str, settings: dict[str, str], message: str) -> None:
    with pytest.raises(SourceConfigError, match=message):
        check_settings(uri, ChangefeedConfig.model_validate({"source": settings}))

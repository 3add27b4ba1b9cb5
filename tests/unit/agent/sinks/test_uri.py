"""Sink URIs, and what opening one that is wrong says."""

from pathlib import Path

import pytest

from agent.errors import SinkUriError
from agent.sinks import formats_of, open_sink, open_table
from agent.sinks.uri import masked, parse_named_uri, parse_sink_uri
from reactor.records.changefeed import SinkMode
from reactor.records.formats import Feature


def test_a_local_directory() -> None:
    uri = parse_sink_uri("delta+file:///lake/with%20space/../x?retention_seconds=60")
    assert (uri.scheme, uri.storage, uri.location, uri.is_local) == ("delta+file", "file", "/lake/x", True)
    assert uri.options == {"retention_seconds": "60"}


def test_an_object_store() -> None:
    uri = parse_sink_uri("delta+s3://bucket/lake/?AWS_REGION=eu-west-1")
    assert (uri.location, uri.is_local, uri.options) == ("s3://bucket/lake", False, {"AWS_REGION": "eu-west-1"})


def test_secrets_by_reference(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KEY_ID", "me")
    (tmp_path / "secret").write_text("hush\n")
    uri = parse_sink_uri(f"delta+s3://b/x?AWS_ACCESS_KEY_ID=env:KEY_ID&AWS_SECRET_ACCESS_KEY=file:{tmp_path}/secret")
    assert uri.options == {"AWS_ACCESS_KEY_ID": "me", "AWS_SECRET_ACCESS_KEY": "hush"}
    assert "hush" not in repr(uri)
    with pytest.raises(SinkUriError, match="refers to the variable NOBODY, which is not set"):
        parse_sink_uri("delta+s3://b/x?AWS_ACCESS_KEY_ID=env:NOBODY")
    with pytest.raises(SinkUriError, match="which cannot be read"):
        parse_sink_uri(f"delta+s3://b/x?AWS_ACCESS_KEY_ID=file:{tmp_path}/none")


def test_what_is_shown_has_no_secret() -> None:
    assert masked("delta+s3://b/x?KEY=hush&REGION=eu") == "delta+s3://b/x?KEY=***&REGION=***"
    assert masked("postgresql://me:pw@host/db") == "postgresql://me:***@host/db"


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        (
            "hudi+file:///lake",
            r"there is no sink for hudi\+file://; there are blackhole, delta\+abfss, delta\+az, delta\+file, delta\+gs",
        ),
        ("/lake", "is not a URI; write for instance delta"),
        ("delta+file://lake", r"must name an absolute directory: delta\+file:///dir"),
        (
            "delta+file:///lake?retention=1",
            r"unknown option 'retention': delta\+file:// knows change_data_feed, column_mapping, deletion_",
        ),
        (
            "delta+file:///lake?retention_seconds=soon",
            r"option retention_seconds of delta\+file:// is wrong: input should",
        ),
        ("delta+file:///lake?retention_seconds=-1", "retention_seconds of .* is wrong: input should be greater"),
        ("delta+file:///lake?retention_seconds=" + "9" * 30, "retention_seconds of .* is wrong: input should be less"),
        ("delta+s3:///prefix", r"names no bucket or host; write delta\+s3://NAME/"),
        ("delta+s3://[::1", "is malformed"),
        ("", "is not a URI"),
        ("blackhole://?x=1", "unknown option 'x': blackhole:// has none"),
        ("none://?x=1", "unknown option 'x': none:// has none"),
    ],
)
def test_mistakes_are_one_line(uri: str, message: str) -> None:
    with pytest.raises(SinkUriError, match=message) as caught:
        open_sink(uri, changefeed="feed", mode=SinkMode.UPSERT)
    assert "\n" not in str(caught.value)


def test_a_uri_that_a_server_names_reads_nothing_of_this_machine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PRIVATE", "mine")
    (tmp_path / "key").write_text("mine")
    hidden = f"a=env:PRIVATE&b=file:{tmp_path}/key&c=***&aws_web_identity_token_file={tmp_path}/key"
    also_hidden = f"google_service_account={tmp_path}/key&GOOGLE_APPLICATION_CREDENTIALS={tmp_path}/key"
    uri = parse_named_uri(f"delta+s3://b/x?{hidden}&{also_hidden}&AWS_REGION=eu-west-1")
    assert uri.options == {"AWS_REGION": "eu-west-1"}


def test_a_table_is_opened_with_nothing_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOBODY", raising=False)
    assert open_table("delta+file:///lake?retention_seconds=env:NOBODY", "public/item").location == "/lake/public/item"


def test_a_sink_that_is_not_here_needs_no_format() -> None:
    """It is refused when it is opened; a simulated cluster has sinks of its own."""
    assert formats_of("sim://sink1") == {}
    assert formats_of("delta+file:///lake") == {}
    assert formats_of("delta+file:///lake?column_mapping=name") == {"column_mapping": Feature.COLUMN_MAPPING}

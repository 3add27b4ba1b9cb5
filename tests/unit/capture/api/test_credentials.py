"""Credentials of clients: a token that would cross a network in clear is not sent without a warning."""

import warnings

import pytest

import capture
from capture.api.client import Client
from capture.api.credentials import credentials, unprotected
from capture.cli.main import main
from capture.errors import ConfigError
from capture.python.spark_options import Options

READABLE = [
    *("http://db1.example:8300", "HTTP://db1.example:8300", "db1.example:8300", "http://10.0.0.1:8300"),
    *("http://[2001:db8::1]:8300", "http://localhost.example:8300", "http://127.0.0.1@db1:8300", "http://db1:8300/x"),
]
PROTECTED = [
    *("https://db1.example:8300", "http://127.0.0.1:8300", "127.0.0.1:8300", "localhost:8300", "http://[::1]:8300"),
    *("http://LOCALHOST:8300", "http://127.9.9.9:1", "http://[::1"),
]


@pytest.mark.parametrize("server", READABLE)
def test_a_token_that_others_can_read_on_the_way(server: str) -> None:
    text = unprotected(server, token="geheim77")
    assert "goes unencrypted" in text
    assert "geheim77" not in text + repr(credentials(server, token="geheim77"))
    assert unprotected(server, token="") == ""


@pytest.mark.parametrize("server", PROTECTED)
def test_a_token_that_stays_here_or_is_encrypted(server: str) -> None:
    assert unprotected(server, token="geheim77") == ""


@pytest.mark.parametrize("token", ["geheim\n77", "geheim 77", "geheim77ä", "geheim77€", "\x00geheim77"])
def test_a_token_that_no_header_can_have(
    token: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError, match="take the line that") as caught:
        capture.connect("http://127.0.0.1:1", token=token)
    assert "geheim" not in str(caught.value)
    if "\x00" not in token:
        monkeypatch.setenv("WEIR_TOKEN", token)
        assert main(["changefeed", "list", "--server", "http://127.0.0.1:1"]) == 1
        assert "geheim" not in capsys.readouterr().err


def test_arguments_of_connections() -> None:
    with pytest.raises(ConfigError, match="etcd is a setting of servers, and http://h runs already; leave it out"):
        capture.local("http://h", etcd="x")
    for node in ("a\nb", "a" * 300, "ä"):
        with pytest.raises(ConfigError, match="is no name of a node"):
            Client("https://127.0.0.1:1", token="", node=node)


def test_every_client_warns(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    servers = "http://127.0.0.1:1, http://weir.invalid:1"
    with pytest.warns(UserWarning, match=r"unencrypted to http://weir\.invalid"):
        capture.connect(servers, token="geheim77")
    options = {"server": servers, "changefeed": "x", "table": "a.b", "token": "geheim77"}
    with pytest.warns(UserWarning, match=r"unencrypted to http://weir\.invalid"):
        assert "geheim77" not in repr(Options.of(options))
    monkeypatch.setenv("WEIR_TOKEN", "geheim77")
    assert main(["changefeed", "list", "--server", "http://weir.invalid:1"]) == 1
    assert capsys.readouterr().err.startswith("warning: the token goes unencrypted to http://weir.invalid")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        capture.connect("https://weir.invalid:1", token="geheim77")

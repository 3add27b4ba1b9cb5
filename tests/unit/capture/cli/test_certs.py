"""``weir certs``: files of an authority and of nodes, and what is said when one is missing or there already."""

import re
import stat
from pathlib import Path

import pytest
from cryptography import x509

from capture.cli.main import main
from capture.messaging.tls import NodeTls, Tls
from capture.security import certificates


def run(*arguments: str, dir: Path) -> int:
    return main(["certs", *arguments, "--dir", str(dir)])


def test_an_authority_issues_and_renews_what_servers_use(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = tmp_path / "certs"
    assert run("init", dir=directory) == 0
    assert run("issue", "node-1", "--host", "db.example.org", "--host", "10.0.0.1", dir=directory) == 0
    assert "node node-1's until" in capsys.readouterr().out
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()}
    assert modes == {"ca.pem": 0o644, "ca.key": 0o600, "node-1.pem": 0o644, "node-1.key": 0o600}
    tls = NodeTls(Tls(directory / "ca.pem", directory / "node-1.pem", directory / "node-1.key"))
    before = tls.certificate
    assert run("renew", "node-1", dir=directory) == 0
    assert tls.renew()
    assert (tls.certificate.node, tls.certificate.key == before.key) == ("node-1", False)
    names = certificates._certificate((directory / "node-1.pem").read_bytes()).extensions
    found = names.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(name.value) for name in found] == ["node-1", "db.example.org", "10.0.0.1"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["issue", "node-1"], r"cannot read .*ca.pem .*; make it with `weir certs init`, or give its --dir"),
        (["renew", "node-9"], r"cannot read .*; make it with `weir certs"),
        (["issue", "Node 1"], r"'Node 1' is no name of a node; use letters a to z"),
        (["issue", "../x"], r"'../x' is no name of a node"),
    ],
)
def test_what_is_missing_is_named(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*arguments, dir=tmp_path) == 1
    captured = capsys.readouterr()
    assert captured.out == ""

    assert re.match(f"error: {said}", captured.err)
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("init", dir=tmp_path) == 0
    assert run("issue", "node-1", dir=tmp_path) == 0
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    assert run("init", dir=tmp_path) == 1
    assert run("issue", "node-1", dir=tmp_path) == 1
    assert "use `weir certs renew node-1`" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before

"""A node's own certificate is tried before it is used: others alone would notice that it is of no use."""

import datetime
from pathlib import Path

import pytest

from capture.errors import ConfigError
from capture.messaging.tls import NodeTls, Tls
from capture.security import certificates
from capture.security.certificates import Issued, issue, new_authority
from tests.unit.reactor.certificates import authority, server


class _Clock(datetime.datetime):
    days = 0

    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> datetime.datetime:  # type: ignore[override]
        return datetime.datetime.now(tz) + datetime.timedelta(days=cls.days)


def loaded(directory: Path, authority: Issued, made: Issued) -> NodeTls:
    files = Tls(directory / "ca.pem", directory / "a.pem", directory / "a.key")
    for path, content in zip(files.files, (authority.certificate, made.certificate, made.key), strict=True):
        path.write_bytes(content)
    return NodeTls(files)


def test_a_certificate_that_others_refuse_is_refused_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = new_authority("c")
    good, foreign = issue(authority, "a", ["127.0.0.1"]), issue(new_authority("c"), "a", [])
    monkeypatch.setattr(certificates, "datetime", _Clock)
    monkeypatch.setattr(_Clock, "days", 30)
    early = issue(authority, "a", [])
    monkeypatch.setattr(_Clock, "days", -30)
    ended = issue(authority, "a", [], days=1)
    assert loaded(tmp_path, authority, good).certificate.node == "a"
    assert loaded(tmp_path, Issued(new_authority("d").certificate + authority.certificate, b""), good)
    for made, why in ((ended, "expired"), (early, "not yet valid"), (foreign, "certificate")):
        with pytest.raises(ConfigError, match=rf"^no capture would accept .*a\.pem \(.*{why}.*\); make another with"):
            loaded(tmp_path, authority, made)


def test_a_certificate_of_an_authority_between(tmp_path: Path) -> None:
    root = authority(tmp_path)
    for case in ("of an authority between, which it sends", "of an authority between, which it does not send"):
        made = server(root, case)
        files = Tls(Path(root.certificate_file), Path(made.certificate_file), Path(made.key_file))
        if "not" not in case:
            assert NodeTls(files).certificate.node == "server"
            continue
        with pytest.raises(ConfigError, match=r"or append the certificates of the authorities between$"):
            NodeTls(files)

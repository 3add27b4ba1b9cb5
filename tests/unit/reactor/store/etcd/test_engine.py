"""gRPC's polling engine: chosen for versions that we know, never against the user."""

import os

import pytest

from reactor.store.etcd import engine

_SWITCH, _FORKS = "GRPC_EXPERIMENTS", "GRPC_ENABLE_FORK_SUPPORT"


@pytest.mark.parametrize(
    ("version", "chosen"),
    [("1.80.0", True), ("1.85.1", True), ("1.79.3", False), ("1.86.0", False), ("1.86.0rc1", False), ("2.0.0", False)],
)
def test_versions_with_both_engines(version: str, chosen: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {})
    engine.choose(version)
    assert os.environ == {_FORKS: "false"} | ({_SWITCH: "-event_engine_client"} if chosen else {})


def test_what_the_user_has_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(_SWITCH, "event_engine_client")
    monkeypatch.setenv(_FORKS, "true")
    engine.choose("1.85.1")
    assert (os.environ[_SWITCH], os.environ[_FORKS]) == ("event_engine_client", "true")

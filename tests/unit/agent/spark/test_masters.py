"""A master's name says what kind of cluster it is, and a standalone one is looked for before a JVM is started."""

import socket

import pytest

from agent.spark import masters
from agent.spark.masters import is_master


def test_addresses_of_masters() -> None:
    assert masters.addresses("spark://a:1,b:2,c") == [("a", 1), ("b", 2), ("c", 7077)]
    assert masters.addresses("spark://[::1]:7") == [("::1", 7)]
    assert masters.addresses("sc://h/;token=a:b") == [("h", 15_002)]
    assert masters.addresses("sc://[::1]:7/;use_ssl=true") == [("::1", 7)]
    assert masters.addresses("sc://[::1]") == [("::1", 15_002)]


@pytest.mark.parametrize("master", ["local[2]", "yarn", "k8s://https://h:443"])
def test_other_masters_are_not_looked_for(master: str) -> None:
    assert masters.unreachable(master) == ""


_PROTECTED = {"spark.authenticate": "true", "spark.network.crypto.enabled": "true"}


@pytest.mark.parametrize(
    ("master", "settings", "lacking"),
    [
        ("local[4]", {}, ""),
        ("spark://127.0.0.1:7077", {}, '"spark.authenticate" = "true", "spark.authenticate.secret"'),
        ("spark://127.0.0.1:7077", {"spark.authenticate": "true", "spark.authenticate.secret": "x"}, ""),
        ("spark://localhost,[::1]:7077", {"spark.authenticate": "true"}, '"spark.authenticate.secret"'),
        ("spark://127.0.0.1,h:7077", _PROTECTED, '"spark.authenticate.secret"'),
        ("spark://h", _PROTECTED | {"spark.authenticate.secret": "x"}, ""),
        (
            "spark://h",
            {"spark.authenticate": "True", "spark.ssl.rpc.enabled": "true", "spark.authenticate.secret": "x"},
            "",
        ),
        ("yarn", _PROTECTED, ""),
        ("yarn", {}, '"spark.authenticate" = "true", "spark.network.crypto.enabled" = "true"'),
        ("k8s://https://h", {"spark.authenticate": "true"}, '"spark.network.crypto.enabled" = "true"'),
        ("local-cluster[2,1,1024]", _PROTECTED, ""),
        ("sc://localhost:15002", {}, ""),
        ("sc://h:15002", _PROTECTED, "use_ssl=true"),
        ("sc://h/;use_ssl=false;user_id=me", {}, "use_ssl=true"),
        ("sc://h:15002/;use_ssl=true", {}, ""),
        ("sc://h/;TOKEN=abc", {}, ""),
    ],
)
def test_what_goes_over_a_network_is_protected(master: str, settings: dict[str, str], lacking: str) -> None:
    assert masters.unprotected(master, settings) == lacking


def test_tokens_are_not_shown() -> None:
    assert masters.shown("sc://h:1/;token=geheim;user_id=me") == "sc://h:1/;token=***;user_id=me"
    assert masters.shown("spark://h:7077") == "spark://h:7077"


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("spark.authenticate.secret", True),
        ("spark.hadoop.fs.s3a.secret.key", True),
        ("spark.hadoop.fs.s3a.access.key", True),
        ("spark.ssl.keyStorePassword", True),
        ("spark.authenticate", False),
        ("spark.executor.memory", False),
    ],
)
def test_settings_that_are_secrets(name: str, secret: bool) -> None:
    assert masters.is_secret(name) is secret


def test_one_master_that_answers_is_enough() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        silent, found = taken.getsockname()[1], listening.getsockname()[1]
        assert masters.unreachable(f"spark://127.0.0.1:{silent},127.0.0.1:{found}") == ""
        reason = masters.unreachable(f"spark://127.0.0.1:{silent}")
    assert reason.startswith("no master answers at spark://127.0.0.1:")
    assert "connection refused" in reason


def test_a_server_of_spark_connect_that_is_away_is_named_without_its_token() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        reason = masters.unreachable(f"sc://127.0.0.1:{taken.getsockname()[1]}/;token=geheim")
    assert reason.startswith("no server of Spark Connect answers at sc://127.0.0.1:")
    assert "geheim" not in reason


@pytest.mark.parametrize(
    "master",
    [
        *(
            "local",
            "local[*]",
            "local[2]",
            "local[*, 3]",
            "local[2,3]",
            "local-cluster[2,1,1024]",
            "yarn",
            "sc://h:1/;a=b",
        ),
        *("spark://h", "spark://h:7077,h2:7077", "spark://[::1]:7077", "k8s://https://h:443", "k8s://h"),
    ],
)
def test_what_names_a_master(master: str) -> None:
    assert is_master(master)


@pytest.mark.parametrize(
    "master",
    ["", " ", "nonsense", "local[0]", "local[-1]", "local[x]", "local[", "spark://", "spark://h a", "http://h"],
)
def test_what_names_no_master(master: str) -> None:
    assert not is_master(master)

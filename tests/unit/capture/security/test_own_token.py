"""A server's own token: made once, for its user alone; found by address, and only while that server runs."""

import json
import os
import stat
from pathlib import Path

import pytest

from capture.directory import locked
from capture.errors import ConfigError
from capture.security import own_token
from capture.security.exposure import exposed
from capture.security.own_token import LocalServer, announced, find


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    return tmp_path / "run" / "weir"


def server(directory: Path, address: str = "127.0.0.1:8300") -> LocalServer:
    own_token.own_token(directory, "first")
    return LocalServer(address, f"http://{address}", str(directory))


def test_it_is_made_once_and_for_its_user_alone(tmp_path: Path) -> None:
    assert own_token.own_token(tmp_path / "data", "first") == "first"
    assert own_token.own_token(tmp_path / "data", "second") == "first"
    path = tmp_path / "data" / "api-token"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    own_token.replace_token(tmp_path / "data", "third")
    assert own_token.own_token(tmp_path / "data", "fourth") == "third"
    assert [file.name for file in path.parent.iterdir()] == ["api-token"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_one_that_another_user_has_put_there_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "api-token"
    path.write_text("known")
    path.chmod(0o600)
    os.chown(path, 65534, 65534)
    assert [*exposed([path])] == [
        f"{path} belongs to another user, who then has what it protects; chown it to the server's user"
    ]
    (tmp_path / "data").mkdir()
    os.chown(tmp_path / "data", 65534, 65534)
    assert len([*exposed([tmp_path / "data", tmp_path])]) == 1
    assert own_token.own_token(tmp_path, "new") == "new"
    assert path.stat().st_uid == 0


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="choose another --data-dir"):
        own_token.own_token(tmp_path / "file", "first")


def test_a_running_server_is_found_by_its_address(tmp_path: Path, runtime: Path) -> None:
    one = server(tmp_path / "data")
    with locked(tmp_path / "data" / "capture.lock", what="a capture"), announced(one):
        assert find("http://127.0.0.1:8300") == find("localhost:8300") == one
        assert one.token == "first"
        assert find("http://127.0.0.1:8301") is find("http://10.0.0.1:8300") is find("nonsense") is None
        assert stat.S_IMODE(runtime.stat().st_mode) == 0o700
    assert list(runtime.iterdir()) == []


def test_whoever_took_the_port_later_gets_no_token(tmp_path: Path) -> None:
    with announced(server(tmp_path / "data")):
        assert find("http://127.0.0.1:8300") is None, "its data directory is not locked: it has died"


def test_a_server_on_all_addresses_is_reached_here(tmp_path: Path) -> None:
    one = LocalServer("0.0.0.0:8300", "https://127.0.0.1:8300", str(tmp_path), "/ca.pem")
    with locked(tmp_path / "capture.lock", what="a capture"), announced(one):
        assert find("http://localhost:8300") == one
        assert find("http://10.0.0.1:8300") is None


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"address": 3}', "\x00"])
def test_what_is_no_announcement_is_passed_over(content: str, runtime: Path) -> None:
    runtime.mkdir(parents=True)
    (runtime / "x.json").write_text(content)
    assert find("http://127.0.0.1:8300") is None


def test_what_others_could_have_written_is_passed_over(tmp_path: Path, runtime: Path) -> None:
    one = server(tmp_path / "data")
    with locked(tmp_path / "data" / "capture.lock", what="a capture"), announced(one):
        (path,) = runtime.iterdir()
        assert json.loads(path.read_text())["data_dir"] == str(tmp_path / "data")
        path.chmod(0o666)
        assert find("http://127.0.0.1:8300") is None

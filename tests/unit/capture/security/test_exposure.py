"""Files with secrets that others can read are named, as ssh does; what a group reads, and what is missing, are not."""

from pathlib import Path

import pytest

from capture.cli.main import main
from capture.security.exposure import exposed, exposed_settings


@pytest.mark.parametrize(
    ("mode", "is_named"),
    [(0o600, False), (0o640, False), (0o400, False)] + [(mode, True) for mode in (0o644, 0o604, 0o620, 0o666, 0o601)],
)
def test_modes(mode: int, is_named: bool, tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.touch()
    file.chmod(mode)
    found = list(exposed([file, None, tmp_path, tmp_path / "missing", Path("a\0b")]))
    assert [text.partition(",")[0] for text in found] == [f"{file} is open to others (mode {mode:o})"] * is_named


def test_a_command_names_a_token_file_that_others_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "token"
    file.write_text("weir_x")
    file.chmod(0o644)
    assert main(["changefeed", "list", "--server", "http://127.0.0.1:1", "--token-file", str(file)]) == 1
    warning, error = capsys.readouterr().err.splitlines()
    assert warning == f"warning: {file} is open to others (mode 644), who then have what it protects; chmod 600 {file}"
    assert error.startswith("error: no Weir server at")


_SECRETS = (
    "etcd-password = 'geheim'",
    "store = 'postgresql://u:geheim@h/d'",
    "store = 'mysql://u@h/d?password=geheim'",
    "spark-master = 'sc://h:15002/;token=geheim'",
    "[spark]\n'spark.authenticate.secret' = 'geheim'",
    "[spark.hadoop]\n'fs.s3a.secret.key' = ['geheim']",
    "[source]\npassword = 'geheim'",
)
_NONE = (
    "",
    "etcd-password = ''",
    "etcd-password = 'env:WEIR_SECRET_ETCD'",
    "store = 'postgresql://u@h/d?password=file:/run/secrets/store'",
    "secret-key-file = '/etc/weir/secret.key'",
    "secret-references = ['env:SHOP_*', 'file:/run/secrets/*']",
    "[spark]\n'spark.authenticate.secret' = 'file:/run/secrets/spark'\n'spark.authenticate' = 'true'",
    "[spark]\n'spark.kubernetes.authenticate.oauthTokenFile' = '/var/run/token'",
)


@pytest.mark.parametrize(("text", "is_named"), [(text, True) for text in _SECRETS] + [(text, False) for text in _NONE])
def test_settings_with_a_secret_are_named_if_others_read_them(text: str, is_named: bool, tmp_path: Path) -> None:
    file = tmp_path / "weir.toml"
    file.write_text(text)
    file.chmod(0o644)
    found = list(exposed_settings(file))
    assert [one.partition("; ")[2][: len(f"chmod 600 {file}")] for one in found] == [f"chmod 600 {file}"] * is_named
    assert "geheim" not in "".join(found)
    file.chmod(0o640)
    assert [*exposed_settings(file), *exposed_settings(None), *exposed_settings(tmp_path / "missing")] == []


def test_a_command_names_settings_that_others_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "weir.toml"
    file.write_text("etcd-password = 'geheim'")
    file.chmod(0o644)
    command = ["store", "export", f"sqlite://{tmp_path}/missing", str(tmp_path / "image"), "--config", str(file)]
    assert main(command) != 0
    warning = capsys.readouterr().err.splitlines()[0]
    assert warning.startswith(f"warning: {file} has a secret in it and is open to others; chmod 600 {file}, or")

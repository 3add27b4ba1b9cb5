"""Files with secrets that others can read are named, as ssh does; what a group reads, and what is missing, are not."""

from pathlib import Path

import pytest

from capture.cli.main import main
from capture.security.exposure import exposed


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

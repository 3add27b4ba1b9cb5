"""A directory belongs to one process at a time."""

import os
from pathlib import Path

import pytest

from capture.directory import locked, make_directory, restricted
from capture.errors import ConfigError


def test_the_second_holder_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "new" / "lock"
    refused = pytest.raises(ConfigError, match=r"a capture is running in .* already; stop")
    with locked(path, what="a capture"), refused, locked(path, what="a capture"):
        pytest.fail("two of them")
    with locked(path, what="a capture"):
        assert path.exists()


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"cannot write to .*file"), locked(tmp_path / "file" / "lock", what="x"):
        pytest.fail("no lock")


def test_what_a_capture_makes_is_its_own_unless_a_setting_says_otherwise(tmp_path: Path) -> None:
    new, old, shared = tmp_path / "new", tmp_path / "old", tmp_path / "shared"
    old.mkdir()
    old.chmod(0o755)
    before = os.umask(0o022)
    try:
        for directory in (new, old):
            with restricted(directory, "077"):
                make_directory(directory)
                (directory / "file").touch()
                (directory / "inner").mkdir()
            modes = [path.stat().st_mode & 0o777 for path in (directory, directory / "file", directory / "inner")]
            assert modes == [0o700, 0o600, 0o700]
        with restricted(shared, "027"):
            shared.mkdir()
            (shared / "file").touch()
        assert [path.stat().st_mode & 0o777 for path in (shared, shared / "file")] == [0o750, 0o640]
        assert os.umask(0o022) == 0o022, "what the process had is restored"
    finally:
        os.umask(before)

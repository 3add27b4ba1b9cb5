"""A directory belongs to one process at a time."""

from pathlib import Path

import pytest

from capture.directory import locked
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

"""Every example runs as it stands."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[3] / "examples").glob("*.py"))

pytestmark = [pytest.mark.acceptance, pytest.mark.spark, pytest.mark.timeout(180)]


@pytest.mark.matrix  # daily a notebook shows the same in other words
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_it_runs(example: Path, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, example, tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "equal:    True" in done.stdout


def test_there_are_examples() -> None:
    assert EXAMPLES

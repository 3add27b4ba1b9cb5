"""Every notebook runs on a real kernel, cell by cell."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.notebooks import EXAMPLES

pytestmark = [pytest.mark.acceptance, pytest.mark.spark, pytest.mark.timeout(300)]

#: what their last cells say: each compares with the source
RESULTS = {
    "03_first_steps.ipynb": ("[('public.item', True)]", "ChangefeedWidget"),
    "04_live_dashboard.ipynb": ("('equal', True)", "ChangefeedWidget"),
    "05_spark.ipynb": ("('equal', True)",),
}


def run(notebook: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.notebooks", str(notebook)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.matrix  # daily commands/test_python.py starts captures, and the quickstart runs the same job
@pytest.mark.parametrize("notebook", EXAMPLES, ids=lambda path: path.name)
def test_it_runs(notebook: Path) -> None:
    done = run(notebook)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    for result in RESULTS[notebook.name]:
        assert result in done.stdout


@pytest.mark.matrix
def test_a_cell_that_fails_is_found(tmp_path: Path) -> None:
    import nbformat

    notebook = tmp_path / "failing.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1 / 0")]), notebook)
    done = run(notebook)
    assert done.returncode == 1
    assert "ZeroDivisionError" in done.stdout


def test_there_are_notebooks() -> None:
    assert EXAMPLES

"""The pages in ``docs/notebooks`` are the notebooks of ``examples/``."""

import pytest

from tests.architecture.render_notebooks import COMMAND, DIRECTORY, NOTEBOOKS, page


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_page_is_the_notebook(name: str) -> None:
    assert (DIRECTORY / name).read_text() == page(name), f"the notebook has changed: run {COMMAND}"


def test_there_is_no_page_without_a_notebook() -> None:
    pictures = {name.replace(".md", ".png") for name in NOTEBOOKS}
    assert {path.name for path in DIRECTORY.iterdir()} <= NOTEBOOKS.keys() | pictures

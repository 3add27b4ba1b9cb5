"""The transition tables in ``docs/states`` are what the machines do."""

import pytest

from tests.architecture.render_states import COMMAND, DIRECTORY, PAGES


@pytest.mark.parametrize("name", PAGES)
def test_page_is_what_the_machine_does(name: str) -> None:
    assert (DIRECTORY / name).read_text() == PAGES[name](), f"the machine has changed: run {COMMAND}"


def test_there_is_no_page_without_a_machine() -> None:
    assert {path.name for path in DIRECTORY.iterdir()} == PAGES.keys()

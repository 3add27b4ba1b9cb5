"""The transition tables in ``docs/states`` are what the machines do."""

import re

import pytest

from tests.architecture.render_states import COMMAND, DIRECTORY, PAGES


@pytest.mark.parametrize("name", PAGES)
def test_page_is_what_the_machine_does(name: str) -> None:
    assert (DIRECTORY / name).read_text() == PAGES[name](), f"the machine has changed: run {COMMAND}"


def test_there_is_no_page_without_a_machine() -> None:
    assert {path.name for path in DIRECTORY.iterdir()} == PAGES.keys()


def test_every_test_that_a_page_names_is_there() -> None:
    text = (DIRECTORY.parent / "architecture.md").read_text()
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text)
    assert named
    for file, name in named:
        assert re.search(rf"^(async )?def {name}\(", (DIRECTORY.parents[1] / file).read_text(), re.MULTILINE), name

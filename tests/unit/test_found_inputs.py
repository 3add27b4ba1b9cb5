"""Inputs that fuzzing (``make fuzz``) has found: they are refused or taken correctly."""

from pathlib import Path

import pytest

from tests.fuzz.__main__ import FOUND
from tests.fuzz.targets import TARGETS, run

CASES = sorted((path.parent.name, path) for path in FOUND.glob("*/*"))


@pytest.mark.parametrize("name", TARGETS)
def test_good_inputs_are_taken(name: str) -> None:
    for data in TARGETS[name].seeds():
        run(name, data)


@pytest.mark.parametrize(("name", "path"), CASES, ids=lambda value: str(value)[-24:])
def test_a_found_input_is_taken_or_refused(name: str, path: Path) -> None:
    run(name, path.read_bytes())

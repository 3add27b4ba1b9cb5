"""Docstrings and comments name modules, classes and functions that exist."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.architecture.test_tidy import FILES, PACKAGES, ROOT, name_of

_REFERENCE = re.compile(rf"``((?:{'|'.join(PACKAGES)})(?:\.\w+)+)(?:\(\))?``")


@cache
def names_in(module: Path) -> frozenset[str]:
    """What a module defines or imports at its top."""
    names: set[str] = set()
    for node in ast.parse(module.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {item.id for target in targets for item in ast.walk(target) if isinstance(item, ast.Name)}
    return frozenset(names)


def exists(reference: str) -> bool:
    """A package, a module, or what is at the top of one; attributes of classes are not checked."""
    parts = reference.split(".")
    for count in range(len(parts), 0, -1):
        place = ROOT.joinpath(*parts[:count])
        module = place.with_suffix(".py") if place.with_suffix(".py").is_file() else place / "__init__.py"
        if module.is_file():
            return count == len(parts) or parts[count] in names_in(module)
    return False


@pytest.mark.parametrize("package", PACKAGES)
def test_references_lead_somewhere(package: str) -> None:
    dead = [
        f"{name_of(path)}:{number}: {reference}"
        for path in FILES
        if name_of(path).startswith(f"{package}/")
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        for reference in _REFERENCE.findall(line)
        if not exists(reference)
    ]
    assert dead == []


def test_a_dead_reference_would_be_found() -> None:
    assert exists("agent.log.head.LogWriter")
    assert exists("agent.log")
    assert not exists("agent.plant")
    assert not exists("agent.log.head.Tail")

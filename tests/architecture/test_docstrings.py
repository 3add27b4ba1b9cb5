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


_CLAUSE = re.compile(r"(What|Which|Who|Whose|How|Where|When|Why|If)\b")


def openings(tree: ast.Module) -> list[tuple[str, str]]:
    """Return the module and its classes, each with the opening of its docstring."""
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    return [("", ast.get_docstring(tree) or ""), *((node.name, ast.get_docstring(node) or "") for node in classes)]


@pytest.mark.parametrize("package", PACKAGES)
def test_modules_and_classes_open_with_a_noun(package: str) -> None:
    """A name is a noun, and what it stands for is one too: no clause ("What a task is given")."""
    clauses = [
        f"{name_of(path)}: {name}: {opening[:60]}"
        for path in FILES
        if name_of(path).startswith(f"{package}/")
        for name, opening in openings(ast.parse(path.read_text()))
        if _CLAUSE.match(opening)
    ]
    assert clauses == []


def test_a_clause_would_be_found() -> None:
    tree = ast.parse('"""Tasks: run."""\nclass Task:\n    """What a task is given."""\n')
    assert [name for name, opening in openings(tree) if _CLAUSE.match(opening)] == ["Task"]


@pytest.mark.parametrize("package", ["agent", "capture", "reactor"])
def test_a_list_of_errors_has_each_class_below_its_parent(package: str) -> None:
    module = ast.parse((ROOT / package / "errors.py").read_text())
    bases = {node.name: ast.unparse(node.bases[0]) for node in module.body if isinstance(node, ast.ClassDef)}
    listed = dict[str, str]()
    above = list[tuple[int, str]]()
    for indent, name in re.findall(r"^( +)(\w+Error)  ", ast.get_docstring(module) or "", re.MULTILINE):
        above = [(depth, parent) for depth, parent in above if depth < len(indent)]
        listed[name] = above[-1][1] if above else "WeirError"
        above.append((len(indent), name))
    listed.pop("WeirError", None)
    names = [name for name in bases if name.endswith("Error") and name != "WeirError"]
    assert listed == {name: bases[name] if bases[name] in bases else "WeirError" for name in names}

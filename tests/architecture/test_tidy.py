"""Style that a linter does not hold: lengths, calls that have a better replacement, no loop where decisions are made.

The layers themselves are in pyproject.toml (import-linter) and run with ``make check``.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("reactor", "owner", "agent", "capture")
FILES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))

BODY_LINES_MAX = 60
FILE_LINES_MAX = 400

#: call → what to use instead
BANNED = {
    "print": "structlog in parts, capture.terminal.console in the command line",
    "time.sleep": "an event, or anyio.sleep; blocking parts wait with a deadline in a thread",
    "asyncio.create_task": "an anyio task group: a task always has somebody who waits for it",
    "asyncio.sleep": "anyio.sleep",
    "asyncio.run": "anyio.run",
    "os.system": "capture.embedded.children.spawn",
}
#: Blocking code that runs in a worker thread or on an executor and has nothing to wait on but time.
MAY_SLEEP = {
    "capture/embedded/part.py",
    "capture/embedded/postgres.py",
    "agent/sources/mysql/binlog/stream.py",
    "agent/sources/postgres/stream/stream.py",
}
#: Decisions: no loop, no task. What they want is done by somebody else.
PURE = (
    "owner",
    "agent/control/agent.py",
    "agent/filter/tables.py",
    "agent/control/gate.py",
    "agent/ports.py",
    "agent/rows/schema.py",
    "agent/control/table_span.py",
    "capture/api/port.py",
    "capture/messaging/frames.py",
    "capture/quickstart/lag.py",
    "reactor/effects.py",
    "reactor/ids.py",
    "reactor/keys.py",
    "reactor/messages.py",
    "reactor/patches.py",
    "reactor/records/changefeed.py",
    "reactor/state.py",
    "reactor/txn.py",
    "reactor/watch.py",
)


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), filename=str(path))


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of the body without its docstring."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def calls(tree: ast.Module) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node.lineno


def is_protocol(node: ast.ClassDef) -> bool:
    return any(ast.unparse(base).startswith("Protocol") for base in node.bases)


def coroutines(tree: ast.Module) -> Iterator[ast.AsyncFunctionDef]:
    """Coroutines with a body of their own; a protocol only says what others must have."""
    stated = {
        item for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and is_protocol(node) for item in node.body
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.AsyncFunctionDef) and node not in stated:
            yield node


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_functions_and_files_are_short(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= FILE_LINES_MAX, "split it: one noun per file"
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert body_lines(node) <= BODY_LINES_MAX, (
                f"{node.name} is too long: keep the branches, move the leaves out"
            )


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_every_module_says_what_it_decides(path: Path) -> None:
    tree = tree_of(path)
    assert not tree.body or ast.get_docstring(tree), "begin with what it decides and what it leaves to whom"


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_banned_calls_have_replacements(path: Path) -> None:
    for name, line in calls(tree_of(path)):
        if name == "time.sleep" and name_of(path) in MAY_SLEEP:
            continue
        assert name not in BANNED, f"line {line}: instead of {name} use {BANNED[name]}"


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_decisions_have_no_coroutines(path: Path) -> None:
    if not any(name_of(path) == pure or name_of(path).startswith(f"{pure}/") for pure in PURE):
        return
    assert [node.name for node in coroutines(tree_of(path))] == []


def test_nothing_is_left_undone() -> None:
    undone = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X)\b|raise NotImplemented" + "Error")
    for path in FILES:
        for number, line in enumerate(path.read_text().splitlines(), start=1):
            assert not undone.search(line), f"{name_of(path)}:{number}: {line.strip()}"

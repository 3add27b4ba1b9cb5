"""Style that a linter does not hold: lengths, calls that have a better replacement, no loop where decisions are made.

The layers themselves are in pyproject.toml (import-linter) and run with ``make check``.
"""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("reactor", "owner", "agent", "capture")
FILES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))

BODY_LINES_MAX = 60
FILE_LINES_MAX = 400
FOLDER_MODULES_MAX = 20

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
    "capture/python/waiting.py",
    "capture/python/local.py",
    "capture/python/snapshot_start.py",
}
#: a capture's task outlives the call that starts it
MAY_CREATE_TASKS = {"capture/python/hosting.py"}
#: Decisions: no loop, no task. What they want is done by somebody else.
PURE = (
    "owner",
    "agent/control/agent.py",
    "agent/filter/tables.py",
    "agent/control/gate.py",
    "agent/ports",
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
    "reactor/worker/watch.py",
)


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
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


def test_functions_and_files_are_short() -> None:
    """Split a file: one noun each. Of a function keep the branches, and move the leaves out."""
    assert [name_of(path) for path in FILES if len(path.read_text().splitlines()) > FILE_LINES_MAX] == []
    functions = (
        (path, node)
        for path in FILES
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    assert [f"{name_of(path)}: {node.name}" for path, node in functions if body_lines(node) > BODY_LINES_MAX] == []


def test_every_module_says_what_it_decides() -> None:
    """It begins with what it decides and what it leaves to whom."""
    assert [name_of(path) for path in FILES if (tree := tree_of(path)).body and not ast.get_docstring(tree)] == []


def test_banned_calls_have_replacements() -> None:
    for path in FILES:
        for name, line in calls(tree_of(path)):
            if name == "time.sleep" and name_of(path) in MAY_SLEEP:
                continue
            if name == "asyncio.create_task" and name_of(path) in MAY_CREATE_TASKS:
                continue
            assert name not in BANNED, f"{name_of(path)}:{line}: instead of {name} use {BANNED[name]}"


def test_the_clock_is_asked_for_by_its_module() -> None:
    """``time.time()``, so that whoever patches it there has patched it for all."""
    imports = ((path, node) for path in FILES for node in ast.walk(tree_of(path)) if isinstance(node, ast.ImportFrom))
    assert [name_of(path) for path, node in imports if node.module == "time"] == []


def test_decisions_have_no_coroutines() -> None:
    pure = [
        path for path in FILES if any(name_of(path) == each or name_of(path).startswith(f"{each}/") for each in PURE)
    ]
    assert all((ROOT / each).exists() for each in PURE)
    assert [f"{name_of(path)}: {node.name}" for path in pure for node in coroutines(tree_of(path))] == []


def test_no_folder_is_too_full() -> None:
    folders = Counter(
        path.parent
        for package in (*PACKAGES, "tests", "benchmarks")
        for path in (ROOT / package).rglob("*.py")
        if path.name != "__init__.py"
    )
    assert [name_of(folder) for folder, count in folders.items() if count > FOLDER_MODULES_MAX] == []


def test_tests_mirror_the_tree() -> None:
    """``tests/unit/agent/log`` tests ``agent/log``."""
    folders = {
        path.parent.relative_to(ROOT / "tests" / kind)
        for kind in ("unit", "integration")
        for path in (ROOT / "tests" / kind).rglob("test_*.py")
    }
    assert [str(folder) for folder in sorted(folders) if not (ROOT / folder).is_dir()] == []


def test_nothing_is_left_undone() -> None:
    undone = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X)\b|raise NotImplemented" + "Error")
    for path in FILES:
        for number, line in enumerate(path.read_text().splitlines(), start=1):
            assert not undone.search(line), f"{name_of(path)}:{number}: {line.strip()}"


def test_variables_of_the_tests_are_not_named_like_settings() -> None:
    """A capture refuses unknown variables that begin with WEIR_, also those of the pytest process that starts it."""
    texts = {path: path.read_text() for path in (ROOT / "Makefile", *(ROOT / "tests").glob("*.py"))}
    asked = re.compile(r"""\bWEIR_\w+=|environ(\.get\(|\[)['"]WEIR_""")
    assert [str(path) for path, text in texts.items() if asked.search(text)] == []

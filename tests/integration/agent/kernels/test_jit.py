"""Kernels are compiled once, by a process of its own, and again when what they are made from has changed."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import agent

_REPO = Path(agent.__file__).parent.parent

#: a few kernels that need no other module
_FEW = ("__init__.py", "jit.py", "store.py", "civil.py", "decimal128.py")
_COMPILED = """
import sys
{imports}
loaded = [vars(module) for name, module in sys.modules.items() if name.startswith("agent.")]
kernels = {{id(each): each for names in loaded for each in names.values() if hasattr(each, "nopython_signatures")}}
misses = [sum(kernel.stats.cache_misses.values()) for kernel in kernels.values()]
print(len(misses), sum(misses))
"""


def _run(code: str, cache: Path | str | None, package: Path = _REPO) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(package)}
    env.pop("NUMBA_CACHE_DIR", None)
    if cache is not None:
        env["NUMBA_CACHE_DIR"] = str(cache)
    return subprocess.run(
        [sys.executable, "-c", code], env=env, cwd=package, capture_output=True, text=True, check=True, timeout=300
    )


def _kernels_and_misses(imports: str, cache: Path, package: Path = _REPO) -> list[int]:
    return [
        int(word) for word in _run(_COMPILED.format(imports=imports), cache, package).stdout.splitlines()[-1].split()
    ]


def test_first_process_compiles_one_kernel_and_has_the_others_compiled(tmp_path: Path) -> None:
    _few(tmp_path)
    imports, cache = "from agent.kernels import civil, decimal128", tmp_path / "cache"
    (imported, here), (again, misses) = (_kernels_and_misses(imports, cache, tmp_path) for _ in range(2))
    assert imported == again >= 4
    assert (here, misses) == (1, 0)


_LOOPS = """
from numba import types
from agent.kernels.fixed import loop
from agent.kernels.jit import inlined
@inlined
def _byte(data, at): return data[at]
@inlined
def _is_even(data, at): return data[at] % 2 == 0
decode_any = loop(_byte, types.int64)
decode_even = loop(_byte, types.int64, _is_even)
"""


@pytest.mark.matrix
def test_a_loop_over_plain_functions_is_found_by_the_next_process(tmp_path: Path) -> None:
    (_few(tmp_path, "fixed.py") / "loops.py").write_text(_LOOPS)
    imports, cache = "from agent.kernels import loops", tmp_path / "cache"
    assert [_kernels_and_misses(imports, cache, tmp_path)[1] for _ in range(2)] == [1, 0]
    ran = (
        "import numpy; from agent.kernels.loops import decode_any, decode_even; at = numpy.arange(3); out = at.copy();"
        "print([run(numpy.array([2, 4, 5], 'u1'), at, out, 0) for run in (decode_any, decode_even)])"
    )
    assert _run(ran, cache, tmp_path).stdout.strip() == "[-1, 2]"


def _few(directory: Path, *more: str) -> Path:
    """A package of a few kernels; the folder they are in."""
    kernels = directory / "agent" / "kernels"
    kernels.mkdir(parents=True)
    (directory / "agent" / "__init__.py").touch()
    for name in (*_FEW, *more):
        shutil.copy(_REPO / "agent" / "kernels" / name, kernels)
    return kernels


@pytest.mark.matrix
@pytest.mark.timeout(400)
def test_all_kernels_are_compiled_by_the_first_process(tmp_path: Path) -> None:
    imports = "from agent.kernels import key_hash; from agent.sources.mysql.decode import decode"
    (imported, here), (again, misses) = (_kernels_and_misses(imports, tmp_path) for _ in range(2))
    assert imported == again > 50
    assert (here, misses) == (1, 0)


def test_without_a_place_to_keep_them_every_process_compiles() -> None:
    ran = _run("from agent.kernels.civil import days_from_civil; print(days_from_civil(1970, 1, 2))", "/proc/nowhere")
    assert ran.stdout.split() == ["1"]
    assert "NUMBA_CACHE_DIR" in ran.stderr


def test_change_of_what_kernels_import_is_noticed(tmp_path: Path) -> None:
    """numba compares only the file that a kernel stands in."""
    shutil.copytree(_REPO / "agent", tmp_path / "agent", ignore=shutil.ignore_patterns("__pycache__"))
    home = "from agent.kernels.store import home; print(home())"
    before = _run(home, None, tmp_path).stdout
    assert Path(before.strip()).is_relative_to(tmp_path)
    changes = tmp_path / "agent" / "rows" / "changes.py"  # it numbers the operations, and has no kernel
    changes.write_text(changes.read_text() + "\n")
    assert _run(home, None, tmp_path).stdout != before

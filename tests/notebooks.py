"""``python -m tests.notebooks``: runs notebooks cell by cell, each on a kernel of its own, and prints their results.

Exit status 0: no cell has failed. Without arguments: those of ``examples/``.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.ipynb"))
_CELL_TIMEOUT_S = 240


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.notebooks", description=__doc__)
    parser.add_argument("notebooks", nargs="*", type=Path, default=EXAMPLES)
    return max([_run(path) for path in parser.parse_args().notebooks], default=0)


def _run(path: Path) -> int:
    import nbformat
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError

    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook, timeout=_CELL_TIMEOUT_S, kernel_name="python3", resources={"metadata": {"path": str(path.parent)}}
    )
    sys.stdout.write(f"{path.name}\n")
    try:
        client.execute()
    except CellExecutionError as error:
        sys.stdout.write(f"{error}\n")
        return 1
    for text in _results(notebook):
        sys.stdout.write(f"{text}\n")
    return 0


def _results(notebook: Any) -> Iterator[str]:
    """Yield the results of all cells as text."""
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            if output.output_type in ("execute_result", "display_data"):
                yield output.data["text/plain"]


if __name__ == "__main__":
    sys.exit(main())

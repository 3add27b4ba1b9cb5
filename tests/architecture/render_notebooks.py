"""Renders the notebooks of ``examples/`` to ``docs/notebooks``: ``python -m tests.architecture.render_notebooks``.

A page has the notebook's texts and code, and a screenshot of it in JupyterLab where there is one. ``test_notebooks``
compares the pages that are checked in.
"""

import json
from pathlib import Path

ROOT = Path(__file__).parents[2]
DIRECTORY = ROOT / "docs" / "notebooks"
COMMAND = "python -m tests.architecture.render_notebooks"
NOTEBOOKS = {
    path.stem.partition("_")[2].replace("_", "-") + ".md": path for path in sorted((ROOT / "examples").glob("*.ipynb"))
}


def page(name: str) -> str:
    """The text of a page by its name."""
    path = NOTEBOOKS[name]
    parts = [_cell(cell) for cell in json.loads(path.read_text())["cells"]]
    place = f"This page is [examples/{path.name}](../../examples/{path.name}), which `make notebooks` runs."
    picture = Path(name).with_suffix(".png").name
    shown = [f"![The notebook in JupyterLab]({picture})"] if (DIRECTORY / picture).exists() else []
    return "\n\n".join([parts[0], place, *shown, *parts[1:]]) + "\n"


def _cell(cell: dict[str, object]) -> str:
    source = cell["source"]
    text = "".join(source) if isinstance(source, list) else str(source)
    return text if cell["cell_type"] == "markdown" else f"```python\n{text.removesuffix(';')}\n```"


def main() -> None:
    DIRECTORY.mkdir(exist_ok=True)
    for name in NOTEBOOKS:
        (DIRECTORY / name).write_text(page(name))


if __name__ == "__main__":
    main()

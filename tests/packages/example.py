"""Packages below ``examples/``, built and installed as ``pip`` does, without a network and a build environment."""

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2] / "examples"


def install(name: str, site: Path) -> None:
    """The example of that folder, below ``site``."""
    wheel = _wheel(ROOT / name, site)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(site)]
    subprocess.run([*command, str(wheel)], check=True, capture_output=True)


def _wheel(folder: Path, directory: Path) -> Path:
    """What a build backend makes of the folder's ``pyproject.toml``: modules and metadata."""
    settings = tomllib.loads((folder / "pyproject.toml").read_text())
    project = settings["project"]
    stem = f"{project['name'].replace('-', '_')}-{project['version']}"
    groups = [
        "\n".join([f"[{group}]", *(f"{name} = {value}" for name, value in entries.items())])
        for group, entries in project["entry-points"].items()
    ]
    metadata = {
        "METADATA": f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n",
        "WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "entry_points.txt": "\n".join(groups) + "\n",
        "RECORD": "",
    }
    path = directory / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for module in settings["tool"]["setuptools"]["py-modules"]:
            wheel.write(folder / f"{module}.py", f"{module}.py")
        for name, text in metadata.items():
            wheel.writestr(f"{stem}.dist-info/{name}", text)
    return path

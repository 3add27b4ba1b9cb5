"""``python -m benchmarks [NAME...] [--size N] [--json]``: run benchmarks, each with its peer, and print the figures.

A benchmark is a module of ``benchmarks.rows`` (sources and sinks), ``benchmarks.lake`` (tables of lakehouses) or
``benchmarks.cluster`` (captures and their actors) with ``run() -> dict``, whose first argument is the size (rows,
seconds, tables: see its default); ``decode_postgres`` is called
``decode-postgres``. The dictionary has ``ratio`` (ours to the peer's), both raw figures, and a description of the
workload. Shared code is in ``benchmarks.support``.
"""

import argparse
import importlib
import json
import pkgutil
import sys
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks import cluster, lake, rows


def names() -> dict[str, str]:
    """Return the benchmarks' names in order, with their modules."""
    packages = (cluster, lake, rows)
    found = [(each.name, package.__name__) for package in packages for each in pkgutil.iter_modules(package.__path__)]
    return {name.replace("_", "-"): f"{package}.{name}" for name, package in sorted(found)}


def run(name: str, size: int | None = None) -> dict[str, Any]:
    sizes = () if size is None else (size,)
    return dict(importlib.import_module(names()[name]).run(*sizes))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Run benchmarks with their peers.")
    parser.add_argument("name", nargs="*", metavar="NAME", help=f"one of: {', '.join(names())}; none: all")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--size", type=int, help="instead of the benchmark's own: rows, seconds or tables, as it has")
    arguments = parser.parse_args()
    wanted = arguments.name or list(names())
    for name in wanted:
        if name not in names():
            sys.stderr.write(f"error: no benchmark {name!r}; there are {', '.join(names())}\n")
            return 2
    results: dict[str, Mapping[str, Any]] = {}
    for name in wanted:
        sys.stderr.write(f"{name} …\n")
        results[name] = run(name, arguments.size)
        if not arguments.json:
            _print(name, results[name])
    if arguments.json:
        document: object = results[wanted[0]] if len(arguments.name) == 1 else results
        sys.stdout.write(json.dumps(document, indent=2, default=str) + "\n")
    return 0


def _print(name: str, figures: Mapping[str, Any]) -> None:
    table = Table(title=name, title_justify="left", show_header=False)
    for key, value in figures.items():
        table.add_row(key.replace("_", " "), f"{value:,.3f}" if isinstance(value, float) else escape(str(value)))
    Console().print(table)


if __name__ == "__main__":
    sys.exit(main())

"""``weir kernels …``: the compiled code that decodes rows."""

import time
from pathlib import Path

import typer
from pydantic import BaseModel

from capture.cli.options import Json
from capture.errors import ConfigError
from capture.terminal import console
from reactor.errors import WeirError

kernels_app = typer.Typer(no_args_is_help=True, help="The compiled code that decodes rows.")


class CompiledView(BaseModel):
    """``kept_in``: the directory from which processes on this machine load them. ``kernels``: 0 if all were compiled
    already. ``class_archive``: the file with Spark's Java classes, or why there is none."""

    kept_in: str
    kernels: int
    compiled: int
    seconds: float
    class_archive: str


@kernels_app.callback()
def kernels() -> None:
    """The compiled code that decodes rows."""


@kernels_app.command("compile")
def compile_(json: Json = False) -> None:
    """Compile what is not kept yet, for NUMBA_CPU_NAME else this machine's processor, and archive Spark's Java classes;
    for an image, or before the first start on a machine."""
    from agent.kernels import jit, store

    home = store.home()
    if home is None:
        raise ConfigError("compiled kernels cannot be kept anywhere; name a directory with NUMBA_CACHE_DIR")
    began, count, missed = time.monotonic(), 0, 0
    if not store.complete_marker(home).exists():
        with console.waiting("compiling kernels"):
            count, missed = jit.compile_all()
    seconds = round(time.monotonic() - began, 1)
    with console.waiting("archiving Spark's classes"):
        classes = _archived()
    view = CompiledView(kept_in=str(home), kernels=count, compiled=missed, seconds=seconds, class_archive=str(classes))
    if json:
        return console.print_json(view)
    done = f"{missed} kernels of {count} compiled in {seconds} s" if count else "all kernels were compiled before"
    found = "Spark's Java classes too" if isinstance(classes, Path) else f"Spark's Java classes not: {classes}"
    return console.print_line(f"{done}; they are in {view.kept_in}, {found}")


def _archived() -> Path | WeirError:
    """Return the archive, or why there is none: Spark starts without one, only more slowly."""
    from agent.spark.archiving import archive_classes

    try:
        archive = archive_classes()
    except WeirError as error:
        return error
    assert archive is not None, "kernels are kept, so it can be kept beside them"
    return archive

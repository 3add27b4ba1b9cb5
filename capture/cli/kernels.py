"""``weir kernels …``: the compiled code that decodes rows."""

import time

import typer
from pydantic import BaseModel

from capture.cli.options import Json
from capture.errors import ConfigError
from capture.terminal import console

kernels_app = typer.Typer(no_args_is_help=True, help="The compiled code that decodes rows.")


class CompiledView(BaseModel):
    """``kept_in``: the directory from which processes on this machine load them. ``kernels``: 0 if all were compiled
    already."""

    kept_in: str
    kernels: int
    compiled: int
    seconds: float


@kernels_app.callback()
def kernels() -> None:
    """The compiled code that decodes rows."""


@kernels_app.command("compile")
def compile_(json: Json = False) -> None:
    """Compile what is not kept yet, for NUMBA_CPU_NAME else this machine's processor; where an image is built, say."""
    from agent.kernels import jit, store

    home = store.home()
    if home is None:
        raise ConfigError("compiled kernels cannot be kept anywhere; name a directory with NUMBA_CACHE_DIR")
    began, count, missed = time.monotonic(), 0, 0
    if not store.complete_marker(home).exists():
        with console.waiting("compiling kernels"):
            count, missed = jit.compile_all()
    seconds = round(time.monotonic() - began, 1)
    view = CompiledView(kept_in=str(home), kernels=count, compiled=missed, seconds=seconds)
    if json:
        return console.print_json(view)
    done = f"{missed} kernels of {count} compiled in {seconds} s" if count else "all kernels were compiled before"
    return console.print_line(f"{done}; they lie in {view.kept_in}")

"""``weir secret …``: the key under which the cluster keeps its secrets."""

import threading
import time
from pathlib import Path
from typing import Annotated

import typer

from capture.cli.options import DEFAULT_SERVER, Json, Server, client_of
from capture.errors import ConfigError
from capture.terminal import console

secret_app = typer.Typer(no_args_is_help=True, help="The key under which the cluster keeps its secrets.")

_POLL_S = 1.0


@secret_app.command("new-key")
def new_key(
    file: Annotated[Path, typer.Argument(help="The key file (secret-key-file, or secret.key of the data directory).")],
    json: Json = False,
) -> None:
    """Add a new key to a key file; nothing is sealed with it before `weir secret rotate`."""
    from capture.security.key_file import add_key
    from capture.security.secrets import fingerprint_of

    fingerprint = fingerprint_of(add_key(file))
    if json:
        return console.print_json({"file": str(file), "fingerprint": fingerprint})
    return console.print_line(
        f"{file} has key {fingerprint} too; give it to every capture, then run weir secret rotate"
    )


@secret_app.command("rotate")
def rotate(
    timeout: Annotated[float, typer.Option(min=0, help="Seconds to wait for captures that lack the new key.")] = 600.0,
    server: Server = DEFAULT_SERVER,
    json: Json = False,
) -> None:
    """Seal all secrets again under the newest key of the key files. May be ended, and begun again, at any time."""
    deadline = time.monotonic() + timeout
    with client_of(server) as client, console.waiting("sealing secrets again") as show:
        while not (view := client.rotate_secret()).done:
            if time.monotonic() >= deadline:
                lacking = "; ".join(view.lacking) or "another rotation is under way"
                raise ConfigError(f"key {view.fingerprint} is not at every capture; give it to: {lacking}")
            show(f"waiting for key {view.fingerprint} at {', '.join(view.lacking)}")
            threading.Event().wait(_POLL_S)
    if json:
        return console.print_json(view)
    text = f"all secrets are under key {view.fingerprint} ({view.resealed} changefeeds sealed again)"
    return console.print_line(f"{text}; take older keys out of the key files")

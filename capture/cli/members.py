"""``weir capture …`` and ``weir owner …``: the members of a cluster."""

import threading
import time
from typing import Annotated

import typer

from capture.cli.options import DEFAULT_SERVER, Json, Server, client_of
from capture.errors import CaptureNotEmptyError
from capture.terminal import console

capture_app = typer.Typer(no_args_is_help=True, help="The members of a cluster.")
owner_app = typer.Typer(no_args_is_help=True, help="The member that decides.")

_POLL_S = 0.25


@capture_app.command("list")
def captures(server: Server = DEFAULT_SERVER, json: Json = False) -> None:
    """The captures of the cluster, and what runs on each."""
    with client_of(server) as client:
        members = client.captures()
    if json:
        return console.print_json(members)
    rows = [
        (member.id, member.address, member.is_owner, member.owns, member.spans, member.workers) for member in members
    ]
    console.print_table(("id", "address", "owner", "owns", "spans", "workers"), rows)
    for member in members:
        if member.waits_for:
            console.print_line(f"{member.address} has not joined: it {member.waits_for}")
        if member.fault:
            console.print_line(f"capture {member.id} takes no work: {member.fault}")
        for fault in member.faults:
            console.print_line(f"capture {member.id} does not work for {fault}")
    return None


@capture_app.command("drain")
def drain(
    capture_id: Annotated[str, typer.Argument(help="As `weir capture list` shows it.")],
    timeout: Annotated[float, typer.Option(min=0, help="Seconds to wait until it is empty; 0: only begin.")] = 600.0,
    server: Server = DEFAULT_SERVER,
    json: Json = False,
) -> None:
    """Give all that a capture owns and works on to the others; it takes no work until it is started again."""
    with client_of(server) as client, console.waiting(f"draining {capture_id}") as show:
        left = began = client.drain(capture_id)
        deadline = time.monotonic() + timeout
        while left.remaining and time.monotonic() < deadline:
            show(f"draining {capture_id}: {left.remaining} of {began.remaining} spans, workers and owners left")
            threading.Event().wait(_POLL_S)
            left = client.drain(capture_id)
    if left.remaining and timeout:
        raise CaptureNotEmptyError.after(capture_id, left.remaining, timeout=timeout)
    if json:
        return console.print_json(left)
    text = f"still has {left.remaining} spans, workers and owners" if left.remaining else "is empty: stop or restart it"
    return console.print_line(f"capture {capture_id} {text}")


@owner_app.command("resign")
def resign(server: Server = DEFAULT_SERVER, json: Json = False) -> None:
    """Let another capture become owner."""
    with client_of(server) as client, console.waiting("waiting for another owner"):
        done = client.resign_owner()
    if json:
        return console.print_json(done)
    return console.print_line(f"capture {done.capture} has resigned; the owner is {done.owner}")

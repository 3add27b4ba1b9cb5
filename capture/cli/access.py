"""``weir token …`` and ``weir audit``: who may ask a cluster's servers for what, and what they have changed."""

import re
from typing import Annotated

import typer

from capture.api.access import TokenAsked
from capture.cli.options import DEFAULT_SERVER, Json, Server, client_of
from capture.errors import ConfigError
from capture.terminal import console
from reactor.records.access import Role

token_app = typer.Typer(no_args_is_help=True, help="Tokens by which people and programs are let in.")

_SPAN = re.compile(r"^([1-9][0-9]{0,5})([smhd])\Z")
_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


@token_app.command("create")
def create(
    role: Annotated[Role, typer.Option(help="viewer: look; operator: change changefeeds too; admin: all.")],
    name: Annotated[str, typer.Option(help="Who or what gets it; the audit trail shows it.")] = "token",
    expires: Annotated[str | None, typer.Option(help="Such as 90d, 12h; default: never.")] = None,
    server: Server = DEFAULT_SERVER,
    json: Json = False,
) -> None:
    """Make a token, and print it: it is shown this once."""
    from capture.api.inputs import model_of

    seconds = None if expires is None else _seconds(expires)
    asked = model_of(TokenAsked, role=role, name=name, expires_in_seconds=seconds)
    with client_of(server) as client:
        made = client.create_token(asked)
    if json:
        return console.print_json(made)
    return console.print_line(made.token or "")


@token_app.command("list")
def list_(server: Server = DEFAULT_SERVER, json: Json = False) -> None:
    """All tokens but their secrets, servers' own among them."""
    with client_of(server) as client:
        found = client.tokens()
    if json:
        return console.print_json(found)
    rows = [
        (one.id, one.name, one.role, console.when(one.created_at), one.created_by, _end(one.expires_at, one.revoked_at))
        for one in found
    ]
    console.print_table(("id", "name", "role", "created", "by", "until"), rows)
    return None


@token_app.command("revoke")
def revoke(
    token_id: Annotated[str, typer.Argument(help="As `weir token list` shows it.")],
    server: Server = DEFAULT_SERVER,
    json: Json = False,
) -> None:
    """End a token now. A server whose own token is revoked makes another at its next start."""
    with client_of(server) as client:
        done = client.revoke_token(token_id)
    if json:
        return console.print_json(done)
    return console.print_line(f"token {done.id} of {done.name} is revoked")


def show_audit(
    limit: Annotated[int, typer.Option(min=1, max=1_000, help="How many, the newest ones.")] = 100,
    server: Server = DEFAULT_SERVER,
    json: Json = False,
) -> None:
    """What was changed, by whom, when and from where."""
    with client_of(server) as client:
        found = client.audit(limit)
    if json:
        return console.print_json(found)
    rows = [
        (
            console.when(one.time),
            f"{one.name} ({one.role})",
            one.source,
            f"{one.method} {one.path}{f' ({one.detail})' if one.detail else ''}",
            one.status or "unknown",
        )
        for one in found
    ]
    console.print_table(("when", "who", "from", "what", "status"), rows)
    return None


def _end(expires_at: float | None, revoked_at: float | None) -> str:
    if revoked_at is not None:
        return f"revoked {console.when(revoked_at)}"
    return "" if expires_at is None else console.when(expires_at)


def _seconds(text: str) -> int:
    match = _SPAN.match(text)
    if match is None:
        raise ConfigError(f"{text!r} is no span of time; write such as 90d, 12h, 30m or 60s")
    return int(match[1]) * _SECONDS[match[2]]

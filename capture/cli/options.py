"""Command options: options that commands share, and the client that each uses."""

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from capture.address import DEFAULT_ADDRESS
from capture.errors import ConfigError
from capture.terminal import console
from reactor.files import read_bounded
from reactor.ids import parse_changefeed_id

if TYPE_CHECKING:
    from capture.api.client import Client

DEFAULT_SERVER = f"http://{DEFAULT_ADDRESS}"

Server = Annotated[str, typer.Option("--server", envvar="WEIR_SERVER", help="URL of any capture's HTTP API.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Id = Annotated[
    str,
    typer.Option("--changefeed-id", "-c", help="Letters and digits, joined by hyphens.", callback=parse_changefeed_id),
]

Rate = Annotated[
    int | None, typer.Option("--rows-per-second", min=100, help="Rows to read from the source in a second, at most.")
]
WHERE_HELP = "Only rows whose keys match this condition, at the source or at the sink; see docs/operating.md."


class Credentials:
    """The values of this command's ``--token-file`` and ``--ca-file``; empty: not given."""

    token_file = ""
    ca_file = ""


@functools.cache
def command_of(app: typer.Typer) -> Any:
    """Return the command line, built once: every command that calls a server takes the credentials."""
    command = typer.main.get_command(app)
    options = typer.main.get_command(_app()).params[:2]
    for option in options:
        option.expose_value = False
    _add(command, options)
    return command


def _add(command: object, options: list[Any]) -> None:
    for one in getattr(command, "commands", {}).values():
        _add(one, options)
    params: list[Any] = getattr(command, "params", [])
    if any(option.name == "server" for option in params):
        params += options


def _app() -> typer.Typer:
    """A command that is never run: typer creates its options."""
    app = typer.Typer(add_completion=False)

    def keep_token_file(value: str | None) -> None:
        Credentials.token_file = value or ""

    def keep_ca_file(value: str | None) -> None:
        Credentials.ca_file = value or ""

    @app.command()
    def _(
        token_file: Annotated[
            str | None,
            typer.Option(
                envvar="WEIR_TOKEN_FILE",
                callback=keep_token_file,
                help="A file with the token; else WEIR_TOKEN, else that of this user's server here.",
            ),
        ] = None,
        ca_file: Annotated[
            str | None,
            typer.Option(envvar="WEIR_CA_FILE", callback=keep_ca_file, help="Who signs the server's certificate."),
        ] = None,
    ) -> None: ...

    return app


def client_of(server: str) -> "Client":
    """Return the client of ``--server``; a context manager.

    :raises ConfigError: a file with a token cannot be read, or a variable is misspelt.
    """
    from capture.api.client import Client
    from capture.api.credentials import unknown_variables, unprotected
    from capture.security.exposure import exposed

    token = _given_token()
    client = Client(server, token=token, ca_file=Credentials.ca_file)
    problem = unprotected(server, token=token)
    for warning in (problem, *exposed([Path(Credentials.token_file)] if Credentials.token_file else [])):
        if warning:
            console.print_warning(warning)
    for name in unknown_variables():
        console.print_warning(f"the variable {name} has no meaning and is ignored; unset it if it was meant for weir")
    return client


def _given_token() -> str | None:
    """None: it is found by the server's address."""
    if not Credentials.token_file:
        return None
    try:
        token = read_bounded(Path(Credentials.token_file)).decode().strip()
        why = "" if token else "it is empty"
    except (OSError, ValueError) as error:
        token, why = "", getattr(error, "strerror", None) or "it holds no text"
    if why:
        raise ConfigError(f"cannot read {Credentials.token_file} ({why}); give another --token-file")
    return token

"""Command options: the options that commands share, and the request that each makes to a server."""

from typing import TYPE_CHECKING, Annotated

import typer

from capture.address import DEFAULT_ADDRESS
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


def client_of(server: str) -> "Client":
    """The client of ``--server``; a context manager."""
    from capture.api.client import Client

    return Client(server)

"""``weir subscription …``: the readers of a changefeed's changes, for which its log is kept."""

from typing import Annotated

import typer

from capture.cli.options import DEFAULT_SERVER, Id, Json, Server, client_of
from capture.errors import SubscriptionNotFoundError
from capture.terminal import console

subscription_app = typer.Typer(no_args_is_help=True, help="Readers of changes, for which the change log is kept.")


@subscription_app.command("list")
def list_(changefeed_id: Id, server: Server = DEFAULT_SERVER, json: Json = False) -> None:
    """The readers of a changefeed's changes, and how far each is."""
    with client_of(server) as client:
        found = client.subscriptions(changefeed_id)
    if json:
        return console.print_json(found)
    rows = [(one.name, one.table, one.ts, console.when(one.expires_at)) for one in found]
    console.print_table(("name", "table", "ts", "kept until"), rows)
    return None


@subscription_app.command("close")
def close(
    changefeed_id: Id,
    name: Annotated[str, typer.Option(help="As `weir subscription list` shows it.")],
    server: Server = DEFAULT_SERVER,
    json: Json = False,
) -> None:
    """Forget a reader's position: the log is not kept for it, and the reader is refused."""
    with client_of(server) as client:
        known = {one.name: one for one in client.subscriptions(changefeed_id)}
        if name not in known:
            shown = ", ".join(sorted(known)[:20]) or "none"
            raise SubscriptionNotFoundError(f"changefeed {changefeed_id} has no subscription {name}; it has {shown}")
        client.close_subscription(changefeed_id, name)
    if json:
        return console.print_json(known[name])
    return console.print_line(f"subscription {name} of {known[name].table} is closed; it was at {known[name].ts}")

"""``weir changefeed …``: create, watch, change and stop changefeeds."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Annotated

import typer

from capture.api import port as views
from capture.cli.options import DEFAULT_SERVER, Id, Json, Server, client_of
from capture.cli.prompts import given_uri, secret_line
from capture.errors import ConfigError
from capture.security.secrets import with_password
from capture.terminal import console
from reactor.ids import MAX_TS
from reactor.records.changefeed import ChangefeedConfig, FeedState, Mode, SinkMode
from reactor.views import ChangefeedView

if TYPE_CHECKING:
    from capture.api.client import Client

AskPassword = Annotated[
    bool, typer.Option("--ask-password", help="Ask for the password of the source's user, or read it from a pipe.")
]
_STANDING = (FeedState.STOPPED, FeedState.FAILED, FeedState.FINISHED)
_POLL_S = 0.5

changefeed_app = typer.Typer(no_args_is_help=True, help="Create, watch, change and stop changefeeds.")


@changefeed_app.command("create")
def create(
    changefeed_id: Id,
    source_uri: Annotated[
        str,
        typer.Option(
            help="Such as postgresql://user@host:port/database?password=env:NAME, or - to read it from standard input; "
            "`weir sources` lists all."
        ),
    ],
    sink_uri: Annotated[str, typer.Option(help="Such as delta+file:///directory, or -; `weir sinks` lists all.")],
    ask_password: AskPassword = False,
    mode: Annotated[
        Mode,
        typer.Option(
            help="all: snapshot, then the log; full: snapshot only; incremental: log only; dump: rows to load later."
        ),
    ] = Mode.ALL,
    sink_mode: Annotated[
        SinkMode,
        typer.Option(
            help="upsert: tables equal to the source's; changelog: every change is a row; history: every version of a "
            "row, with when it began and ended."
        ),
    ] = SinkMode.UPSERT,
    config: Annotated[
        Path | None, typer.Option(help="A TOML file with filter rules and settings; see docs/operating.md.")
    ] = None,
    start_ts: Annotated[
        int | None, typer.Option(min=0, max=MAX_TS, help="The Ts to start after, in mode incremental; default: now.")
    ] = None,
    target_ts: Annotated[
        int | None, typer.Option(min=0, max=MAX_TS, help="The Ts to finish at; default: never.")
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Check everything, create nothing.")] = False,
    server: Server = DEFAULT_SERVER,
    json: Json = False,
) -> None:
    """Create a changefeed; source and sink are checked first."""
    from capture.api.inputs import model_of

    spec = model_of(
        views.ChangefeedSpec,
        changefeed_id=changefeed_id,
        source_uri=_source(source_uri, ask_password=ask_password),
        sink_uri=given_uri(sink_uri, "sink URI"),
        mode=mode,
        sink_mode=sink_mode,
        start_ts=start_ts,
        target_ts=target_ts,
        config=_changefeed_config(config),
    )
    with client_of(server) as client, console.waiting("checking source and sink"):
        view = client.check(spec) if check else client.create(spec)
    for notice in view.notices:
        console.print_warning(notice)
    outcome = "can be created" if check else "is created"
    _show(view, json=json, text=f"changefeed {view.id} {outcome}: {view.source} → {view.sink}")


@changefeed_app.command("list")
def list_(server: Server = DEFAULT_SERVER, json: Json = False) -> None:
    """All changefeeds with their state and lag."""
    with client_of(server) as client:
        feeds = client.list(tables=False)
    if json:
        return console.print_json(feeds)
    rows = [(feed.id, feed.state, feed.checkpoint_ts, console.when(feed.checkpoint_time), _lag(feed)) for feed in feeds]
    console.print_table(("id", "state", "checkpoint", "commit time", "lag"), rows)
    return None


@changefeed_app.command("query")
def query(changefeed_id: Id, server: Server = DEFAULT_SERVER, json: Json = False) -> None:
    """One changefeed: how far it is, and what holds it up."""
    with client_of(server) as client:
        view = client.query(changefeed_id, tables=json)
    _show(view, json=json)


@changefeed_app.command("sync-points")
def sync_points(changefeed_id: Id, server: Server = DEFAULT_SERVER, json: Json = False) -> None:
    """The Ts at which all tables of the sink were at once, oldest first."""
    with client_of(server) as client:
        points = client.sync_points(changefeed_id)
    if json:
        return console.print_json(points)
    rows = [(point.ts, console.when(point.time), len(point.versions), ", ".join(point.left_out)) for point in points]
    console.print_table(("ts", "recorded", "tables", "left out"), rows)
    return None


@changefeed_app.command("pause")
def pause(changefeed_id: Id, server: Server = DEFAULT_SERVER, json: Json = False) -> None:
    """Stop a changefeed and keep its position."""
    with client_of(server) as client, console.waiting("pausing"):
        view = client.pause(changefeed_id)
    _show(view, json=json, text=f"changefeed {view.id} is {view.state} at {view.checkpoint_ts}")


@changefeed_app.command("resume")
def resume(
    changefeed_id: Id,
    overwrite_checkpoint_ts: Annotated[
        int | None, typer.Option(min=0, max=MAX_TS, help="Continue from this Ts instead.")
    ] = None,
    resync: Annotated[
        bool, typer.Option("--resync", help="Its position is lost: take a new one, copy every table again in place.")
    ] = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="Return when every table is copied, with 1 if one is held.")
    ] = False,
    server: Server = DEFAULT_SERVER,
    json: Json = False,
) -> int:
    """Start a stopped or failed changefeed again; of one that runs, try its held tables again at once."""
    with client_of(server) as client:
        with console.waiting("resuming"):
            view = client.resume(changefeed_id, overwrite_checkpoint_ts=overwrite_checkpoint_ts, resync=resync)
        view = _copied(client, view) if wait else view
    _show(view, json=json, text=f"changefeed {view.id} is {view.state} from {view.checkpoint_ts}")
    return 1 if wait and (view.held or view.state in _STANDING) else 0


def _copied(client: "Client", view: ChangefeedView) -> ChangefeedView:
    """Wait until no table is being copied any more, or the changefeed has stopped."""
    with console.waiting("copying"):
        while (view.lost_tables or view.resyncs) and view.state not in _STANDING:
            Event().wait(_POLL_S)
            view = client.query(view.id, tables=False)
    return view


@changefeed_app.command("update")
def update(
    changefeed_id: Id,
    source_uri: Annotated[str | None, typer.Option(help="The same server by another address or user.")] = None,
    sink_uri: Annotated[str | None, typer.Option(help="Where the sink's tables are now.")] = None,
    ask_password: AskPassword = False,
    mode: Annotated[
        Mode | None, typer.Option(help="The mode in which a finished one continues: load-sync loads its dump.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="The whole configuration, in TOML.")] = None,
    target_ts: Annotated[int | None, typer.Option(min=0, max=MAX_TS, help="The Ts to finish at; 0: never.")] = None,
    resync: Annotated[
        bool, typer.Option("--resync", help="Copy tables again whose rows or columns are filtered otherwise.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would change.")] = False,
    restart: Annotated[bool, typer.Option("--restart", help="Pause a running one, change it, resume it.")] = False,
    server: Server = DEFAULT_SERVER,
    json: Json = False,
) -> None:
    """Change a stopped or failed changefeed, the filter also of one that runs, and show the difference.

    Tables that another filter takes in are copied with the rows that they have. One that has finished a dump, or a full
    copy, continues in another --mode.
    """
    if ask_password and source_uri is None:
        raise ConfigError("--ask-password is about --source-uri; give that too")
    from capture.api.inputs import model_of

    asked = model_of(
        views.ChangefeedUpdate,
        source_uri=None if source_uri is None else _source(source_uri, ask_password=ask_password),
        sink_uri=None if sink_uri is None else given_uri(sink_uri, "sink URI"),
        mode=mode,
        target_ts=target_ts,
        config=None if config is None else _changefeed_config(config),
        resync=resync,
        dry_run=dry_run,
    )
    with (
        client_of(server) as client,
        console.waiting("checking source and sink"),
        _paused(client, changefeed_id, wanted=restart) as goes_on,
    ):
        done = client.update(changefeed_id, asked)
    if json:
        return console.print_json(done)
    if not done.changes:
        return console.print_line(f"changefeed {changefeed_id} has these settings already")
    runs = goes_on or done.changefeed.state not in _STANDING
    outcome = "would change" if done.dry_run else "is changed" if runs else "is changed; resume it"
    title = f"changefeed {changefeed_id} {outcome}"
    rows = [(change.field, change.before, change.after) for change in done.changes]
    console.print_table(("field", "before", "after"), rows, title=title)
    if done.outdated:
        cure = (
            "are copied again" if resync else "have it from now on; `weir table resync` makes their earlier rows so too"
        )
        console.print_line(f"rows and columns are filtered otherwise, and {cure}: {', '.join(done.outdated)}")
    return None


@contextmanager
def _paused(client: "Client", changefeed_id: str, *, wanted: bool) -> Iterator[bool]:
    """Yield whether it was running; then it is resumed afterwards in any case."""
    runs = wanted and client.query(changefeed_id, tables=False).state not in _STANDING
    if runs:
        client.pause(changefeed_id)
    try:
        yield runs
    finally:
        if runs:
            client.resume(changefeed_id)


@changefeed_app.command("rewind")
def rewind(
    changefeed_id: Id,
    ts: Annotated[int, typer.Option(min=0, max=MAX_TS, help="The Ts to continue from.")],
    server: Server = DEFAULT_SERVER,
    json: Json = False,
) -> None:
    """Set a stopped changefeed back, as far as its log reaches, for a sink that was itself set back."""
    with client_of(server) as client, console.waiting("asking the sink what it records"):
        done = client.rewind(changefeed_id, ts)
    if json:
        return console.print_json(done)
    title = f"changefeed {changefeed_id} is at {done.changefeed.checkpoint_ts}; resume it"
    rows = [(table.table, table.ts) for table in done.tables]
    console.print_table(("table", "written again from"), rows, title=title)
    return None


@changefeed_app.command("move-table")
def move_table(
    changefeed_id: Id,
    table: Annotated[str, typer.Option(help="schema.name")],
    capture: Annotated[str, typer.Option(help="The id of the capture that gets it.")],
    server: Server = DEFAULT_SERVER,
    json: Json = False,
) -> None:
    """Give a table to a capture; `weir tables` shows when it is there."""
    with client_of(server) as client:
        moving = client.move_table(changefeed_id, table, capture)
    if json:
        return console.print_json(moving)
    return console.print_line(f"{table}: {moving.spans} table spans on their way to capture {capture}")


@changefeed_app.command("split")
def split(
    changefeed_id: Id,
    table: Annotated[str, typer.Option(help="schema.name")],
    spans: Annotated[
        int | None, typer.Option(min=1, help="How many; default: as many as the captures share well.")
    ] = None,
    server: Server = DEFAULT_SERVER,
    json: Json = False,
) -> None:
    """Let several captures write a table, each its part of the keys; `weir tables` shows when they do."""
    with client_of(server) as client:
        cut = client.split(changefeed_id, table, spans)
    _show_cut(cut, json=json)


@changefeed_app.command("join")
def join(
    changefeed_id: Id,
    table: Annotated[str, typer.Option(help="schema.name")],
    server: Server = DEFAULT_SERVER,
    json: Json = False,
) -> None:
    """Undo `split`: one capture writes the table again."""
    with client_of(server) as client:
        cut = client.split(changefeed_id, table, 1)
    _show_cut(cut, json=json)


@changefeed_app.command("rebalance")
def rebalance(changefeed_id: Id, server: Server = DEFAULT_SERVER, json: Json = False) -> None:
    """Even out a changefeed's table spans over the captures now, instead of within a minute."""
    with client_of(server) as client:
        client.rebalance(changefeed_id)
    if json:
        return console.print_json({"id": changefeed_id, "rebalancing": True})
    return console.print_line(f"changefeed {changefeed_id} is being rebalanced")


@changefeed_app.command("move-owner")
def move_owner(
    changefeed_id: Id,
    capture: Annotated[str, typer.Option(help="As `weir capture list` shows it.")],
    server: Server = DEFAULT_SERVER,
    json: Json = False,
) -> None:
    """Let another capture own a changefeed; its tables stay where they are written."""
    with client_of(server) as client:
        moving = client.move_owner(changefeed_id, capture)
    if json:
        return console.print_json(moving)
    return console.print_line(f"changefeed {changefeed_id} moves to capture {moving.capture}")


@changefeed_app.command("remove")
def remove(changefeed_id: Id, server: Server = DEFAULT_SERVER, json: Json = False) -> None:
    """Forget a changefeed and its slot; the sink's tables stay."""
    with client_of(server) as client, console.waiting("removing"):
        client.remove(changefeed_id)
    if json:
        console.print_json({"id": changefeed_id, "removed": True})
    else:
        console.print_line(f"changefeed {changefeed_id} is removed")


def _source(uri: str, *, ask_password: bool) -> str:
    """:raises ConfigError: standard input is empty, or the URI has a password already."""
    given = given_uri(uri, "source URI")
    return with_password(given, secret_line("password of the source's user")) if ask_password else given


def _changefeed_config(file: Path | None) -> ChangefeedConfig:
    from capture.config import load_changefeed_config
    from capture.security.exposure import exposed_settings

    config = load_changefeed_config(file) if file is not None else ChangefeedConfig()
    for problem in exposed_settings(file):
        console.print_warning(problem)
    return config


def _show(view: ChangefeedView | views.CheckView, *, json: bool, text: str = "") -> None:
    if json:
        console.print_json(view)
    elif text:
        console.print_line(text)
    else:
        console.print_fields(view)


def _show_cut(cut: views.CutView, *, json: bool) -> None:
    if json:
        console.print_json(cut)
    elif cut.spans == cut.wanted:
        console.print_line(f"{cut.table} has {cut.spans} table spans already")
    else:
        console.print_line(f"{cut.table}: {cut.spans} table spans become {cut.wanted}")


def _lag(feed: ChangefeedView) -> str:
    lag = "" if feed.lag_seconds is None else f"{feed.lag_seconds:.1f} s"
    return f"{lag} ({feed.blocked_by})" if feed.blocked_by else lag

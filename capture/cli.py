"""The command line: ``weir …``, the same as ``python -m capture …``.

Each command reads its options, asks one question of a server (``capture.client``) or runs one thing, and prints. With
``--json`` exactly one JSON document goes to stdout. Exit codes: 0 only if it did what was asked, 2 for a wrong command
line, 130 for Ctrl-C, 1 for everything else. Heavy imports (Spark, Arrow, HTTP) happen in the commands that need them.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer.exceptions import TyperException

from capture import cluster as views
from capture import console
from reactor.ids import parse_changefeed_id
from reactor.records import ChangefeedConfig, Mode, SinkMode

if TYPE_CHECKING:
    from capture.client import Client

app = typer.Typer(
    name="weir",
    help="Change data capture from databases into lakehouse tables.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
changefeed_app = typer.Typer(no_args_is_help=True, help="Create, watch and stop changefeeds.")
capture_app = typer.Typer(no_args_is_help=True, help="The members of a cluster.")
log_app = typer.Typer(no_args_is_help=True, help="Look into the change log.")
app.add_typer(changefeed_app, name="changefeed")
app.add_typer(capture_app, name="capture")
app.add_typer(log_app, name="log")

Server = Annotated[str, typer.Option("--server", envvar="WEIR_SERVER", help="URL of any capture's HTTP API.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Id = Annotated[
    str,
    typer.Option("--changefeed-id", "-c", help="Letters and digits, joined by hyphens.", callback=parse_changefeed_id),
]
_SERVER = f"http://{views.DEFAULT_ADDRESS}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code. Errors become one line on stderr."""
    # We fork only to exec; gRPC's handlers for more than that would print a line each time.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
    command = typer.main.get_command(app)
    try:
        code = command.main(args=arguments, prog_name="weir", standalone_mode=False)
    except TyperException as error:
        sys.stderr.write(f"error: {error.format_message().rstrip('.')}; see --help\n")
        return error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except Exception as error:
        if console.is_debugging():
            raise
        if isinstance(console.root_of(error), KeyboardInterrupt):
            return 130
        console.print_error(error)
        return 1
    return code if isinstance(code, int) else 0


@app.command()
def version(json: Json = False) -> None:
    """Print the version."""
    from capture.version import installed_version

    if json:
        console.print_json({"version": installed_version()})
    else:
        console.print_line(f"weir {installed_version()}")


@app.command(hidden=True)
def java(json: Json = False) -> None:
    """Print the Java that Spark will use, or what is wrong with it."""
    from agent.java import find_java

    path = str(find_java())
    if json:
        console.print_json({"java": path})
    else:
        console.print_line(path)


@app.command()
def server(
    config: Annotated[
        Path | None, typer.Option(help="Settings in TOML; flags and WEIR_* variables win over it.")
    ] = None,
    etcd: Annotated[str | None, typer.Option(help="URL[,URL] of etcd; without it an embedded one is started.")] = None,
    addr: Annotated[str | None, typer.Option(help="host:port of the HTTP API.")] = None,
    advertise_addr: Annotated[str | None, typer.Option(help="What others call instead of --addr.")] = None,
    peer_addr: Annotated[str | None, typer.Option(help="host:port for other captures.")] = None,
    advertise_peer_addr: Annotated[str | None, typer.Option(help="What others call instead of --peer-addr.")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Where this capture keeps its own files.")] = None,
    log_storage: Annotated[str | None, typer.Option(help="URI of the change log, the same for all captures.")] = None,
    spark_master: Annotated[str | None, typer.Option(help="local[*], spark://…, yarn, k8s://…, sc://…")] = None,
    cluster_id: Annotated[str | None, typer.Option(help="Captures with the same id and etcd are one cluster.")] = None,
    secret_key_file: Annotated[Path | None, typer.Option(help="Key for secrets in etcd, the same for all.")] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error.")] = None,
    log_file: Annotated[Path | None, typer.Option(help="Log there instead of to stderr.")] = None,
) -> int:
    """Run one capture until SIGTERM or Ctrl-C."""
    import anyio

    from capture import logs, memory
    from capture.config import load_server_settings

    memory.give_back_early()
    from capture.server import serve

    settings = load_server_settings(
        config,
        etcd=etcd,
        addr=addr,
        advertise_addr=advertise_addr,
        peer_addr=peer_addr,
        advertise_peer_addr=advertise_peer_addr,
        data_dir=data_dir,
        log_storage=log_storage,
        spark_master=spark_master,
        cluster_id=cluster_id,
        secret_key_file=secret_key_file,
        log_level=log_level,
        log_file=log_file,
    )
    logs.configure(settings.log_level, file=settings.log_file)
    from capture.capture import Capture  # takes a second: after what is quickly said

    return anyio.run(serve, settings, Capture)


@app.command()
def quickstart(
    dir: Annotated[Path, typer.Option(help="Everything goes below it; a second run goes on from there.")] = Path(
        "weir-data"
    ),
    seconds: Annotated[int, typer.Option(min=1, help="How long pgbench writes.")] = 60,
    scale: Annotated[int, typer.Option(min=1, help="pgbench's scale: 100,000 accounts each.")] = 10,
    rate: Annotated[int, typer.Option(min=0, help="pgbench's transactions per second; 0: as fast as it goes.")] = 500,
    json: Json = False,
) -> int:
    """See it work: an embedded PostgreSQL under load, replicated into Delta tables, compared at the end."""
    from capture import memory

    memory.give_back_early()
    from capture.capture import Capture
    from capture.quickstart import run

    return run(dir, Capture, seconds=seconds, scale=scale, rate=rate, json=json)


@changefeed_app.command("create")
def create(
    changefeed_id: Id,
    source_uri: Annotated[
        str, typer.Option(help="postgresql://user:password@host:port/database; or ?password=env:NAME")
    ],
    sink_uri: Annotated[str, typer.Option(help="delta+file:///directory")],
    mode: Annotated[Mode, typer.Option(help="Which of dump, load and sync to do.")] = Mode.ALL,
    sink_mode: Annotated[
        SinkMode, typer.Option(help="Tables equal to the source's, or every change.")
    ] = SinkMode.UPSERT,
    config: Annotated[Path | None, typer.Option(help="Filter and more, in TOML.")] = None,
    start_ts: Annotated[int | None, typer.Option(min=0, help="Where to start; default: now.")] = None,
    target_ts: Annotated[int | None, typer.Option(min=0, help="Where to stop; default: never.")] = None,
    server: Server = _SERVER,
    json: Json = False,
) -> None:
    """Create a changefeed; source and sink are checked first."""
    spec = views.ChangefeedSpec(
        changefeed_id=changefeed_id,
        source_uri=source_uri,
        sink_uri=sink_uri,
        mode=mode,
        sink_mode=sink_mode,
        start_ts=start_ts,
        target_ts=target_ts,
        config=_changefeed_config(config),
    )
    with _client(server) as client, console.waiting("checking source and sink"):
        view = client.create(spec)
    _show(view, json=json, text=f"changefeed {view.id} is created: {view.source} → {view.sink}")


@changefeed_app.command("list")
def list_(server: Server = _SERVER, json: Json = False) -> None:
    """All changefeeds with their state and lag."""
    with _client(server) as client:
        feeds = client.list()
    if json:
        return console.print_json(feeds)
    rows = [(feed.id, feed.state, feed.checkpoint_ts, console.when(feed.checkpoint_time), _lag(feed)) for feed in feeds]
    console.print_table(("id", "state", "checkpoint", "commit time", "lag"), rows)
    return None


@changefeed_app.command("query")
def query(changefeed_id: Id, server: Server = _SERVER, json: Json = False) -> None:
    """One changefeed: how far it is, and what holds it up."""
    with _client(server) as client:
        view = client.query(changefeed_id)
    _show(view, json=json)


@changefeed_app.command("pause")
def pause(changefeed_id: Id, server: Server = _SERVER, json: Json = False) -> None:
    """Stop a changefeed and keep its position."""
    with _client(server) as client, console.waiting("pausing"):
        view = client.pause(changefeed_id)
    _show(view, json=json, text=f"changefeed {view.id} is {view.state} at {view.checkpoint_ts}")


@changefeed_app.command("resume")
def resume(
    changefeed_id: Id,
    overwrite_checkpoint_ts: Annotated[int | None, typer.Option(min=0, help="Go on from there instead.")] = None,
    server: Server = _SERVER,
    json: Json = False,
) -> None:
    """Start a stopped or failed changefeed again."""
    with _client(server) as client, console.waiting("resuming"):
        view = client.resume(changefeed_id, overwrite_checkpoint_ts=overwrite_checkpoint_ts)
    _show(view, json=json, text=f"changefeed {view.id} is {view.state} from {view.checkpoint_ts}")


@changefeed_app.command("remove")
def remove(changefeed_id: Id, server: Server = _SERVER, json: Json = False) -> None:
    """Forget a changefeed and its slot; the sink's tables stay."""
    with _client(server) as client, console.waiting("removing"):
        client.remove(changefeed_id)
    if json:
        console.print_json({"id": changefeed_id, "removed": True})
    else:
        console.print_line(f"changefeed {changefeed_id} is removed")


@capture_app.command("list")
def captures(server: Server = _SERVER, json: Json = False) -> None:
    """The captures of the cluster, and what runs on each."""
    with _client(server) as client:
        members = client.captures()
    if json:
        return console.print_json(members)
    rows = [(member.id, member.address, member.is_owner, member.spans, member.workers) for member in members]
    console.print_table(("id", "address", "owner", "spans", "workers"), rows)
    return None


@app.command()
def tables(changefeed_id: Id, server: Server = _SERVER, json: Json = False) -> None:
    """The tables of a changefeed, and which capture has them."""
    with _client(server) as client:
        found = client.tables(changefeed_id)
    if json:
        return console.print_json(found)
    rows = [
        (
            table.table,
            ", ".join(table.key),
            table.checkpoint_ts,
            tuple(f"{s.span} {s.capture} {s.state}" for s in table.spans),
        )
        for table in found
    ]
    console.print_table(("table", "key", "checkpoint", "spans"), rows)
    return None


@app.command()
def diff(changefeed_id: Id, server: Server = _SERVER, json: Json = False) -> int:
    """Compare source and sink at one Ts, table by table; exit 0 only if they are equal."""
    with _client(server) as client, console.waiting("comparing source and sink"):
        found = client.diff(changefeed_id)
    equal = all(table.equal for table in found)
    if json:
        console.print_json({"equal": equal, "tables": found})
    else:
        rows = [(t.table, t.equal, t.source_rows, t.sink_rows, t.differences) for t in found]
        console.print_table(("table", "equal", "source rows", "sink rows", "first differences"), rows)
    return 0 if equal else 1


@log_app.command("inspect")
def inspect(
    file: Annotated[str, typer.Argument(help="A segment of the change log: path or URI.")],
    limit: Annotated[int, typer.Option(min=0, help="Decoded changes to show of each batch.")] = 5,
    json: Json = False,
) -> None:
    """Decode a segment of the change log."""
    from capture.inspection import inspect_segment

    batches = inspect_segment(file, limit=limit)
    if json:
        return console.print_json({"file": file, "batches": batches})
    for batch in batches:
        title = f"{batch.table} ({batch.changes:,} changes, Ts {batch.first_ts} to {batch.last_ts})"
        rows = [(row.commit_ts, row.operation, row.before, row.after) for row in batch.rows]
        console.print_table(("commit ts", "operation", "before", "after"), rows, title=title)
    return None


def _client(server: str) -> "Client":
    from capture.client import Client

    return Client(server)


def _changefeed_config(file: Path | None) -> ChangefeedConfig:
    from capture.config import load_changefeed_config

    return load_changefeed_config(file) if file is not None else ChangefeedConfig()


def _show(view: views.ChangefeedView, *, json: bool, text: str = "") -> None:
    if json:
        console.print_json(view)
    elif text:
        console.print_line(text)
    else:
        console.print_fields(view)


def _lag(feed: views.ChangefeedView) -> str:
    lag = "" if feed.lag_seconds is None else f"{feed.lag_seconds:.1f} s"
    return f"{lag} ({feed.blocked_by})" if feed.blocked_by else lag

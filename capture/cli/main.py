"""The command line: ``weir …``, the same as ``python -m capture …``.

Each command parses its options, sends one request to a server (``capture.api.client``) or runs one thing, and prints
the result. With ``--json`` exactly one JSON document goes to stdout. Exit codes: 0 only on success, 2 for a wrong
command line, 130 for Ctrl-C, 141 for a closed stdout, 1 for everything else. Heavy imports (Spark, Arrow, HTTP) happen
in the commands that need them.
"""

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from typer.exceptions import TyperException

from capture.cli.access import show_audit, token_app
from capture.cli.certs import certs_app
from capture.cli.changefeed import changefeed_app
from capture.cli.kernels import kernels_app
from capture.cli.members import capture_app, owner_app
from capture.cli.options import DEFAULT_SERVER, WHERE_HELP, Id, Json, Rate, Server, client_of, command_of
from capture.cli.secrets import secret_app
from capture.cli.store import store_app
from capture.cli.subscriptions import subscription_app
from capture.cli.tables import show_tables, table_app
from capture.errors import JobRefusedError
from capture.terminal import console
from reactor.views import TableView

if TYPE_CHECKING:
    from capture.api.client import Client

app = typer.Typer(
    name="weir",
    help="Change data capture from databases into lakehouse tables.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
#: of a statement in a table
log_app = typer.Typer(no_args_is_help=True, help="Look into the change log.")
app.add_typer(changefeed_app, name="changefeed")
app.add_typer(table_app, name="table")
app.add_typer(subscription_app, name="subscription")
app.add_typer(capture_app, name="capture")
app.add_typer(owner_app, name="owner")
app.add_typer(token_app, name="token")
app.command("audit")(show_audit)
app.add_typer(certs_app, name="certs")
app.add_typer(secret_app, name="secret")
app.add_typer(store_app, name="store")
app.add_typer(log_app, name="log")
app.add_typer(kernels_app, name="kernels")


def _print_version(value: bool) -> None:
    if value:
        version()
        raise typer.Exit


@app.callback()
def _options(
    _: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Change data capture from databases into lakehouse tables."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return the exit code. Errors become one line on stderr."""
    command = command_of(app)
    if problem := _undecoded(sys.argv[1:] if arguments is None else arguments):
        sys.stderr.write(f"error: {problem}\n")
        return 2
    try:
        code = command.main(args=arguments, prog_name="weir", standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:
        return _leave_pipe()
    except TyperException as error:
        if text := _usage_error(error):  # empty if the command was given alone: its help is on stdout
            sys.stderr.write(f"error: {text}; see --help\n")
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


def _undecoded(arguments: Sequence[str]) -> str:
    """Return what is wrong with an argument that the shell passed on as bytes in another encoding; empty: nothing."""
    for number, text in enumerate(arguments, 1):
        if any("\ud800" <= character <= "\udfff" for character in text):
            return f"argument {number} is not in this terminal's encoding; write it in UTF-8"
    return ""


def _usage_error(error: TyperException) -> str:
    """Return what is wrong with a command line, in one line that begins in lower case."""
    text = console.one_line(error.format_message()).rstrip(".").replace("Value error, ", "")
    return text[:1].lower() + text[1:]


def _leave_pipe() -> int:
    """Exit silently when stdout is closed (``| head``), as a shell's own tools do."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 128 + signal.SIGPIPE


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
    from agent.spark.java import find_java

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
    store: Annotated[
        str | None, typer.Option(help="Instead of etcd: sqlite, sqlite:///path, postgresql://…, mysql://…")
    ] = None,
    addr: Annotated[str | None, typer.Option(help="host:port of the HTTP API.")] = None,
    advertise_addr: Annotated[str | None, typer.Option(help="host:port that others use instead of --addr.")] = None,
    peer_addr: Annotated[str | None, typer.Option(help="host:port for other captures.")] = None,
    advertise_peer_addr: Annotated[
        str | None, typer.Option(help="host:port that others use instead of --peer-addr.")
    ] = None,
    data_dir: Annotated[
        str | None, typer.Option(metavar="PATH", help="Where this capture keeps its own files.")
    ] = None,
    log_storage: Annotated[str | None, typer.Option(help="URI of the change log, the same for all captures.")] = None,
    spark_master: Annotated[str | None, typer.Option(help="local[*], spark://…, yarn, k8s://…, sc://…")] = None,
    cluster_id: Annotated[str | None, typer.Option(help="Captures with the same id and store are one cluster.")] = None,
    secret_key_file: Annotated[
        str | None, typer.Option(metavar="PATH", help="Key for secrets in etcd, the same for all.")
    ] = None,
    tls_ca_file: Annotated[
        str | None, typer.Option(metavar="PATH", help="The cluster's certificate authority, in PEM.")
    ] = None,
    tls_cert_file: Annotated[
        str | None, typer.Option(metavar="PATH", help="This node's certificate; see `weir certs`.")
    ] = None,
    tls_key_file: Annotated[str | None, typer.Option(metavar="PATH", help="Its key.")] = None,
    insecure: Annotated[
        bool | None, typer.Option("--insecure", help="Listen for other machines without TLS.", show_default=False)
    ] = None,
    insecure_spark: Annotated[
        bool | None,
        typer.Option("--insecure-spark", help="Use a remote Spark cluster without encryption.", show_default=False),
    ] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error.")] = None,
    log_file: Annotated[
        str | None, typer.Option(metavar="PATH", help="Write the log to this file instead of stderr.")
    ] = None,
) -> int:
    """Run one capture until SIGTERM or Ctrl-C."""
    import structlog

    from agent.spark import memory
    from capture import gc_settings, logs
    from capture.config import load_server_settings
    from capture.directory import restricted
    from capture.security.exposure import exposed_settings
    from reactor import loop

    memory.give_back_early()
    with gc_settings.paused():
        from capture.server import leave_threads_behind, serve

    settings = load_server_settings(
        config,
        etcd=etcd,
        store=store,
        addr=addr,
        advertise_addr=advertise_addr,
        peer_addr=peer_addr,
        advertise_peer_addr=advertise_peer_addr,
        data_dir=data_dir,
        log_storage=log_storage,
        spark_master=spark_master,
        cluster_id=cluster_id,
        secret_key_file=secret_key_file,
        tls_ca_file=tls_ca_file,
        tls_cert_file=tls_cert_file,
        tls_key_file=tls_key_file,
        insecure=insecure,
        insecure_spark=insecure_spark,
        log_level=log_level,
        log_file=log_file,
    )
    with restricted(settings.data_dir, settings.umask):
        logs.configure(settings.log_level, file=settings.log_file)
        for problem in exposed_settings(config):
            structlog.get_logger().warning("a secret is open to others", cause=problem)
        with gc_settings.paused():
            from capture.capture import Capture  # takes a second: after what is quickly said

        gc_settings.collect_seldom()
        code = loop.run(serve, settings, Capture)
    leave_threads_behind(code)
    return code


@app.command()
def quickstart(
    source: Annotated[Literal["postgres", "mariadb"], typer.Option(help="Whose tables are replicated.")] = "postgres",
    dir: Annotated[
        Path | None,
        typer.Option(
            help="Everything goes below it; a second run continues from there.",
            show_default="weir-data, weir-data-mariadb, …-iceberg, …-sqlite",
        ),
    ] = None,
    seconds: Annotated[int, typer.Option(min=1, help="How long the load writes.")] = 60,
    scale: Annotated[int, typer.Option(min=1, help="How large the tables are: 100,000 rows each.")] = 10,
    rate: Annotated[int, typer.Option(min=0, help="Transactions per second; 0: as fast as it goes.")] = 500,
    spark: Annotated[
        Literal["local", "standalone"],
        typer.Option(help="Where Spark runs: in the capture, or on a cluster with two workers."),
    ] = "local",
    storage: Annotated[
        Literal["directory", "s3"], typer.Option(help="Where log and tables lie: in directories, or on an S3 server.")
    ] = "directory",
    format: Annotated[Literal["delta", "iceberg"], typer.Option(help="The tables' format.")] = "delta",
    store: Annotated[
        Literal["etcd", "sqlite", "postgresql"], typer.Option(help="Where the cluster keeps its state.")
    ] = "etcd",
    json: Json = False,
) -> int:
    """See it work: an embedded database under load, replicated into lakehouse tables, compared at the end."""
    from agent.spark import memory
    from capture import gc_settings

    memory.give_back_early()
    with gc_settings.paused():
        from capture.capture import Capture
        from capture.quickstart.quickstart import run

    return run(
        source,
        dir,
        Capture,
        seconds=seconds,
        scale=scale,
        rate=rate,
        spark=spark,
        storage=storage,
        format=format,
        store=store,
        json=json,
    )


def _table(client: "Client", changefeed_id: str, name: str) -> TableView:
    """:raises JobRefusedError: the changefeed has no such table."""
    if (found := client.table(changefeed_id, name)) is None:
        raise JobRefusedError(f"changefeed {changefeed_id} has no table {name}; `weir tables` shows which it has")
    return found


@app.command()
def tables(
    changefeed_id: Id,
    table: Annotated[str, typer.Option(help="Only this one: schema.name.")] = "",
    server: Server = DEFAULT_SERVER,
    json: Json = False,
) -> None:
    """The tables of a changefeed, and which capture has them."""
    with client_of(server) as client:
        found = [_table(client, changefeed_id, table)] if table else client.tables(changefeed_id)
        if json:
            return console.print_json(found)
        left = () if table else client.query(changefeed_id, tables=False).left
    return show_tables(found, left)


@app.command()
def diff(
    changefeed_id: Id,
    sample: Annotated[float, typer.Option(min=0, max=1, help="Compare such a share of each table, at random.")] = 1.0,
    rows_per_second: Rate = None,
    resume: Annotated[bool, typer.Option("--continue", help="Continue a comparison that has not ended.")] = False,
    server: Server = DEFAULT_SERVER,
    json: Json = False,
) -> int:
    """Compare source and sink, table by table; exit 0 only if all are compared and equal."""
    from capture.api.inputs import model_of
    from capture.api.port import DiffAsked

    asked = model_of(DiffAsked, sample=sample, rows_per_second=rows_per_second, resume=resume)
    left = f"`weir diff -c {changefeed_id} --continue` compares what is left"
    with client_of(server) as client, console.waiting("comparing source and sink", interrupted=left):
        found = client.diff(changefeed_id, asked)
    equal, waiting = all(table.equal for table in found), sum(bool(table.waiting) for table in found)
    if json:
        console.print_json({"equal": equal, "waiting": waiting, "tables": found})
    else:
        rows = [
            (t.table, "waiting", "", "", t.waiting)
            if t.waiting
            else (t.table, t.equal, t.source_rows, t.sink_rows, t.differences)
            for t in found
        ]
        console.print_table(("table", "equal", "source rows", "sink rows", "first differences"), rows)
        for table in found:
            if table.share < 1:
                console.print_line(f"{table.table} compared in part: {table.share:.1%} of the ranges of its key")
            if table.by_rows:
                console.print_line(f"{table.table} compared by rows: {table.by_rows}")
        if waiting:
            console.print_line(f"{waiting} of {len(found)} tables not compared: waiting")
    return 0 if equal else 1


@app.command()
def repair(
    changefeed_id: Id,
    table: Annotated[list[str] | None, typer.Option(help="schema.name; none: all tables")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show the rows that differ.")] = False,
    parquet: Annotated[Path | None, typer.Option(help="Write what is shown to this Parquet file too.")] = None,
    where: Annotated[str, typer.Option(help=WHERE_HELP)] = "",
    rows_per_second: Rate = None,
    server: Server = DEFAULT_SERVER,
    json: Json = False,
) -> int:
    """Make the rows of the sink that differ equal to the source's; exit 0 only if nothing was left out."""
    from capture.cli import repairs

    return repairs.repair(
        changefeed_id,
        table or [],
        dry_run=dry_run,
        server=server,
        json=json,
        parquet=parquet,
        where=where,
        rows_per_second=rows_per_second,
    )


@app.command()
def sinks(json: Json = False) -> None:
    """The sinks that are installed here: guarantees, options of their URIs, and why one cannot be used."""
    from capture.cli import plugins

    plugins.show_sinks(json=json)


@app.command()
def sources(json: Json = False) -> None:
    """The sources that are installed here: their settings in a changefeed's file, and why one cannot be used."""
    from capture.cli import plugins

    plugins.show_sources(json=json)


@log_app.command("inspect")
def inspect(
    file: Annotated[str, typer.Argument(help="A segment of the change log (path or URI), or a binlog file.")],
    limit: Annotated[int, typer.Option(min=0, help="Decoded changes to show of each batch or event.")] = 5,
    skip: Annotated[int, typer.Option(min=0, help="Events of a binlog to pass over.")] = 0,
    count: Annotated[int | None, typer.Option(min=1, help="Events of a binlog to show; default: all.")] = None,
    json: Json = False,
) -> int:
    """Decode a segment of the change log, or a binlog file of MySQL or MariaDB; exit 0 only if all of it is read."""
    from capture.inspection import command as inspecting

    return inspecting.run(file, limit=limit, skip=skip, count=count, json=json)

"""Table commands: ``weir table …``, for one table of a running changefeed."""

from collections.abc import Sequence
from threading import Event
from typing import TYPE_CHECKING, Annotated

import typer

from capture.cli.options import DEFAULT_SERVER, WHERE_HELP, Id, Json, Rate, Server, client_of
from capture.errors import ConfigError, JobRefusedError
from capture.terminal import console
from reactor.ids import MAX_TS
from reactor.records.changefeed import FeedState

if TYPE_CHECKING:
    from capture.api.client import Client
    from capture.api.port import TableStepView
    from reactor.views import ChangefeedView, HeldView, LeftView, ResyncView, TableView

Table = Annotated[str, typer.Option(help="schema.name")]

table_app = typer.Typer(no_args_is_help=True, help="One table of a changefeed, while all others flow.")

_POLL_S = 0.5


@table_app.command("resync")
def resync(
    changefeed_id: Id,
    table: Table,
    cancel: Annotated[bool, typer.Option(help="Give a resync up: the table is left as it is, and continues.")] = False,
    where: Annotated[str, typer.Option(help=WHERE_HELP)] = "",
    rows_per_second: Rate = None,
    wait: Annotated[bool, typer.Option(help="Return when the table flows again, with 1 if it is held.")] = False,
    server: Server = DEFAULT_SERVER,
    json: Json = False,
) -> int:
    """Copy a table again from its source, and put the copy in its place, while all others flow; or only some rows."""
    if where:
        return _resync_rows(
            changefeed_id, table, where, cancel=cancel, rows_per_second=rows_per_second, server=server, json=json
        )
    with client_of(server) as client:
        if cancel:
            asked = client.cancel_resync(changefeed_id, table)
        else:
            asked = client.resync_table(changefeed_id, table, rows_per_second=rows_per_second)
        is_well = not wait or cancel or _joins(client, changefeed_id, table)
    if json:
        console.print_json(asked)
    elif cancel:
        console.print_line(f"{table} is left as it is")
    elif wait:
        console.print_line(f"{table} {'flows' if is_well else 'is held; `weir tables` shows why'}")
    else:
        console.print_line(f"{table} is copied again; `weir changefeed query -c {changefeed_id}` shows how far it is")
    return 0 if is_well else 1


def _resync_rows(
    changefeed_id: str,
    table: str,
    where: str,
    *,
    cancel: bool,
    rows_per_second: int | None,
    server: str,
    json: bool,
) -> int:
    """Make the rows that match equal to the source's; nothing continues afterwards."""
    from capture.cli import repairs

    if cancel:
        raise ConfigError("a resync of some rows ends with its command, and cannot be cancelled by another one")
    return repairs.repair(
        changefeed_id, [table], dry_run=False, server=server, json=json, where=where, rows_per_second=rows_per_second
    )


@table_app.command("add")
def add(
    changefeed_id: Id,
    table: Table,
    wait: Annotated[bool, typer.Option(help="Return when the table flows, with 1 if it is held.")] = False,
    server: Server = DEFAULT_SERVER,
    json: Json = False,
) -> int:
    """Take a table of the source into a changefeed's filter, with the rows that it has, while all others flow."""
    with client_of(server) as client:
        with console.waiting("looking at the source"):
            done = client.add_table(changefeed_id, table)
        is_well = not wait or _joins(client, changefeed_id, table)
    if json:
        console.print_json(done)
    elif wait:
        console.print_line(f"{table} {'flows' if is_well else 'is held; `weir tables` shows why'}")
    else:
        console.print_line(
            f"{table} joins, and is copied; `weir changefeed query -c {changefeed_id}` shows how far it is"
        )
    return 0 if is_well else 1


@table_app.command("remove")
def remove(changefeed_id: Id, table: Table, server: Server = DEFAULT_SERVER, json: Json = False) -> None:
    """Leave a table out of a changefeed's filter; the sink keeps what it has of it, and all others flow."""
    with client_of(server) as client, console.waiting("looking at the source"):
        done = client.remove_table(changefeed_id, table)
    if json:
        console.print_json(done)
    else:
        console.print_line(f"{table} is no longer replicated; the sink's table stays as it is")


@table_app.command("maintain")
def maintain(changefeed_id: Id, table: Table, server: Server = DEFAULT_SERVER, json: Json = False) -> None:
    """Join small files of a table at the sink, and remove what nobody reads any more, now; rows stay as they are."""
    with client_of(server) as client, console.waiting("joining files"):
        done = client.maintain_table(changefeed_id, table)
    if json:
        console.print_json(done)
    else:
        console.print_line(
            f"{table}: {done.files} data files with {done.bytes:,} bytes (before: {done.files_before} with "
            f"{done.bytes_before:,}); {done.removed} old files and {done.expired} old versions removed"
        )


@table_app.command("files")
def files(changefeed_id: Id, table: Table, server: Server = DEFAULT_SERVER, json: Json = False) -> None:
    """Show a table's data files at the sink: their number and bytes, the share of deleted rows, the last compaction."""
    with client_of(server) as client:
        found = client.table_files(changefeed_id, table)
    if json:
        return console.print_json(found)
    share = found.deleted_rows / found.rows if found.deleted_rows and found.rows else 0.0
    deleted = "not known" if found.deleted_rows is None else f"{found.deleted_rows:,} ({share:.1%})"
    row = (
        table,
        f"{found.files:,}",
        f"{found.bytes:,}",
        f"{found.rows:,}",
        deleted,
        console.when(found.compacted_time),
    )
    return console.print_table(("table", "data files", "bytes", "rows", "deleted", "last compaction"), [row])


@table_app.command("pause")
def pause(changefeed_id: Id, table: Table, server: Server = DEFAULT_SERVER, json: Json = False) -> None:
    """Hold a table until it is resumed, while all others flow; the log is kept for it as long as for any held table."""
    with client_of(server) as client:
        done = client.pause_table(changefeed_id, table)
    _show(done, f"{table} is paused at {done.ts}; `weir table resume` continues it", json=json)


@table_app.command("resume")
def resume(changefeed_id: Id, table: Table, server: Server = DEFAULT_SERVER, json: Json = False) -> None:
    """Try a paused or held table again at once, from its position."""
    with client_of(server) as client:
        done = client.resume_table(changefeed_id, table)
    _show(done, f"{table} continues from {done.ts}; `weir tables` shows when it flows", json=json)


@table_app.command("skip")
def skip(
    changefeed_id: Id,
    table: Table,
    ts: Annotated[int, typer.Option(min=1, max=MAX_TS, help="The last Ts to leave out.")],
    yes: Annotated[bool, typer.Option("--yes", help="The changes up to there are to be left out for good.")] = False,
    server: Server = DEFAULT_SERVER,
    json: Json = False,
) -> None:
    """Let a paused or held table continue behind a Ts, without the changes up to there."""
    with client_of(server) as client:
        done = client.skip_table(changefeed_id, table, ts, confirmed=yes)
    for notice in done.notices:
        console.print_warning(notice)
    _show(done, f"{table} continues behind {ts}", json=json)


def _show(done: "TableStepView", text: str, *, json: bool) -> None:
    if json:
        console.print_json(done)
    else:
        console.print_line(text)


def _joins(client: "Client", changefeed_id: str, table: str) -> bool:
    """Wait until the table is copied; return whether it flows then."""
    has_waited = False
    with console.waiting("joining"):
        while (view := client.query(changefeed_id, tables=False)).lost_tables or table in view.joining:
            has_waited = has_waited or table in view.joining
            _refuse_standing(view)
            Event().wait(_POLL_S)
    is_there = any(held.table == table for held in view.held) or client.table(changefeed_id, table) is not None
    if has_waited and not is_there:
        raise JobRefusedError(f"{table} is gone from the source of changefeed {changefeed_id}")
    return _flows(client, changefeed_id, table)


def _flows(client: "Client", changefeed_id: str, table: str) -> bool:
    """Wait until the table is no longer being copied; return whether it flows then."""
    with console.waiting("copying") as show:
        while True:
            view = client.query(changefeed_id, tables=False)
            found = next((resync for resync in view.resyncs if resync.table == table), None)
            if found is None:
                return all(held.table != table for held in view.held)
            _refuse_standing(view)
            show(progress(found))
            Event().wait(_POLL_S)


def _refuse_standing(view: "ChangefeedView") -> None:
    """:raises JobRefusedError: the changefeed is stopped or has failed, so it copies no table."""
    if view.state in (FeedState.STOPPED, FeedState.FAILED):
        cure = view.error.message if view.error else f"`weir changefeed resume -c {view.id}` continues it"
        raise JobRefusedError(f"changefeed {view.id} is {view.state}, and copies tables when it runs again: {cure}")


def show_tables(tables: "Sequence[TableView]", left: "Sequence[LeftView]") -> None:
    """Print the tables of a changefeed, and those that have left it."""
    rows = [
        (
            one.table,
            ", ".join(one.key),
            one.checkpoint_ts,
            tuple(f"{s.span} {s.capture} {s.state}" for s in one.spans),
            _held(one.held) if one.held else "",
            progress(one.resync) if one.resync else "",
        )
        for one in tables
    ]
    console.print_table(("table", "key", "checkpoint", "spans", "held", "copied again"), rows)
    if left:
        gone = [(one.table, console.when(one.since), _mark(one)) for one in left]
        console.print_table(("no longer replicated", "since", "at the sink"), gone)


def _held(table: "HeldView") -> str:
    renamed = f", at the source now {table.renamed_to}" if table.renamed_to else ""
    return f"{table.stage}{renamed}: {table.code}: {table.message}"


def _mark(table: "LeftView") -> str:
    return "marked" if table.marked else table.message or "not marked yet"


def progress(resync: "ResyncView") -> str:
    """Return how far a copy is, in one line."""
    words = resync.stage
    if resync.rows_total:
        words += f", {resync.rows_done:,} of {resync.rows_total:,} rows"
    if resync.rows_per_second is not None:
        words += f", {resync.rows_per_second:,.0f} rows/s"
    if resync.seconds_left is not None:
        words += f", {resync.seconds_left:.0f} s left"
    return words + (f"; {resync.code}: {resync.message}" if resync.code else "")

"""Repair command: what ``weir repair`` asks for, and how it shows which rows were made equal."""

import os
from collections.abc import Sequence
from pathlib import Path

from capture.api.port import RepairAsked, TableRepair
from capture.cli.options import client_of
from capture.errors import ConfigError
from capture.terminal import console

_SHOWN = 100


def repair(
    changefeed_id: str,
    tables: Sequence[str],
    *,
    dry_run: bool,
    server: str,
    json: bool,
    parquet: Path | None = None,
    where: str = "",
    rows_per_second: int | None = None,
) -> int:
    """The exit code: 0 only if no table was left out, and (dry run) nothing differs.

    :raises ConfigError: the file cannot be written.
    """
    from capture.api.inputs import model_of

    if parquet is not None:
        _refuse_unwritable(parquet)
    asked = model_of(RepairAsked, tables=tuple(tables), dry_run=dry_run, where=where, rows_per_second=rows_per_second)
    left = "nothing was changed" if dry_run else "tables that have been repaired stay so; for the others run it again"
    with client_of(server) as client, console.waiting("comparing source and sink", interrupted=left):
        found = client.repair(changefeed_id, asked)
    keys = sum(len(one.keys) for one in found)
    left_out = [one for one in found if one.waiting or one.refused]
    if json:
        console.print_json({"keys": keys, "left_out": len(left_out), "tables": found})
    else:
        rows = [(one.table, _words(each.key), each.what, ", ".join(each.columns)) for one in found for each in one.keys]
        if rows:
            console.print_table(("table", "key", "row is" if not dry_run else "row would be", "columns"), rows[:_SHOWN])
        if len(rows) > _SHOWN:
            console.print_line(f"{len(rows) - _SHOWN} more; --parquet and --json have all")
        for one in left_out:
            console.print_line(f"{one.table} is left as it is: {one.waiting or one.refused}")
        console.print_line(f"rows {'that differ' if dry_run else 'repaired'}: {keys}")
    if parquet is not None:
        _write(found, parquet)
    return 1 if left_out or (dry_run and keys) else 0


def _words(key: dict[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in key.items())


def _refuse_unwritable(path: Path) -> None:
    """Refuse a file before rows are compared and repaired, which may take hours.

    :raises ConfigError: it cannot be written.
    """
    target = path if path.exists() else path.absolute().parent
    if path.is_dir() or not target.exists() or not os.access(target, os.W_OK):
        reason = "it is a directory" if path.is_dir() else "no such directory" if not target.exists() else "no access"
        raise ConfigError(f"cannot write {path}: {reason}; choose another file")


def _write(found: Sequence[TableRepair], path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [
        {"table": one.table, "ts": one.ts, "key": list(each.key.items()), "what": each.what, "columns": each.columns}
        for one in found
        for each in one.keys
    ]
    schema = pa.schema(
        {
            "table": pa.string(),
            "ts": pa.int64(),
            "key": pa.map_(pa.string(), pa.string()),
            "what": pa.string(),
            "columns": pa.list_(pa.string()),
        }
    )
    try:
        pq.write_table(pa.Table.from_pylist(rows, schema), path)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror or error}") from None

"""Disk syncs: put a local Delta table's files and commits on disk before they are acknowledged.

A machine that loses its power keeps what was synced: a file's bytes by the file, its name by the directory. So our own
commits sync data file, directory, the log's file and the log's directory, in this order: a commit that is there names
nothing that is not. delta-rs syncs nothing (seen with 1.6.6); what it commits is synced as soon as it is there. Only if
the power fails in the milliseconds between may its commit be torn, and then the table has to be loaded again.

An fsync of a directory took 0.05 ms where this was measured, that of a commit's file 0.08 ms.
"""

import json
import os
from contextlib import suppress

from agent.sinks.delta.table.place import TablePlace


def sync(path: str) -> None:
    """A file, or a directory's names."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_commits(place: TablePlace, first: int) -> None:
    """What delta-rs has committed from version ``first`` on; nothing where the storage sees to it itself."""
    log, version = os.path.join(place.location, "_delta_log"), first
    while place.is_local and os.path.exists(path := os.path.join(log, f"{version:020d}.json")):
        with open(path, "rb") as file:
            added = [action["add"]["path"] for action in map(json.loads, file) if "add" in action]
        for name in added:
            with suppress(FileNotFoundError):  # replaced and removed meanwhile
                sync(place.path_of(name))
        if added:
            sync(place.location)
        sync(path)
        sync_checkpoint(place, version)
        version += 1
    if version > first:
        sync(log)


def sync_checkpoint(place: TablePlace, version: int) -> None:
    """One that is torn keeps readers from the table, though the log has all that is in it."""
    log = os.path.join(place.location, "_delta_log")
    with suppress(FileNotFoundError):  # most commits have none
        sync(os.path.join(log, f"{version:020d}.checkpoint.parquet"))
        sync(os.path.join(log, "_last_checkpoint"))
        sync(log)


def sync_names(place: TablePlace) -> None:
    """The table's directory is new at its place, and so may be the one above it."""
    if place.is_local:
        above = os.path.dirname(place.location)
        for path in (place.location, above, os.path.dirname(above)):
            sync(path)

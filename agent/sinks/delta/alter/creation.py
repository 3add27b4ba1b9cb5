"""Creation: makes a Delta table of files that are in its directory, in one commit with its first records.

A table that is to map its columns gets the mapping by a second commit, which changes no file: delta-rs creates none
with it. Between the two it is whole, and gets its mapping with its first change of columns if that is missing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from deltalake import CommitProperties, Schema
from deltalake.exceptions import DeltaError
from deltalake.transaction import create_table_with_add_actions

from agent.sinks.delta.alter import steps
from agent.sinks.delta.table import disk
from agent.sinks.delta.table import files as delta_files
from agent.sinks.delta.table.errors import storage_error
from agent.sinks.delta.table.files import DataFile
from agent.sinks.delta.table.layout import Layout
from agent.sinks.delta.table.place import TableOwner, TablePlace


@dataclass(frozen=True, slots=True)
class NewTable:
    """``partitions``: the columns that divide it; ``properties``: Delta's; ``maps_columns``: see ``steps.Writer``."""

    owner: TableOwner
    columns: pa.Schema
    partitions: Sequence[str]
    properties: Mapping[str, str]
    maps_columns: bool


def create(place: TablePlace, table: NewTable, files: Sequence[DataFile], record: CommitProperties) -> None:
    """Create the table, unless there is one. ``files``: see ``Replacement.files``.

    :raises SinkError: the storage fails.
    """
    layout = Layout(tuple(table.partitions))
    try:
        create_table_with_add_actions(
            place.location,
            Schema.from_arrow(table.columns),
            [file.add_action() for file in delta_files.fitted(place, files, layout)],
            mode="error",
            partition_by=list(table.partitions),
            description=table.owner.description(),
            configuration=dict(table.properties),
            storage_options=place.options or None,
            commit_properties=record,
        )
        disk.sync_commits(place, 0)
        disk.sync_names(place)
    except (DeltaError, OSError) as error:
        if place.open() is None:  # otherwise another one was faster, and its table is checked
            raise storage_error(place, "create", error) from error
        return
    if table.maps_columns:
        steps.map_columns(place)

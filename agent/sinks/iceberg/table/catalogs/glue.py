"""Glue catalog: pyiceberg's, as Weir needs it: each request is made once, and no table is renamed.

The catalog refuses a commit if the table's version in it is another than the one that the commit was made from. A
request that is repeated unasked, because its answer was lost, would be refused for its own success.
"""

from pyiceberg.catalog.glue import GLUE_MAX_RETRIES, GlueCatalog
from pyiceberg.io import FileIO
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.typedef import Identifier

from agent.errors import TableHeldError
from agent.sinks.iceberg.table.io import OwnFileIO
from agent.sinks.iceberg.table.metadata import files as metadata_files


class LakeGlueCatalog(OwnFileIO, GlueCatalog):
    """A catalog of one process."""

    def __init__(self, name: str, **properties: str) -> None:
        super().__init__(name, **{**properties, GLUE_MAX_RETRIES: 1})

    @staticmethod
    def _write_metadata(metadata: TableMetadata, io: FileIO, metadata_path: str) -> None:
        metadata_files.write(metadata, io, metadata_path)

    def rename_table(self, from_identifier: str | Identifier, to_identifier: str | Identifier) -> Table:
        """:raises TableHeldError: always: Glue would have the table under both names for a moment, or after a crash."""
        name = ".".join(self.identifier_to_tuple(from_identifier))
        raise TableHeldError(
            f"{name} cannot get another name: Glue does not rename tables in one step; pause the changefeed, rename or "
            "drop the table in Glue, then resume"
        )

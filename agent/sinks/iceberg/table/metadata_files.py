"""Metadata files of Iceberg tables, of version 3 too, which pyiceberg itself refuses to write."""

from pyiceberg.io import FileIO
from pyiceberg.serializers import ToOutputFile
from pyiceberg.table.metadata import TableMetadata, TableMetadataV3
from pyiceberg.typedef import IcebergBaseModel


def to_json(metadata: TableMetadata) -> str:
    """Return the text of a metadata file."""
    if isinstance(metadata, TableMetadataV3) and metadata.next_row_id is None:
        metadata = metadata.model_copy(update={"next_row_id": 0})
    return IcebergBaseModel.model_dump_json(metadata)


def write(metadata: TableMetadata, io: FileIO, metadata_path: str) -> None:
    """:raises FileExistsError: there is one."""
    if not isinstance(metadata, TableMetadataV3):
        ToOutputFile.table_metadata(metadata, io.new_output(metadata_path))
        return
    with io.new_output(metadata_path).create() as stream:
        stream.write(to_json(metadata).encode())

"""Avro files of manifests and their lists: what pyiceberg derives from the schema of each file is derived once.

More than half of the processor time of a small manifest was this: the schema as Avro's JSON, and the writer of records.
"""

import json
import os
from functools import lru_cache
from typing import Final, TypeVar

from pyiceberg.avro.codecs import AVRO_CODEC_KEY
from pyiceberg.avro.file import MAGIC, META_SCHEMA, SYNC_SIZE, AvroFileHeader, AvroOutputFile
from pyiceberg.avro.resolver import construct_writer
from pyiceberg.avro.writer import Writer
from pyiceberg.io import OutputFile
from pyiceberg.manifest import (
    MANIFEST_LIST_FILE_SCHEMAS,
    ManifestEntry,
    ManifestFile,
    data_file_with_partition,
    manifest_entry_schema_with_data_file,
)
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record, TableVersion
from pyiceberg.types import StructType
from pyiceberg.utils.schema_conversion import AvroSchemaConversion

CODEC: Final = "deflate"
_SCHEMA_KEY: Final = "avro.schema"

R = TypeVar("R", bound=Record)


class DerivedFile(AvroOutputFile[R]):
    """An Avro file; ``text``: its schema as Avro has it, ``writer``: of records with these columns."""

    def __init__(
        self, output: OutputFile, columns: Schema, name: str, text: str, writer: Writer, metadata: dict[str, str]
    ) -> None:
        # not that of the base, which derives what is given here
        self.output_file, self.file_schema, self.schema_name = output, columns, name
        self.sync_bytes = os.urandom(SYNC_SIZE)
        self.writer, self.metadata, self._text = writer, metadata, text

    def _write_header(self) -> None:
        meta = {**self.metadata, _SCHEMA_KEY: self._text, AVRO_CODEC_KEY: CODEC}
        _header_writer().write(self.encoder, AvroFileHeader(MAGIC, meta, self.sync_bytes))


def entries_file(
    output: OutputFile, version: TableVersion, partition: StructType, metadata: dict[str, str]
) -> DerivedFile[ManifestEntry]:
    """Return a manifest. ``partition``: the type of its data files' partitions."""
    return DerivedFile(output, *_of_entries(version, partition), metadata)


def list_file(output: OutputFile, version: TableVersion, metadata: dict[str, str]) -> DerivedFile[ManifestFile]:
    """Return a list of manifests."""
    return DerivedFile(output, *_of_list(version), metadata)


@lru_cache(maxsize=256)
def _of_entries(version: TableVersion, partition: StructType) -> tuple[Schema, str, str, Writer]:
    data_file = data_file_with_partition(format_version=version, partition_type=partition)
    columns = manifest_entry_schema_with_data_file(format_version=version, data_file=data_file)
    return _derived(columns, "manifest_entry")


@lru_cache(maxsize=2)
def _of_list(version: TableVersion) -> tuple[Schema, str, str, Writer]:
    return _derived(MANIFEST_LIST_FILE_SCHEMAS[version], "manifest_file")


def _derived(columns: Schema, name: str) -> tuple[Schema, str, str, Writer]:
    text = json.dumps(AvroSchemaConversion().iceberg_to_avro(columns, schema_name=name))
    return columns, name, text, construct_writer(file_schema=columns)


@lru_cache(maxsize=1)
def _header_writer() -> Writer:
    return construct_writer(META_SCHEMA)

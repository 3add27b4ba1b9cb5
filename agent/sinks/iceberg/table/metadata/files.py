"""Metadata files of Iceberg tables, of version 3 too, which pyiceberg itself refuses to write.

Each commit writes all snapshots that are retained, so the text of a snapshot is kept once it was made.
"""

from collections import OrderedDict
from threading import Lock
from typing import Final

from pyiceberg.io import FileIO
from pyiceberg.serializers import Compressor
from pyiceberg.table.metadata import TableMetadata, TableMetadataV3
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.typedef import IcebergBaseModel

#: texts that are kept, over all tables: each takes a kilobyte
_TEXTS_MAX: Final = 10_000


class _Texts:
    """Texts of snapshots by identity: an object never changes, and what is kept is not another one later."""

    def __init__(self) -> None:
        self._known: OrderedDict[int, tuple[Snapshot, str]] = OrderedDict()
        self._lock = Lock()

    def of(self, snapshot: Snapshot) -> str:
        with self._lock:
            known = self._known.get(id(snapshot))
            if known is not None:
                self._known.move_to_end(id(snapshot))
                return known[1]
        text = snapshot.model_dump_json()
        with self._lock:
            self._known[id(snapshot)] = snapshot, text
            while len(self._known) > _TEXTS_MAX:
                self._known.popitem(last=False)
        return text


_texts: Final = _Texts()


def to_json(metadata: TableMetadata) -> str:
    """Return the text of a metadata file."""
    if isinstance(metadata, TableMetadataV3) and metadata.next_row_id is None:
        metadata = metadata.model_copy(update={"next_row_id": 0})
    rest = IcebergBaseModel.model_dump_json(metadata, exclude={"snapshots", "snapshot_log"})
    snapshots = ",".join(_texts.of(item) for item in metadata.snapshots)
    log = ",".join(
        f'{{"snapshot-id":{item.snapshot_id},"timestamp-ms":{item.timestamp_ms}}}' for item in metadata.snapshot_log
    )
    return f'{rest[:-1]},"snapshots":[{snapshots}],"snapshot-log":[{log}]}}'


def write(metadata: TableMetadata, io: FileIO, metadata_path: str) -> None:
    """:raises FileExistsError: there is one."""
    output = io.new_output(metadata_path)
    data = Compressor.get_compressor(output.location).bytes_compressor()(to_json(metadata).encode())
    with output.create() as stream:
        stream.write(data)

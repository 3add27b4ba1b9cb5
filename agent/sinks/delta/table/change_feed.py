"""Change feed: the changed rows of a table's commits, in files beside its data (Delta's Change Data Feed).

Readers take the changes of a commit that has such files from them alone. They take those of any other commit from its
data files: all rows of those that it adds are inserted, all of those that it removes are deleted. So a commit that
removes files has change files, or declares that it changes no data. delta-rs takes the deleted rows of a removed file
for the others (seen with 1.6.6), so this is not left to readers where it would do.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Final, Self
from uuid import uuid4

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from agent.errors import TableHeldError
from agent.kernels.key_digest import Digests, new_secret
from agent.rows.unify import Mask
from agent.sinks.common import changelog, forms
from agent.sinks.common.row_digests import KEYS_MAX, Part, row_digests
from agent.sinks.delta.table import files as delta_files
from agent.sinks.delta.table.commits import Action
from agent.sinks.delta.table.layout import Layout
from agent.sinks.delta.table.place import TablePlace

PROPERTY: Final = "delta.enableChangeDataFeed"
DIRECTORY: Final = "_change_data"
_RESERVED: Final = (changelog.CHANGE_TYPE, changelog.COMMIT_VERSION, changelog.COMMIT_TIMESTAMP)
_KIND: Final = pa.field(changelog.CHANGE_TYPE, pa.string())

Tables = Callable[[], Iterable[pa.Table]]


def is_on(configuration: Mapping[str, str | None], columns: Collection[str]) -> bool:
    """Return whether a table has a feed. ``columns``: its own; a changelog's are in the way of one."""
    return (configuration.get(PROPERTY) or "").lower() == "true" and not {*_RESERVED} & {*columns}


def refuse_reserved(names: Iterable[str], *, table: str) -> None:
    """:raises TableHeldError: a column has the name of one that readers of a feed get beside the table's."""
    for name in names:
        if name.lower() in _RESERVED:
            raise TableHeldError(
                f"column {name} of {table} has the name of a column of Delta's Change Data Feed; rename it, leave it "
                "out by a column selector, or leave change_data_feed out of the sink URI"
            )


def old_rows(rows: pa.Table, stays: Mask) -> pa.Table:
    """Return rows as they were before a commit; ``stays``: those that it updates, the others are deleted."""
    return _with_kind(rows, np.where(stays, "update_preimage", "delete"))


def new_rows(rows: pa.Table, was_there: Mask) -> pa.Table:
    """Return rows as they are after a commit; ``was_there``: those that it updates, the others are inserted."""
    return _with_kind(rows, np.where(was_there, "update_postimage", "insert"))


def _with_kind(rows: pa.Table, kinds: npt.NDArray[np.str_]) -> pa.Table:
    return rows.append_column(_KIND, pa.array(kinds, pa.string()))


def as_they_were(rows: pa.RecordBatch, columns: pa.Schema) -> pa.Table:
    """Return stored rows under the columns that they had. A column that is of another type in ``columns``, the table's
    new ones, is NULL: readers of the commit would not understand it."""
    types = {item.name: item.type for item in columns}
    found = {}
    for item in rows.schema:
        plain = forms.plain_type(item.type)
        wanted = types.get(item.name, plain)
        found[item.name] = rows.column(item.name).cast(plain) if wanted == plain else pa.nulls(rows.num_rows, wanted)
    return pa.table(found)


def is_same(before: pa.Table, after: pa.Table, secret: bytes) -> Mask:
    """Compare row by row. A column that one of them lacks is NULL there."""
    columns = pa.unify_schemas([before.schema, after.schema])
    found: Mask = (_values(before, columns, secret) == _values(after, columns, secret)).all(axis=1)
    return found


def _values(rows: pa.Table, columns: pa.Schema, secret: bytes) -> Digests:
    shaped = [
        rows.column(item.name) if item.name in rows.schema.names else pa.nulls(rows.num_rows, item.type)
        for item in columns
    ]
    return row_digests(pa.table(shaped, schema=columns), columns.names, secret)


def write(place: TablePlace, rows: Iterable[pa.Table], layout: Layout) -> list[Action]:
    """Write changed rows, each with its kind; return the actions of their files, none if there are no rows.

    :raises TableHeldError: a value cannot be that of a partition.
    :raises SinkError: the storage fails.
    """
    names = (f"{DIRECTORY}/cdc-{uuid4().hex}.parquet" for _ in repeat(None))
    some = (piece for piece in rows if piece.num_rows)
    return [
        {
            "cdc": {
                "path": file.path,
                "partitionValues": dict(file.layout.values),
                "size": file.bytes,
                "dataChange": False,
            }
        }
        for file in delta_files.write_files(place, names.__next__, some, layout=layout)
    ]


def differences(
    stored: Tables, written: Tables, key: Sequence[str], columns: pa.Schema, *, rows: int
) -> Iterator[pa.Table]:
    """Yield the changed rows of a commit that replaces all: ``stored`` ones by ``written`` ones. A row that both have,
    by ``key`` and values, has not changed. Without a key all have. ``columns``: of either; ``rows``: of both together.

    Both are read repeatedly, for memory holds some millions of digests at a time.
    """
    if not key:
        for piece in stored():
            yield old_rows(piece, np.zeros(piece.num_rows, np.bool_))
        for piece in written():
            yield new_rows(piece, np.zeros(piece.num_rows, np.bool_))
        return
    secret, parts = new_secret(), -(-rows // (KEYS_MAX // 2)) or 1
    for number in range(parts):
        compared = _Comparison(columns, key, Part(number, parts), secret)
        before, after = _Rows.of(stored(), compared), _Rows.of(written(), compared)
        for tables, others, labelled in ((stored, after, old_rows), (written, before, new_rows)):
            for piece in tables():
                is_changed, is_among_others = others.find(piece, compared)
                yield labelled(piece.filter(pa.array(is_changed)), is_among_others[is_changed])


@dataclass(frozen=True, slots=True, eq=False)
class _Comparison:
    """Comparison of rows by digests of ``columns``: of those whose keys are in a part of all digests."""

    columns: pa.Schema
    key: Sequence[str]
    among: Part
    secret: bytes

    def digests(self, rows: pa.Table) -> tuple[Digests, Digests]:
        """Return digests of the rows' keys, and of their values."""
        keys = pa.schema([self.columns.field(name) for name in self.key])
        return _values(rows, keys, self.secret), _values(rows, self.columns, self.secret)


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """Digests of the keys of rows, in increasing order, and of their values."""

    keys: Digests
    values: Digests

    @classmethod
    def of(cls, tables: Iterable[pa.Table], compared: _Comparison) -> Self:
        keys, values = [np.zeros((0, 2), np.uint64)], [np.zeros((0, 2), np.uint64)]
        for rows in tables:
            found = compared.digests(rows)
            mine = compared.among.mask(found[0])
            keys.append(found[0][mine])
            values.append(found[1][mine])
        every = np.concatenate(keys)
        order = np.argsort(every[:, 0])
        return cls(every[order], np.concatenate(values)[order])

    def find(self, rows: pa.Table, compared: _Comparison) -> tuple[Mask, Mask]:
        """Return which of the compared ``rows`` are not here with the same values, and whose keys are here."""
        keys, values = compared.digests(rows)
        is_compared = compared.among.mask(keys)
        if not len(self.keys):
            return is_compared, np.zeros(rows.num_rows, np.bool_)
        at = np.minimum(np.searchsorted(self.keys[:, 0], keys[:, 0]), len(self.keys) - 1)
        is_here = (self.keys[at] == keys).all(axis=1)
        return is_compared & ~(is_here & (self.values[at] == values).all(axis=1)), is_here

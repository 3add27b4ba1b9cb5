"""Layout of an Iceberg table: its partition spec and its sort order, and how rows are divided and sorted by them.

Spec and order name columns by their ids, so a renamed column keeps its place in both. Transforms are computed by
Iceberg's own Rust library (``pyiceberg-core``), column by column.

What is said of a file's partition, in descriptions that are sent between processes, are the values of its spec's fields
as Iceberg stores them: dates, times and timestamps as numbers.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.partitioning import PARTITION_FIELD_ID_START, UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, NullOrder, SortDirection, SortField, SortOrder
from pyiceberg.transforms import IdentityTransform, Transform, UnknownTransform, VoidTransform, parse_transform
from pyiceberg.typedef import Record
from pyiceberg.types import BinaryType, DecimalType, DoubleType, FloatType, ListType, NestedField

from agent.errors import RESYNC, TableForeignError, TableHeldError
from agent.sinks.common import row_groups
from agent.sinks.common.layouts import IDENTITY, PartitionTerm, Wanted

#: types whose values are no partition by themselves
_NO_PARTITION: Final = (FloatType, DoubleType, BinaryType, ListType)
#: of a file's partition
Values = tuple[Any, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """``spec`` and ``order`` of one schema."""

    spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC
    order: SortOrder = UNSORTED_SORT_ORDER

    @classmethod
    def of(cls, table: Table) -> "Layout":
        """:raises TableForeignError: others have partitioned the table in a way that is not known here."""
        spec = table.spec()
        if any(isinstance(field.transform, UnknownTransform) for field in spec.fields):
            raise TableForeignError(f"others have partitioned {'.'.join(table.name())} by {spec.fields}; {RESYNC}")
        order = table.sort_order()
        is_known = all(isinstance(field.transform, IdentityTransform) for field in order.fields)
        return cls(spec, order if is_known else UNSORTED_SORT_ORDER)

    @classmethod
    def made(cls, wanted: Wanted, schema: Schema, *, table: str) -> "Layout":
        """Return the layout that is wanted for a table with these columns.

        :raises TableHeldError: they do not allow it.
        """
        if wanted.clusters:
            raise TableHeldError(f"the layout of {table} has cluster-by, which Iceberg tables lack; use sort-by")
        fields = list[PartitionField]()
        for term in wanted.partitions:
            source = _column(schema, term.column, table=table)
            transform = _transform(term, source, table=table)
            name = _name(term, schema, [field.name for field in fields])
            fields.append(PartitionField(source.field_id, PARTITION_FIELD_ID_START + len(fields), transform, name))
        order = [
            SortField(
                source_id=_column(schema, term.column, table=table).field_id,
                transform=IdentityTransform(),
                direction=SortDirection.DESC if term.is_falling else SortDirection.ASC,
                null_order=NullOrder.NULLS_FIRST if term.nulls_first else NullOrder.NULLS_LAST,
            )
            for term in wanted.order
        ]
        return cls(
            PartitionSpec(*fields, spec_id=0) if fields else UNPARTITIONED_PARTITION_SPEC,
            SortOrder(*order, order_id=1) if order else UNSORTED_SORT_ORDER,
        )

    @property
    def is_plain(self) -> bool:
        return not self.spec.fields and not self.order.fields

    @property
    def columns(self) -> frozenset[int]:
        """The ids of the columns by which rows are divided."""
        return frozenset(field.source_id for field in self.spec.fields)

    def without(self, columns: Mapping[int, int | None], schema: Schema) -> "Layout":
        """Return the layout after a change of columns: ``columns`` that got another id, or None if they are gone.
        ``schema``: the table's afterwards. A partition field whose name is a column's by then gets another one."""
        names = {field.name: field.field_id for field in schema.fields}
        fields = list[PartitionField]()
        for field in self.spec.fields:
            source = columns.get(field.source_id, field.source_id)
            if source is None:
                continue
            is_own = isinstance(field.transform, IdentityTransform) and names.get(field.name) == source
            name, number = field.name, 2
            while name in names and not is_own:
                name, number = f"{field.name}_{number}", number + 1
            fields.append(PartitionField(source, field.field_id, field.transform, name))
        order = list[SortField]()
        for item in self.order.fields:
            source = columns.get(item.source_id, item.source_id)
            if source is None:
                break  # the others are in no order by themselves
            order.append(item.model_copy(update={"source_id": source}))
        return Layout(
            PartitionSpec(*fields, spec_id=self.spec.spec_id),
            SortOrder(*order, order_id=self.order.order_id) if order else UNSORTED_SORT_ORDER,
        )

    def is_like(self, other: "Layout") -> bool:
        return self.spec.fields == other.spec.fields and self.order.fields == other.order.fields

    @property
    def terms(self) -> str:
        """How rows are divided, in terms of column ids; empty: not at all."""
        return terms_of(self.spec)

    @property
    def order_terms(self) -> str:
        return order_terms(self.order)

    def divided(self, rows: pa.Table, schema: Schema) -> Iterator[tuple[Values, pa.Table]]:
        """Yield the rows of each partition, in their order, with its values. ``rows`` has the columns of ``schema``."""
        if not self.spec.fields or not rows.num_rows:
            yield (), rows
            return
        keys = [_keys(rows, schema, field) for field in self.spec.fields]
        for at, piece in row_groups.divided(rows, keys):
            yield tuple(key[at].as_py() for key in keys), piece

    def sorted(self, rows: pa.Table, schema: Schema) -> pa.Table:
        """Return the rows in the table's order."""
        places = self.places(rows, schema)
        return rows if places is None else rows.take(pa.array(places))

    def places(self, rows: pa.Table, schema: Schema) -> Any:
        """Return where the rows come from if they are sorted; None: they are in no order."""
        if not self.order.fields or not rows.num_rows:
            return None
        keys, ways = dict[str, Any](), list[tuple[str, str]]()
        for number, field in enumerate(self.order.fields):
            source = schema.find_field(field.source_id)
            column = rows.column(source.name)
            way = "descending" if field.direction is SortDirection.DESC else "ascending"
            # arrow has one place of nulls for all columns
            keys[f"n{number}"] = column.is_valid() if field.null_order is NullOrder.NULLS_FIRST else column.is_null()
            keys[f"v{number}"] = column
            ways += [(f"n{number}", "ascending"), (f"v{number}", way)]
        return pc.sort_indices(pa.table(keys), sort_keys=ways).to_numpy()


PLAIN: Final = Layout()


def terms_of(spec: PartitionSpec) -> str:
    return ",".join(f"{field.transform}({field.source_id})" for field in spec.fields)


def order_terms(order: SortOrder) -> str:
    """Return the order in terms of column ids; empty: there is none."""
    return ",".join(f"{item.transform}({item.source_id}) {item.direction} {item.null_order}" for item in order.fields)


def record(spec: PartitionSpec, schema: Schema, values: Sequence[Any]) -> Record:
    """Return a file's partition. ``values``: decimals may be texts."""
    types = spec.partition_type(schema).fields
    assert len(types) == len(values), "a value for each field of the spec"
    return Record(*(_value(item, value) for item, value in zip(types, values, strict=True)))


def _value(item: NestedField, value: Any) -> Any:
    return Decimal(value) if isinstance(item.field_type, DecimalType) and value is not None else value


def _keys(rows: pa.Table, schema: Schema, field: PartitionField) -> pa.Array:
    source = schema.find_field(field.source_id)
    column = rows.column(source.name).combine_chunks()
    column = pa.concat_arrays(column.chunks) if isinstance(column, pa.ChunkedArray) else column
    if isinstance(field.transform, VoidTransform):
        return pa.nulls(rows.num_rows, pa.int32())
    if not isinstance(field.transform, IdentityTransform):
        column = field.transform.pyarrow_transform(source.field_type)(column)
    if pa.types.is_date(column.type):
        return column.cast(pa.int32())
    return column.cast(pa.int64()) if pa.types.is_temporal(column.type) else column


def _column(schema: Schema, name: str, *, table: str) -> NestedField:
    found = next((field for field in schema.fields if field.name == name), None)
    if found is None:
        known = ", ".join(field.name for field in schema.fields)
        raise TableHeldError(f"the layout of {table} names column {name}, which it lacks; it has {known}")
    return found


def _transform(term: PartitionTerm, source: NestedField, *, table: str) -> Transform[Any, Any]:
    text = term.transform if not term.number else f"{term.transform}[{term.number}]"
    transform: Transform[Any, Any] = parse_transform(text)
    is_unfit = isinstance(source.field_type, _NO_PARTITION) and term.transform != "bucket"
    if is_unfit or not transform.can_transform(source.field_type):
        cure = "choose another transform, or another column"
        raise TableHeldError(f"the layout of {table} has {term}, and {term.column} is {source.field_type}; {cure}")
    return transform


def _name(term: PartitionTerm, schema: Schema, taken: Sequence[str]) -> str:
    """Return the name of a partition field, as Iceberg's other writers choose it, and none of a column."""
    if term.transform == IDENTITY and term.column not in taken:
        return term.column
    suffix = {"truncate": "trunc"}.get(term.transform, term.transform)
    names, number = {*taken, *(field.name for field in schema.fields)}, 1
    while (name := f"{term.column}_{suffix}{number if number > 1 else ''}") in names:
        number += 1
    return name

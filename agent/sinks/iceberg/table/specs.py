"""Specs of an Iceberg table: the partition specs that it has had, and what gives it another layout.

A file stays in the spec that it was written with. One that divided rows by a column that is gone has no file any more
(``alter.columns``), but older snapshots have: its manifests are written with a schema that has the column.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pyiceberg.manifest import DataFile, DataFileContent
from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.sorting import SortOrder
from pyiceberg.table.update import (
    AddPartitionSpecUpdate,
    AddSortOrderUpdate,
    AssertDefaultSortOrderId,
    AssertDefaultSpecId,
    AssertLastAssignedPartitionId,
    SetDefaultSortOrderUpdate,
    SetDefaultSpecUpdate,
    TableRequirement,
    TableUpdate,
)

from agent.sinks.iceberg.table.files import TableFile
from agent.sinks.iceberg.table.layout import Layout, order_terms


@dataclass(frozen=True, slots=True, eq=False)
class Specs:
    """``by_id``: all specs; ``newest`` and ``order``: those of new files; ``schemas``: the table's, newest first.
    ``version``: the table's format version."""

    by_id: Mapping[int, PartitionSpec]
    newest: PartitionSpec
    order: SortOrder
    schemas: tuple[Schema, ...]
    version: int

    @classmethod
    def of_table(cls, table: Table, schema: Schema) -> "Specs":
        """``schema``: the newest one, which the table may not have yet."""
        schemas = (schema, *reversed(table.metadata.schemas))
        return cls(table.specs(), table.spec(), table.sort_order(), schemas, table.metadata.format_version)

    def with_newest(self, change: "Changed") -> "Specs":
        by_id = {**self.by_id, change.spec.spec_id: change.spec}
        return replace(self, by_id=by_id, newest=change.spec, order=change.order)

    def data_file(self, file: TableFile, content: DataFileContent) -> DataFile:
        spec = self.of(file.spec_id)
        is_sorted = bool(file.sorted_by) and file.sorted_by == order_terms(self.order)
        order_id = self.order.order_id if is_sorted else 0
        return file.data_file(content, spec, self.schema(spec), order_id, self.version)

    def of(self, spec_id: int | None) -> PartitionSpec:
        return self.newest if spec_id is None else self.by_id[spec_id]

    def schema(self, spec: PartitionSpec) -> Schema:
        """Return the newest schema with all columns of the spec."""
        wanted = {field.source_id for field in spec.fields}
        whole = (schema for schema in self.schemas if wanted <= {field.field_id for field in schema.fields})
        return next(whole, self.schemas[0])


@dataclass(frozen=True, slots=True)
class Changed:
    """``spec`` and ``order``: of new files from then on."""

    spec: PartitionSpec
    order: SortOrder
    updates: tuple[TableUpdate, ...]
    requirements: tuple[TableRequirement, ...]


def changed(table: Table, layout: Layout) -> Changed:
    """Return what gives the table this layout."""
    spec, of_spec = _spec(table, layout.spec)
    order, of_order = _order(table, layout.order)
    metadata = table.metadata
    requirements: list[TableRequirement] = []
    if of_spec:
        requirements.append(AssertDefaultSpecId(default_spec_id=metadata.default_spec_id))
        requirements.append(AssertLastAssignedPartitionId(last_assigned_partition_id=metadata.last_partition_id))
    if of_order:
        requirements.append(AssertDefaultSortOrderId(default_sort_order_id=metadata.default_sort_order_id))
    return Changed(spec, order, (*of_spec, *of_order), tuple(requirements))


def _spec(table: Table, wanted: PartitionSpec) -> tuple[PartitionSpec, tuple[TableUpdate, ...]]:
    metadata = table.metadata
    known = {
        (field.source_id, str(field.transform)): field.field_id
        for spec in metadata.partition_specs
        for field in spec.fields
    }
    last = max(metadata.last_partition_id or 0, PARTITION_FIELD_ID_START - 1)
    fields = []
    for field in wanted.fields:
        number = known.get((field.source_id, str(field.transform)))
        if number is None:
            number = last = last + 1
        fields.append(PartitionField(field.source_id, number, field.transform, field.name))
    for spec in metadata.partition_specs:
        if list(spec.fields) == fields:
            is_newest = spec.spec_id == metadata.default_spec_id
            return spec, () if is_newest else (SetDefaultSpecUpdate(spec_id=spec.spec_id),)
    made = PartitionSpec(*fields, spec_id=max(spec.spec_id for spec in metadata.partition_specs) + 1)
    return made, (AddPartitionSpecUpdate(spec=made), SetDefaultSpecUpdate(spec_id=-1))


def _order(table: Table, wanted: SortOrder) -> tuple[SortOrder, tuple[TableUpdate, ...]]:
    metadata = table.metadata
    for order in metadata.sort_orders:
        if list(order.fields) == list(wanted.fields):
            is_newest = order.order_id == metadata.default_sort_order_id
            return order, () if is_newest else (SetDefaultSortOrderUpdate(sort_order_id=order.order_id),)
    made = SortOrder(*wanted.fields, order_id=max(order.order_id for order in metadata.sort_orders) + 1)
    return made, (AddSortOrderUpdate(sort_order=made), SetDefaultSortOrderUpdate(sort_order_id=-1))

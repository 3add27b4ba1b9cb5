"""Layouts: what a changefeed's configuration says of a table's layout, parsed.

A partition term is a column, or one of ``year(c)``, ``month(c)``, ``day(c)``, ``hour(c)``, ``bucket(n, c)`` and
``truncate(n, c)``. A sort term is a column, with ``asc`` or ``desc``, ``nulls first`` or ``nulls last`` behind it;
without, rising values begin with nulls and falling ones end with them.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from agent.errors import SinkConfigError
from agent.filter.tables import TableFilter
from reactor.records.sink_settings import TableLayout

IDENTITY: Final = "identity"
_OF_TIMES: Final = ("year", "month", "day", "hour")
_WITH_NUMBER: Final = ("bucket", "truncate")
_CALL: Final = re.compile(r"(?P<name>[A-Za-z_]+)\s*\((?P<inside>.*)\)", re.DOTALL)
_NUMBERED: Final = re.compile(r"\s*(?P<number>\d{1,9})\s*,\s*(?P<column>.+?)\s*", re.DOTALL)
_SORT: Final = re.compile(
    r"(?P<column>.+?)(?:\s+(?P<way>asc|desc))?(?:\s+nulls\s+(?P<nulls>first|last))?", re.IGNORECASE | re.DOTALL
)


@dataclass(frozen=True, slots=True)
class PartitionTerm:
    """``number``: of buckets, or the width; 0: the transform has none."""

    column: str
    transform: str = IDENTITY
    number: int = 0

    def __str__(self) -> str:
        if self.transform == IDENTITY:
            return self.column
        return f"{self.transform}({f'{self.number}, ' if self.number else ''}{self.column})"


@dataclass(frozen=True, slots=True)
class SortTerm:
    column: str
    is_falling: bool = False
    nulls_first: bool = True


@dataclass(frozen=True, slots=True)
class Wanted:
    """The layout that a table is to have."""

    partitions: tuple[PartitionTerm, ...] = ()
    order: tuple[SortTerm, ...] = ()
    clusters: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the table must have."""
        named = (*(term.column for term in self.partitions), *(term.column for term in self.order), *self.clusters)
        return tuple(dict.fromkeys(named))


NOTHING: Final = Wanted()


def wanted(layouts: Sequence[TableLayout], schema_name: str, name: str) -> Wanted:
    """Return the layout of a table: the first one that names it, or none.

    :raises SinkConfigError: it cannot be parsed.
    """
    for layout in layouts:
        if TableFilter(layout.matcher).wants(schema_name, name):
            return parsed(layout)
    return NOTHING


def is_laid_out(layouts: Sequence[TableLayout], schema_name: str, name: str) -> bool:
    """Return whether a layout names the table."""
    return any(TableFilter(layout.matcher).wants(schema_name, name) for layout in layouts)


def check_layouts(layouts: Sequence[TableLayout]) -> None:
    """Check that every layout can be parsed, whatever tables exist.

    :raises SinkConfigError: a term is not one.
    :raises SourceConfigError: a matcher is invalid.
    """
    for layout in layouts:
        TableFilter(layout.matcher)
        parsed(layout)


def parsed(layout: TableLayout) -> Wanted:
    """:raises SinkConfigError: a term is not one; the error explains the syntax."""
    partitions = tuple(_partition(text) for text in layout.partition_by)
    order = tuple(_sort(text) for text in layout.sort_by)
    for what, names in (
        ("partition-by", [str(term) for term in partitions]),
        ("sort-by", [term.column for term in order]),
        ("cluster-by", list(layout.cluster_by)),
    ):
        if twice := [name for at, name in enumerate(names) if name in names[:at]]:
            raise SinkConfigError(f"{what} of a [[layout]] names {twice[0]} twice; name it once")
        if "" in names:
            raise SinkConfigError(f"{what} of a [[layout]] has an empty text in it; name a column")
    return Wanted(partitions, order, layout.cluster_by, layout.properties)


def _partition(text: str) -> PartitionTerm:
    text = text.strip()
    call = _CALL.fullmatch(text)
    name = call["name"].lower() if call else ""
    if call is None or name not in (IDENTITY, *_OF_TIMES, *_WITH_NUMBER):
        if call is not None:
            known = "year(c), month(c), day(c), hour(c), bucket(n, c) and truncate(n, c)"
            raise SinkConfigError(f"partition-by has {text}; known are a column, {known}")
        return PartitionTerm(text)
    if name not in _WITH_NUMBER:
        return PartitionTerm(call["inside"].strip(), name)
    numbered = _NUMBERED.fullmatch(call["inside"])
    if numbered is None or not 0 < int(numbered["number"]) < 1 << 31:
        raise SinkConfigError(f"partition-by has {text}; write {name}(16, column), with a number of at least 1")
    return PartitionTerm(numbered["column"], name, int(numbered["number"]))


def _sort(text: str) -> SortTerm:
    found = _SORT.fullmatch(text.strip())
    if found is None:
        raise SinkConfigError("sort-by of a [[layout]] has an empty text in it; name a column")
    is_falling = (found["way"] or "").lower() == "desc"
    nulls = (found["nulls"] or "").lower()
    return SortTerm(found["column"], is_falling, nulls_first=nulls == "first" if nulls else not is_falling)

"""Table choice: under which names a publication sends rows of partitioned tables, and which of them rules want.

Rules are held against the names under which rows are sent. With a publication of ours a partitioned table is one table,
sent under its root's name, if a rule matches that; a partition whose root no rule matches is a table of its own. With a
publication of the user's it is as that says (``publish_via_partition_root``).
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from agent.errors import SourceConfigError
from agent.sources.postgres.publication.published import Catalog
from reactor.records.tables.table import TableRecord

#: tables in one error
_NAMED_MAX: Final = 20

#: whether the rules match a table, by its number
Matches = Callable[[int], bool]


@dataclass(frozen=True, slots=True)
class Wanted:
    """The new tables that are taken in: by schema and name, and those that can be replicated. ``copies``: whether
    tables whose partitions come or go with rows are copied by themselves. ``ignored``: the events that filters ignore,
    by schema and name."""

    named: Callable[[str, str], bool]
    takes: Callable[[TableRecord], bool]
    copies: bool = True
    ignored: Callable[[str, str], Collection[str]] = lambda schema, name: ()

    def named_or(self, joining: Collection[tuple[str, str]]) -> Callable[[str, str], bool]:
        """Return what tells whether a name is wanted, or is one of ``joining``: the copy of that will have the rows of
        its partitions."""
        return lambda schema_name, name: (schema_name, name) in joining or self.named(schema_name, name)


def for_ours(tables: Collection[int], parents: Mapping[int, int], matches: Matches) -> list[int]:
    """The tables that a publication of ours has to send."""
    return [table for table in tables if matches(table) and not any(map(matches, _above(table, parents)))]


def for_theirs(tables: Collection[int], catalog: Catalog, name: str, matches: Matches) -> list[int]:
    """The tables that the publication sends, of those that are wanted. A partitioned table without partitions has no
    rows; those that it gets are sent as new tables.

    :raises SourceConfigError: a table is wanted and not sent, or sent under a name that is not wanted.
    """
    sent = {table for table in tables if catalog.ways(table)}
    chosen = [table for table in tables if table in sent and matches(table)]
    covered = set(chosen)
    for table in chosen:
        covered.update(_above(table, catalog.parents))
    lacking: list[int] = []
    for table in tables:
        if not matches(table) or table in covered or covered.intersection(_above(table, catalog.parents)):
            continue
        if not (catalog.is_empty_tree(table) and catalog.is_published(table)):
            if reason := _sent_otherwise(table, sent, catalog, name):
                raise SourceConfigError(reason)
            lacking.append(table)
    if roots := [table for table in lacking if not set(_above(table, catalog.parents)).intersection(lacking)]:
        raise SourceConfigError(_lacks(name, [catalog.tables[table].qualified_name for table in roots]))
    return chosen


def _lacks(name: str, lacking: Sequence[str]) -> str:
    shown, rest = ", ".join(lacking[:_NAMED_MAX]), len(lacking) - _NAMED_MAX
    others = f" and {rest} other tables" if rest > 0 else ""
    return (
        f"publication {name} lacks {shown}{others}; run: ALTER PUBLICATION {name} ADD TABLE {shown}; or leave tables "
        f"out by filter rules: !{lacking[0]}"
    )


def _sent_otherwise(table: int, sent: Collection[int], catalog: Catalog, name: str) -> str:
    """Return how its rows are sent under another name; empty if they are not."""
    shown = catalog.tables[table].qualified_name
    if above := [one for one in _above(table, catalog.parents) if one in sent]:
        return (
            f"publication {name} sends the rows of {shown} as rows of {catalog.tables[above[0]].qualified_name}; name "
            "that table in the filter rules, or SET (publish_via_partition_root = false)"
        )
    if any(table in _above(one, catalog.parents) for one in sent):
        return (
            f"publication {name} sends the rows of {shown} as rows of its partitions; name those in the filter rules, "
            "or SET (publish_via_partition_root = true)"
        )
    return ""


def _above(table: int, parents: Mapping[int, int]) -> list[int]:
    """Return its parents in the tree of partitions, up to the root."""
    found: list[int] = []
    while table in parents:
        table = parents[table]
        found.append(table)
    return found

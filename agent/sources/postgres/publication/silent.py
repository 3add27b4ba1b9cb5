"""Silent tables: finds tables with rows that the stream is to send and has not named.

A partition that is detached keeps its rows, which were sent under its root's name. A table that is attached to a root
without rows makes that a table with rows. The stream names neither before its next row, which may never come.
"""

from collections.abc import Callable, Collection, Iterator

from agent.sources.postgres.publication import losses
from agent.sources.postgres.publication.newcomers import Newcomers, late
from agent.sources.postgres.publication.partitions import Partitions
from agent.sources.postgres.publication.proof import Proof


def old_leaves(before: Proof | None) -> set[int]:
    """Return the partitions that were there at a proof."""
    return {leaf for leaves in before.leaves.values() for leaf in leaves} if before else set()


def find(
    asked: Newcomers, partitions: Partitions, known: Collection[int], wants: Callable[[str, str], bool]
) -> Iterator[tuple[int, str]]:
    """Yield the tables that none of ``known`` is, and that ``wants`` selects by schema and name, each with the reason
    why its rows are in no stream."""
    now = asked.now
    detached = old_leaves(asked.before) - now.parents.keys()
    for table_id in {*detached, *losses.roots(now)}.intersection(now.tables).difference(known):
        relation = now.tables[table_id]
        if not now.ways(table_id) or not wants(relation.schema_name, relation.name):
            continue
        if relation.is_partitioned:
            if trouble := partitions.trouble_of_arrivals(table_id):
                yield table_id, f"table {relation.qualified_name} {trouble}; {losses.CURE}"
        elif asked.has_rows(relation):
            yield table_id, late(now, table_id)

"""Partitions: finds those that came or went with rows that are in no stream, in tables sent under their root's name.

What is attached may bring rows, what is detached or dropped takes some away, and a TRUNCATE of one partition alone is
not sent at all. A partition with another file was emptied or rewritten; if it still has a row of before, or the
stream has a TRUNCATE of the whole table, it is complete. The file of a new table has the table's own number, so one
that was emptied since it was created has another; what was attached may have had another file before.

Of a partition that came and went between two readings the catalog shows nothing. But the stream names it in front of
its first row (``sightings``). It names it again behind a TRUNCATE that leaves no other file, which is one in the
transaction that made the partition, or emptied its root; unless the partition has no index: then the numbers of the
transaction's commands are compared.

``ALTER COLUMN … TYPE`` of the root rewrites every partition. One that has rows of the rewrite was not emptied behind
it, and if it was emptied before, and filled, the stream has declared it with the old type in between.

A table that flows may be attached and detached between two readings. Its rows of that time are in the stream as those
of the other table, and the TRUNCATE of a partition alone is not; but both alter the catalog's rows of all its columns,
and leave these as they were.

A partition is known to be empty if its file had no page at the last reading, and the stream has had no row of it since.
It may be dropped, detached, attached again without rows, or truncated: the stream lacks nothing.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from agent.sources.postgres.publication.choosing import Wanted
from agent.sources.postgres.publication.newcomers import Newcomers
from agent.sources.postgres.publication.published import Relation
from agent.sources.postgres.publication.sightings import PartitionSighting, Shape, Sightings
from agent.sources.postgres.server import xids
from reactor.ids import Ts
from reactor.records.changefeed import DROP_PARTITION, TRUNCATE_PARTITION


@dataclass(frozen=True, slots=True)
class Partitions:
    """``was_truncated``: whether the stream has a TRUNCATE of the table behind the last proof, by this transaction; it
    is asked to have come as far as the log was when the catalog was read. ``sightings``: of transactions that the
    catalog shows. ``writers``: of a partition, which transactions that it may not show had its first rows.
    ``seen``: what the stream has shown. ``retyped``: see ``Rewrites``. ``wanted``: which ends of partitions
    filters ignore."""

    asked: Newcomers
    was_truncated: Callable[[int, Ts, int | None], bool]
    sightings: Collection[PartitionSighting] = ()
    writers: Callable[[int], Collection[int]] = lambda _: ()
    seen: Sightings | None = None
    retyped: Callable[[int], Shape] = lambda _: frozenset()
    wanted: Wanted | None = None

    def trouble(self, root: int) -> str:
        """Why rows of the table may be in no stream; empty where none is."""
        before = self.asked.before.leaves.get(root)
        return "" if before is None else self._trouble(root, before)

    def guests(self) -> set[int]:
        """Return the tables that were partitions for a while: the stream has rows of them under a root's name, and they
        are no partitions of that root now."""
        leaves = {root: self.asked.now.leaves(root) for root in {one.root for one in self.sightings}}
        return {one.leaf for one in self.sightings if one.leaf not in leaves[one.root]}

    def trouble_of_new(self, root: int) -> str:
        """Like ``trouble``, for a table that the stream has named since the last proof."""
        return self._trouble(root, self.asked.before.leaves.get(root, {}))

    def _trouble(self, root: int, before: Mapping[int, int]) -> str:
        now, ignored = self.asked.now.leaves(root), self._ignored(root)
        if DROP_PARTITION not in ignored and not all(map(self._had_no_rows, before.keys() - now.keys())):
            return "has lost a partition (detached or dropped): no event of the stream names the rows that went"
        if self._came_again(root, set(before)):
            return "has had a partition detached and attached again: what became of its rows meanwhile is in no stream"
        new = now.keys() - before.keys()
        if trouble := self._trouble_of_arrivals(root, new):
            return trouble
        if TRUNCATE_PARTITION not in ignored and (trouble := self._trouble_of_emptied(root, before, new)):
            return trouble
        for sighting in self.sightings:
            if sighting.root == root and (trouble := self._trouble_of(sighting, before, ignored)):
                return trouble
        return ""

    def _trouble_of_emptied(self, root: int, before: Mapping[int, int], new: Collection[int]) -> str:
        now, tables = self.asked.now.leaves(root), self.asked.now.tables
        emptied = [tables[leaf] for leaf in new if self._has_new_file(leaf)]
        emptied += [tables[leaf] for leaf, file in before.items() if now.get(leaf, file) != file]
        emptied = [relation for relation in emptied if not self._had_no_rows(relation.table_id)]
        retyped = self.retyped(root) if emptied and not new else frozenset()
        if retyped and all(self._is_only_retyped(relation, retyped) for relation in emptied):
            return ""
        for relation in emptied:
            has_old_rows = relation.table_id in before and self.asked.has_old_rows(relation)
            if not has_old_rows and not self._was_truncated(root, emptied):
                return f"has had partition {relation.name} emptied or rewritten, which is in no stream"
        return ""

    def _ignored(self, root: int) -> Collection[str]:
        relation = self.asked.now.tables.get(root)
        return (
            () if self.wanted is None or relation is None else self.wanted.ignored(relation.schema_name, relation.name)
        )

    def trouble_of_arrivals(self, root: int) -> str:
        """Like ``trouble``, for a table that the stream has not named yet: only of partitions that came with rows."""
        new = self.asked.now.leaves(root).keys() - self.asked.before.leaves.get(root, {})
        return self._trouble_of_arrivals(root, new)

    def _trouble_of_arrivals(self, root: int, new: Collection[int]) -> str:
        for leaf in new:
            relation = self.asked.now.tables[leaf]
            if not self.asked.is_whole_partition(root, leaf, self._writers):
                return f"has got partition {relation.name} with rows, which are in no stream"
            if self.asked.rewriters(relation):
                return f"has got partition {relation.name}, whose rows were rewritten: that is in no stream"
        return ""

    def _is_only_retyped(self, relation: Relation, retyped: Shape) -> bool:
        """Return whether the partition has another file because its columns have other types, and for nothing else."""
        now, declared = self.asked.now, self._declarations(relation.table_id)
        if declared is None or not self.asked.has_rows(relation):
            return False
        writers = self.asked.rewriters(relation)
        return len(writers) == 1 and all(
            retyped <= shape and xids.near(xid, now.ahead) >= max(writers) for xid, shape in declared
        )

    def _had_no_rows(self, leaf: int) -> bool:
        """Return whether the partition had no row at the last proof, and the stream has had none since."""
        is_known = leaf in self.asked.before.empty and self._declarations(leaf) is not None
        return is_known and self.seen is not None and not self.seen.has_declared(leaf)

    def _declarations(self, leaf: int) -> list[tuple[int, Shape]] | None:
        """Return by whom, and how, the stream has declared the partition; None if that is not known."""
        if self.seen is None or any(one.leaf == leaf for one in self.asked.before.unseen):
            return None
        return self.seen.declarations(leaf, upto=self.asked.now.end_ts)

    def _trouble_of(self, sighting: PartitionSighting, before: Mapping[int, int], ignored: Collection[str]) -> str:
        """Return the trouble of a partition whose rows are in the stream."""
        leaf, now = sighting.leaf, self.asked.now
        if leaf not in now.leaves(sighting.root):
            # one of before is lost, which is found above
            is_new = leaf not in before and DROP_PARTITION not in ignored
            return "has had a partition with rows that came and went (detached or dropped)" if is_new else ""
        if TRUNCATE_PARTITION in ignored:
            return ""
        xid, relation = xids.near(sighting.xid, now.ahead), now.tables[leaf]
        made_by = now.xids[f"i{leaf}"]
        if xid <= made_by:  # a savepoint's number is above that of its transaction
            has_its_file = relation.file == leaf or relation.written_by <= made_by
        else:
            has_its_file = sighting.follows_truncate and relation.written_by == xid
        is_emptied = has_its_file and (sighting.times > 1 or not self.asked.has_rows(relation))
        if is_emptied or (has_its_file and self.asked.may_have_been_emptied(relation, xid)):
            return f"has had partition {relation.name} emptied in the transaction that filled it, which is in no stream"
        return ""

    def _writers(self, leaf: int) -> set[int]:
        """Return the transactions (32 bits) that are known to have written it as a partition."""
        return {sighting.xid for sighting in self.sightings if sighting.leaf == leaf}.union(self.writers(leaf))

    def _has_new_file(self, leaf: int) -> bool:
        """A partition that is new since the last proof was emptied or rewritten after it had become one."""
        relation = self.asked.now.tables[leaf]
        return relation.file != leaf and relation.written_by != self.asked.now.xids[f"i{leaf}"]

    def _was_truncated(self, root: int, emptied: Collection[Relation]) -> bool:
        """Return whether all were emptied at once, with the whole table: one whose file is newer than the others' was
        emptied by itself."""
        xid, *others = {leaf.written_by for leaf in emptied}
        return not others and self.was_truncated(root, self.asked.now.end_ts, xid)

    def _came_again(self, root: int, old: set[int]) -> bool:
        now = self.asked.now
        again = {
            leaf
            for leaf in old
            for at in now.lineage(leaf)
            if at != root and at in now.parents and not self.asked.before.has_seen(f"i{at}", now.xids[f"i{at}"])
        }
        return any(not self._had_no_rows(leaf) or self.asked.has_rows(now.tables[leaf]) for leaf in again)

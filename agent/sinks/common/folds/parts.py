"""Fold: the net changes of a flush task, as a whole or, if they are large, one part of the key space after another.

Large ones are laid down in scratch files by the hash of their keys, so memory does not grow with a transaction. Updates
that change a row's key and leave values out may need a row of another part: a range with such is folded as a whole, and
so is one with a TRUNCATE where versions are kept.
"""

import os
import pickle
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise
from typing import Final, Protocol

import pyarrow as pa

from agent.ports.sink import FlushTask
from agent.rows.changes import Changes
from agent.rows.fold import NetChanges, net_changes
from agent.rows.spans import by_span, incomplete_moves
from agent.rows.unify import after_truncate
from agent.rows.versions import Versions, versions
from agent.sinks.common import left_out
from agent.sinks.common.row_marks import NO_MARKS, Marks
from reactor.ids import TableSpan

#: bytes of changes that are folded as a whole
_WHOLE_BYTES: Final = 48 << 20
#: bytes of log per part, and the numbers of parts
_PART_BYTES: Final = 16 << 20
_PARTS_MIN, _PARTS_MAX = 8, 256
#: what a change takes besides its values
_ROW_BYTES: Final = 100


@dataclass(slots=True)
class Seen:
    """The result of a fold. ``columns``: the source's, the newest ones first."""

    rows: int = 0
    bytes: int = 0
    commit_time: float = 0.0
    is_truncated: bool = False
    columns: pa.Schema = field(default_factory=lambda: pa.schema([]))

    def note(self, part: Changes) -> None:
        self.rows += len(part)
        self.bytes += _size(part)
        self.commit_time = max(self.commit_time, part.commit_time)
        if len(part):
            newest = part.after.schema.remove_metadata()
            self.columns = pa.schema([*newest, *(item for item in self.columns if item.name not in newest.names)])


class Folded(Protocol):
    """May be iterated again after a commit that was refused."""

    @property
    def seen(self) -> Seen: ...

    def nets(self) -> Iterator[NetChanges]: ...

    def versions(self) -> Iterator[Versions]:
        """Of a history table, in place of ``nets``."""
        ...


@contextmanager
def folded(task: FlushTask, changes: Iterable[Changes], *, marks: Marks = NO_MARKS) -> Iterator[Folded]:
    """Fold the changes of one task. ``marks``: the columns that the sink adds.

    :raises LeftOutValueError: an update left out values that the table cannot have.
    """
    rest = iter(changes)
    first, is_large = _first(rest)
    if not is_large:
        yield _Whole.of(task, first, marks)
        return
    with tempfile.TemporaryDirectory(prefix="weir-large-", dir=_scratch()) as directory:
        parts = _Parts(directory, task, marks)
        for part in chain(_emptied(first), rest):
            parts.lay_down(part)
            del part  # free it before the next ones are read
        if parts.fits:
            yield parts
            return
    yield _Whole.of(task, list(changes), marks)


def _emptied(parts: list[Changes]) -> Iterator[Changes]:
    while parts:
        yield parts.pop(0)


@dataclass(frozen=True, slots=True, eq=False)
class _Whole:
    net: NetChanges
    found: Versions | None
    seen: Seen

    @classmethod
    def of(cls, task: FlushTask, parts: Sequence[Changes], marks: Marks) -> "_Whole":
        seen = Seen()
        for part in parts:
            seen.note(part)
        found = versions(parts, key=task.table.key) if marks.history else None
        net = found.net if found else net_changes(parts, key=task.table.key, keeps_deleted=marks.soft_delete)
        left_out.refuse_lost(net, task)
        seen.is_truncated = net.is_truncated
        return cls(net, found, seen)

    def nets(self) -> Iterator[NetChanges]:
        if len(self.net):
            yield self.net

    def versions(self) -> Iterator[Versions]:
        assert self.found is not None, "of a history table"
        yield self.found


class _Parts:
    """Changes in scratch files, by the part of the key space that their keys are in."""

    def __init__(self, directory: str, task: FlushTask, marks: Marks) -> None:
        self._directory = directory
        self._marks = marks
        self._task = task
        self._spans = _spans(task)
        self._is_cut = False
        self._is_divisible = True
        self.seen = Seen()

    @property
    def fits(self) -> bool:
        return self._is_divisible and not self._is_cut

    def lay_down(self, part: Changes) -> None:
        """Store changes in log order; a TRUNCATE voids what was stored before."""
        self.seen.note(part)
        rest, is_truncated = after_truncate([part])
        if is_truncated and self._marks.history:
            self._is_cut = True
        elif is_truncated:
            self.seen.is_truncated = self._is_divisible = True
            for number in range(len(self._spans)):
                with open(self._path(number), "wb"):
                    pass
        for each in rest:
            self._is_divisible &= not incomplete_moves(each, key=self._task.table.key).any()
            for number, rows in by_span(each, self._spans, key=self._task.table.key):
                with open(self._path(number), "ab") as file:
                    pickle.dump(rows, file, protocol=pickle.HIGHEST_PROTOCOL)

    def nets(self) -> Iterator[NetChanges]:
        for number in range(len(self._spans)):
            rows = list(self._laid_down(number))
            if not rows:
                continue
            net = net_changes(rows, key=self._task.table.key, keeps_deleted=self._marks.soft_delete)
            rows.clear()  # folded rows are copies
            left_out.refuse_lost(replace(net, lost=net.needed) if self.seen.is_truncated else net, self._task)
            yield net
            del net

    def versions(self) -> Iterator[Versions]:
        for number in range(len(self._spans)):
            rows = list(self._laid_down(number))
            if rows:
                found = versions(rows, key=self._task.table.key)
                rows.clear()
                left_out.refuse_lost(found.net, self._task)
                yield found
                del found

    def _laid_down(self, number: int) -> Iterator[Changes]:
        if os.path.exists(self._path(number)):
            with open(self._path(number), "rb") as file:
                while file.peek(1):
                    yield pickle.load(file)

    def _path(self, number: int) -> str:
        return os.path.join(self._directory, f"changes-{number}")


def _first(changes: Iterator[Changes]) -> tuple[list[Changes], bool]:
    """Return all changes, or enough to show that there are too many."""
    first, size = [], 0
    for part in changes:
        first.append(part)
        size += _size(part)
        if size > _WHOLE_BYTES:
            return first, True
    return first, False


def _size(part: Changes) -> int:
    return int(part.after.nbytes + (0 if part.before is None else part.before.nbytes) + _ROW_BYTES * len(part))


def _spans(task: FlushTask) -> list[TableSpan]:
    size = sum(item.bytes for item in task.segments)
    count = max(_PARTS_MIN, min(size // _PART_BYTES, _PARTS_MAX))
    start, width = task.span.start, task.span.end - task.span.start
    bounds = [start + width * at // count for at in range(count + 1)]
    return [TableSpan(task.span.table_id, first, end) for first, end in pairwise(bounds)]


def _scratch() -> str | None:
    """Return Spark's directory for scratch files."""
    return os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or None

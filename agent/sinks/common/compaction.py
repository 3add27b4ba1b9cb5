"""Compaction plan: which data files of a table are rewritten together, and where rows are afterwards.

Small files are joined, and files that have lost rows are rewritten without them, until a file is about as large as is
wanted. Formats read and write the files; a row that is deleted while its file is rewritten is deleted in the new file
(``moved``), so that no flush has to wait.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

Positions = npt.NDArray[np.int64]

#: a file from this share of the wanted size on is large enough
_LARGE_SHARE: Final = 0.75
#: a file is left out that is so many times as large as all others together
_ALONE: Final = 4


@dataclass(frozen=True, slots=True)
class Candidate:
    """A data file. ``deleted``: of its ``rows``."""

    path: str
    bytes: int
    rows: int
    deleted: int

    @property
    def lost_share(self) -> float:
        return self.deleted / self.rows if self.rows else 0.0

    @property
    def live_bytes(self) -> float:
        return self.bytes * (1 - self.lost_share)


@dataclass(frozen=True, slots=True)
class Plan:
    """``target_bytes``: of a file. ``files_min``: fewer small files wait for others. ``lost_share``: of its rows, from
    which on a file is rewritten. ``budget_bytes``: of files that are rewritten in one go."""

    target_bytes: int
    files_min: int = 8
    lost_share: float = 0.1
    budget_bytes: float = 512 << 20

    def thorough(self) -> "Plan":
        """Return the plan of somebody who waits for it."""
        return Plan(self.target_bytes, files_min=2, lost_share=0.02, budget_bytes=float("inf"))

    def groups_of(self, partitions: Iterable[Sequence[Candidate]]) -> Iterator[list[Candidate]]:
        """As ``groups``, of files that are joined only within their partition."""
        rest = self.budget_bytes
        for files in partitions:
            for group in replace(self, budget_bytes=rest).groups(files):
                yield group
                rest -= sum(item.bytes for item in group)
            if rest <= 0:
                return

    def groups(self, files: Sequence[Candidate]) -> Iterator[list[Candidate]]:
        """Yield the files that become one each, in their order."""
        group, rest = list[Candidate](), self.budget_bytes
        for file in files:
            if file.live_bytes >= _LARGE_SHARE * self.target_bytes and not self._is_thin(file):
                continue
            group.append(file)
            if sum(item.live_bytes for item in group) >= self.target_bytes:
                if len(group) > 1 or self._is_thin(group[0]):
                    yield group
                    rest -= sum(item.bytes for item in group)
                    if rest <= 0:
                        return
                group = []
        group = self._without_large(group)
        if len(group) >= self.files_min or any(self._is_thin(item) for item in group):
            yield group

    def _is_thin(self, file: Candidate) -> bool:
        return file.deleted > 0 and file.lost_share >= self.lost_share

    def _without_large(self, group: list[Candidate]) -> list[Candidate]:
        """A file is not rewritten again and again because of a few small ones."""
        stays = list(group)
        while len(stays) > self.files_min > 2:
            largest = max(stays, key=lambda item: item.live_bytes)
            others = sum(item.live_bytes for item in stays) - largest.live_bytes
            if self._is_thin(largest) or largest.live_bytes <= _ALONE * others:
                break
            stays.remove(largest)
        return stays


def moved(rewritten: Sequence[tuple[int, Positions]], now: Sequence[Positions]) -> Positions:
    """Return the rows of a new file that were deleted while it was written. ``rewritten``: of each old file, in their
    order, its rows and those that were deleted before (positions that rise); ``now``: all that are deleted."""
    found, begin = [np.empty(0, np.int64)], 0
    for (rows, before), after in zip(rewritten, now, strict=True):
        new = np.setdiff1d(after, before, assume_unique=True)
        found.append(begin + new - np.searchsorted(before, new))
        begin += rows - len(before)
    return np.concatenate(found)

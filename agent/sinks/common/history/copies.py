"""History copy: what a copy of its source changes in a history table: the current versions that end, and the new ones.

Rows are compared as wholes, by digests of their values (``agent.kernels.key_digest``): a current version that the copy
has too stays as it is. Memory holds some millions of digests at a time, so large tables are read several times, once
for each part of the digests.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from agent.kernels.key_digest import Digests, new_secret
from agent.rows.unify import Mask
from agent.sinks.common.row_digests import KEYS_MAX, Part, contains, row_digests

T = TypeVar("T")


class Ended(NamedTuple, Generic[T]):
    """Current versions that the copy lacks: of the piece of the table that ``where`` names."""

    where: T
    rows: pa.Table
    mask: Mask


class Kept(NamedTuple):
    """Current versions that the copy has too."""

    rows: pa.Table


def differences(
    stored: Callable[[], Iterable[tuple[T, pa.Table]]],
    copied: Callable[[], Iterable[pa.Table]],
    columns: Sequence[str],
    *,
    rows: int,
) -> Iterator[pa.Table | Ended[T] | Kept]:
    """Yield rows of the copy that the table lacks, versions of the table that the copy lacks, and those that it has.

    ``stored``: the current versions; ``columns``: those that are compared, of both; ``rows``: of both together.
    """
    secret, parts = new_secret(), -(-rows // KEYS_MAX) or 1
    for number in range(parts):
        among = Part(number, parts)
        ours = _sorted(among, (row_digests(piece, columns, secret) for _, piece in stored()))
        theirs = _sorted(among, (row_digests(piece, columns, secret) for piece in copied()))
        for piece in copied():
            mask = _missing(among, ours, row_digests(piece, columns, secret))
            if mask.any():
                yield piece.filter(pa.array(mask))
        for where, piece in stored():
            digests = row_digests(piece, columns, secret)
            mask = _missing(among, theirs, digests)
            if mask.any():
                yield Ended(where, piece, mask)
            yield Kept(piece.filter(pa.array(among.mask(digests) & ~mask)))


def _sorted(among: Part, found: Iterable[Digests]) -> Digests:
    digests = np.concatenate([np.zeros((0, 2), np.uint64), *map(among.of, found)])
    return digests[np.argsort(digests[:, 0])]


def _missing(among: Part, known: Digests, digests: Digests) -> Mask:
    mask = among.mask(digests)
    mask[mask] = ~contains(known, digests[mask])
    return mask

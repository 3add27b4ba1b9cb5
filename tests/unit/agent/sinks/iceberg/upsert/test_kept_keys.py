"""Keys of small files that are kept: each row of a key is found, as in the file itself, also where hashes collide."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.kernels.key_hash import key_hash
from agent.sinks.common.keys.kept import KeptByBytes
from agent.sinks.iceberg.upsert import kept_keys
from agent.sinks.iceberg.upsert.kept_keys import FileKeys

_SCHEMA = pa.schema([("a", pa.int64()), ("b", pa.string())])
_ROWS = st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["", "x", None])), max_size=30)


def _table(rows: list[tuple[Any, ...]]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip("ab", row, strict=True)) for row in rows], schema=_SCHEMA)


@given(_ROWS, _ROWS, st.integers(0, 30), st.sampled_from([1, 3, 1 << 63]))
def test_every_row_of_a_hash_is_found(
    rows: list[tuple[Any, ...]], wanted: list[tuple[Any, ...]], cut: int, collisions: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        inner = key_hash
        patch.setattr(kept_keys, "key_hash", lambda *given: inner(*given) % np.uint64(collisions))
        parts = [_table(rows[:cut]), _table(rows[cut:])]
        keys = FileKeys.of(parts, _SCHEMA)
        hashes = np.unique(kept_keys.hashes_of(_table(wanted)))
        places, which = keys.alike(hashes)
        stored = kept_keys.hashes_of(_table(rows))
    assert places.tolist() == [at for at, found in enumerate(stored) if found in hashes]
    assert hashes[which].tolist() == stored[places].tolist()
    assert keys.rows.equals(_table(rows))


def test_those_used_last_are_kept() -> None:
    read = list[str]()

    def of(name: str) -> FileKeys:
        read.append(name)
        return FileKeys.of([_table([(1, "x")])], _SCHEMA)

    kept = KeptByBytes[FileKeys](2 * of("size").nbytes)
    for name in ("a", "b", "a", "c", "a", "b"):
        kept.get(name, lambda name=name: of(name))  # type: ignore[misc]
    assert read == ["size", "a", "b", "c", "b"]

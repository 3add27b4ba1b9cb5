"""Bitmaps that another writer has made of anything: a few bytes take no memory, and are an error that is expected."""

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.errors import TableHeldError
from agent.sinks.common.bitmaps import roaring
from agent.sinks.delta.table import deletion_vectors

_HEAD = struct.pack("<IQI", 1681511377, 1, 0)


@given(places=st.sets(st.integers(0, (1 << 32) - 1), max_size=50))
def test_there_and_back(places: set[int]) -> None:
    found = roaring.decode(roaring.encode(np.array(sorted(places), np.int64)))
    assert found is not None
    assert set(found.tolist()) == places


@given(data=st.binary(max_size=60), head=st.sampled_from([b"", _HEAD, _HEAD + struct.pack("<I", 12347 | 3 << 16)]))
def test_any_bytes(data: bytes, head: bytes) -> None:
    try:
        roaring.decode(head + data)
    except (ValueError, struct.error):
        return


def test_runs_that_overlap_and_more_positions_than_rows_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roaring, "_POSITIONS_MAX", 1 << 17)

    def runs(containers: int, count: int) -> bytes:
        flags = b"\xff" * ((containers + 7) // 8)
        heads = b"".join(struct.pack("<HH", key, 0xFFFF) for key in range(containers))
        offsets = b"\0" * 4 * containers if containers >= 4 else b""
        body = struct.pack("<H", count) + struct.pack("<HH", 0, 0xFFFF) * count
        return _HEAD + struct.pack("<I", 12347 | containers - 1 << 16) + flags + heads + offsets + body * containers

    whole = roaring.decode(runs(2, 1))
    assert whole is not None
    assert whole.tolist() == list(range(1 << 17))
    with pytest.raises(ValueError, match="runs overlap"):
        roaring.decode(runs(1, 60_000))
    with pytest.raises(ValueError, match="too many positions"):
        roaring.decode(runs(3, 1))


@given(
    descriptor=st.fixed_dictionaries(
        {"storageType": st.just("i")},
        optional={
            "pathOrInlineDv": st.none() | st.integers() | st.text(max_size=20) | st.text("0123456789", max_size=40),
            "sizeInBytes": st.none() | st.integers(),
        },
    )
)
def test_any_vector_of_a_delta_log(descriptor: dict[str, object]) -> None:
    try:
        deletion_vectors.decode(descriptor)
    except TableHeldError:
        return

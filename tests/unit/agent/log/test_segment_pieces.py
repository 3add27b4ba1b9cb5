"""Events of a segment are decoded some at a time: all of them, in their order, none twice."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.log import segment
from agent.rows.schema import LOG_BATCH


@given(events=st.lists(st.binary(max_size=20), max_size=30), size=st.integers(1, 100), cut=st.integers(0, 5))
def test_the_pieces_are_the_whole(events: list[bytes], size: int, cut: int) -> None:
    places = pa.array(range(len(events)), pa.int64())
    batch = pa.RecordBatch.from_arrays([places, places, pa.array(events, pa.large_binary())], schema=LOG_BATCH)
    wanted = batch.slice(min(cut, len(events)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segment, "_PIECE_BYTES", size)
        pieces = list(segment._pieces(wanted))
    assert [row for piece in pieces for row in piece.to_pylist()] == wanted.to_pylist()
    assert all(piece.num_rows for piece in pieces)
    assert all(sum(map(len, piece["event"].to_pylist())) <= 2 * size + 20 for piece in pieces)

"""Row hashes are those of the databases that they are compared with."""

import zlib

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from agent.kernels import row_hash


@given(st.lists(st.binary(max_size=40), max_size=20))
def test_crc_of_bytes_is_zlibs(values: list[bytes]) -> None:
    found = row_hash.crc_squares(pa.array(values, pa.binary()))
    assert found.tolist() == [zlib.crc32(value) ** 2 for value in values]


def test_null_has_no_hash_and_a_slice_is_read_from_its_place() -> None:
    column = pa.array(["a", None, "bc", "d" * 30])
    hashes = row_hash.hash_bytes(column)
    assert hashes[1] == 0
    assert row_hash.hash_bytes(column.slice(2)).tolist() == hashes[2:].tolist()
    assert row_hash.hash_words(pa.array([5, None], pa.int32()))[1] == 0
    assert len(set(hashes.tolist())) == 4


def test_two_rows_that_exchange_a_value_have_another_sum() -> None:
    """The hash of a row is linear in its columns; only what finishes it is not."""

    def total(texts: list[str]) -> int:
        numbers = row_hash.hash_words(pa.array([1, 2], pa.int32()))
        rows = row_hash.combine(numbers, row_hash.hash_bytes(pa.array(texts)))
        return int(row_hash.finish(rows).sum(dtype=np.uint64))

    assert total(["x", "y"]) != total(["y", "x"])

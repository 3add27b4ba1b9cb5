"""Key digests: equal to SipHash as it is published, and different for different keys."""

import struct
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.kernels.key_digest import key_digests

_SECRET = bytes(range(16))
_ALL = (1 << 64) - 1


def siphash(message: bytes, secret: bytes) -> tuple[int, int]:
    """SipHash-2-4 with 128 bits, byte by byte as its authors describe it."""
    k0, k1 = struct.unpack("<QQ", secret)
    v = [0x736F6D6570736575 ^ k0, 0x646F72616E646F6D ^ k1 ^ 0xEE, 0x6C7967656E657261 ^ k0, 0x7465646279746573 ^ k1]

    def left(x: int, bits: int) -> int:
        return (x << bits | x >> (64 - bits)) & _ALL

    def rounds(count: int) -> None:
        for _ in range(count):
            v[0] = (v[0] + v[1]) & _ALL
            v[1] = left(v[1], 13) ^ v[0]
            v[0] = left(v[0], 32)
            v[2] = (v[2] + v[3]) & _ALL
            v[3] = left(v[3], 16) ^ v[2]
            v[0] = (v[0] + v[3]) & _ALL
            v[3] = left(v[3], 21) ^ v[0]
            v[2] = (v[2] + v[1]) & _ALL
            v[1] = left(v[1], 17) ^ v[2]
            v[2] = left(v[2], 32)

    rest = len(message) % 8
    padded = message + bytes(7 - rest) + bytes([len(message) % 256])
    for (word,) in struct.iter_unpack("<Q", padded):
        v[3] ^= word
        rounds(2)
        v[0] ^= word
    v[2] ^= 0xEE
    rounds(4)
    first = v[0] ^ v[1] ^ v[2] ^ v[3]
    v[1] ^= 0xDD
    rounds(4)
    return first, v[0] ^ v[1] ^ v[2] ^ v[3]


def test_the_reference_is_the_published_one() -> None:
    """The first vector of the authors' own test."""
    assert struct.pack("<QQ", *siphash(b"", _SECRET)).hex() == "a3817f04ba25a8e66df67214c7550293"


@pytest.mark.parametrize("values", [[5], [-1, 2**63 - 1], [0] * 40])
def test_integers_are_digested_as_siphash_has_it(values: list[int]) -> None:
    columns = {f"c{at}": pa.array([value], pa.int64()) for at, value in enumerate(values)}
    message = b"".join(struct.pack("<Qq", 1, value) for value in values)
    assert tuple(key_digests(pa.table(columns), _SECRET)[0].tolist()) == siphash(message, _SECRET)


_texts = st.lists(st.one_of(st.none(), st.text(max_size=20)), min_size=1, max_size=3)


@given(st.lists(_texts, min_size=2, max_size=8))
def test_different_texts_have_different_digests(rows: list[list[str | None]]) -> None:
    width = max(map(len, rows))
    unique = sorted({tuple(row + [None] * (width - len(row))) for row in rows}, key=repr)
    table = pa.table({f"c{at}": pa.array([row[at] for row in unique], pa.string()) for at in range(width)})
    found = key_digests(table, _SECRET)
    assert len({tuple(row) for row in found.tolist()}) == len(unique)
    # a row's digest is the same wherever it is
    parts = [key_digests(table.slice(at, end - at), _SECRET) for at, end in pairwise(range(len(unique) + 1))]
    assert np.array_equal(np.concatenate(parts), found)


def test_null_is_no_value() -> None:
    for kind in (pa.int64(), pa.string(), pa.float64(), pa.decimal128(30, 2), pa.bool_()):
        found = key_digests(pa.table({"k": pa.array([None, 0], pa.int64()).cast(kind)}), _SECRET)
        assert found[0].tolist() != found[1].tolist()


def test_zeros_are_one_key() -> None:
    found = key_digests(pa.table({"k": [0.0, -0.0]}), _SECRET)
    assert found[0].tolist() == found[1].tolist()


def test_another_secret_gives_other_digests() -> None:
    table = pa.table({"k": ["a"]})
    assert key_digests(table, _SECRET).tolist() != key_digests(table, bytes(16)).tolist()

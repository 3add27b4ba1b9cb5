"""Key digest: maps a row's key to 128 bits that stand for it, under a secret.

The function is SipHash-2-4 with 128 bits of output (Aumasson and Bernstein, https://www.aumasson.jp/siphash/), which
nobody who does not know the secret can make collide. Among 10^12 keys two have one digest with a probability of 10^-15.
Its input are 64-bit words, for each key column in order:

- of a bool, an integer, a date, a time, a timestamp: whether it is not NULL, and the value; of a float, of a decimal:
  likewise, with the words of ``key_hash``;
- of a text, of bytes: the length and one, or 0 for NULL; then every 8 bytes as a little-endian word.

A key has one such input, and no two keys have the same. Digests are kept in caches only, and may change.
"""

import secrets
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from numba import types

from agent.kernels.jit import DATA, inlined, kernel
from agent.kernels.key_hash import bytes_of, words_of

Digests = npt.NDArray[np.uint64]

SECRET_BYTES: Final = 16
_STATES = types.Array(types.uint64, 2, "C")
_WORDS = types.Array(types.uint64, 1, "C", readonly=True)
_VALID = types.Array(types.boolean, 1, "C", readonly=True)
_OFFSETS = types.Array(types.int64, 1, "C", readonly=True)
#: the constants of SipHash
_INITIAL: Final = (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)


def new_secret() -> bytes:
    return secrets.token_bytes(SECRET_BYTES)


@inlined
def _turned(x: Any, bits: Any) -> Any:
    return (x << np.uint64(bits)) | (x >> np.uint64(64 - bits))


@inlined
def _round(states: Any, row: Any) -> None:
    a, b, c, d = states[row, 0], states[row, 1], states[row, 2], states[row, 3]
    a += b
    b = _turned(b, 13) ^ a
    a = _turned(a, 32)
    c += d
    d = _turned(d, 16) ^ c
    a += d
    d = _turned(d, 21) ^ a
    c += b
    b = _turned(b, 17) ^ c
    c = _turned(c, 32)
    states[row, 0], states[row, 1], states[row, 2], states[row, 3] = a, b, c, d


@inlined
def _take(states: Any, row: Any, word: Any) -> None:
    states[row, 3] ^= word
    _round(states, row)
    _round(states, row)
    states[row, 0] ^= word


@kernel(types.void(_STATES, _WORDS))
def _take_words(states: Any, words: Any) -> None:
    for row in range(states.shape[0]):
        _take(states, row, words[row])


@kernel(types.void(_STATES, DATA, _OFFSETS, _VALID))
def _take_bytes(states: Any, data: Any, offsets: Any, valid: Any) -> None:
    for row in range(states.shape[0]):
        if not valid[row]:
            _take(states, row, np.uint64(0))
            continue
        first, end = offsets[row], offsets[row + 1]
        _take(states, row, np.uint64(end - first + 1))
        word, filled = np.uint64(0), 0
        for at in range(first, end):
            word |= np.uint64(data[at]) << np.uint64(8 * filled)
            filled += 1
            if filled == 8:
                _take(states, row, word)
                word, filled = np.uint64(0), 0
        if filled:
            _take(states, row, word)


@kernel(types.void(_STATES, types.uint64, _STATES))
def _finish(states: Any, last: Any, digests: Any) -> None:
    for row in range(states.shape[0]):
        _take(states, row, last)
        states[row, 2] ^= np.uint64(0xEE)
        for half in range(2):
            for _ in range(4):
                _round(states, row)
            digests[row, half] = states[row, 0] ^ states[row, 1] ^ states[row, 2] ^ states[row, 3]
            states[row, 1] ^= np.uint64(0xDD)


def key_digests(keys: pa.Table | pa.RecordBatch, secret: bytes) -> Digests:
    """Return the digests of rows of key columns: two words for each row."""
    parts = [_digests(batch, secret) for batch in _batches(keys)]
    return np.concatenate([np.zeros((0, 2), np.uint64), *parts])


def _batches(keys: pa.Table | pa.RecordBatch) -> Sequence[pa.RecordBatch]:
    return [keys] if isinstance(keys, pa.RecordBatch) else keys.to_batches()


def _digests(batch: pa.RecordBatch, secret: bytes) -> Digests:
    rows = batch.num_rows
    first, second = np.frombuffer(secret, "<u8").tolist()
    initial = [one ^ other for one, other in zip(_INITIAL, (first, second, first, second), strict=True)]
    initial[1] ^= 0xEE  # as the form of 128 bits has it
    states = np.empty((rows, 4), np.uint64)
    states[:] = initial
    count = 0
    for column in batch.columns:
        valid = column.is_valid().to_numpy(zero_copy_only=False)
        if pa.types.is_string(column.type) or pa.types.is_binary(column.type):
            _take_bytes(states, *bytes_of(column), valid)
            continue
        for words in (valid.astype(np.uint64), *words_of(column)):
            _take_words(states, np.where(valid, words, np.uint64(0)))
            count += 8
    digests = np.empty((rows, 2), np.uint64)
    _finish(states, count % 256 << 56, digests)
    return digests

"""Decompression of zlib data from a server, limited to the announced length. Pure."""

import zlib


def inflate(data: bytes, length: int, *, is_raw: bool = False) -> bytes:
    """Return ``length`` decompressed bytes; ``is_raw``: without zlib header.

    :raises zlib.error: the data is damaged, or of another length.
    """
    inflater = zlib.decompressobj(-zlib.MAX_WBITS if is_raw else zlib.MAX_WBITS)
    plain = inflater.decompress(data, length + 1)
    if len(plain) != length or not inflater.eof:
        raise zlib.error("compressed bytes are cut off, or of another length than they say")
    return plain

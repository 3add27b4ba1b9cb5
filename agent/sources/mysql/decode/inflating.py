"""Inflating of zlib data from a server, without room for more than the server says it is. Pure."""

import zlib


def inflate(data: bytes, length: int, *, is_raw: bool = False) -> bytes:
    """``length`` bytes; ``is_raw``: zlib's header is missing.

    :raises zlib.error: they are damaged, or not as many.
    """
    inflater = zlib.decompressobj(-zlib.MAX_WBITS if is_raw else zlib.MAX_WBITS)
    plain = inflater.decompress(data, length + 1)
    if len(plain) != length or not inflater.eof:
        raise zlib.error("compressed bytes are cut off, or of another length than they say")
    return plain

"""Identifiers: converts uuid, inet4 and inet6, which a sink stores as the text that the server prints. By value. Pure.

Texts are only converted in the usual spelling: servers also take others, and put NULL for what is none in lax mode.
"""

import re
import socket
from collections.abc import Callable
from typing import Final
from uuid import UUID

from agent.sources.mysql.decode import addresses
from agent.sources.mysql.decode.types import Kind
from agent.sources.mysql.retyping.numbers import UnfitError

KINDS: Final = frozenset({Kind.UUID, Kind.INET4, Kind.INET6})
_SIZES: Final = {Kind.UUID: 16, Kind.INET4: 4, Kind.INET6: 16}
_UUID: Final = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", re.ASCII)
_BYTE: Final = r"(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_INET4: Final = re.compile(rf"{_BYTE}(?:\.{_BYTE}){{3}}", re.ASCII)
_INET6: Final = re.compile(r"[0-9a-fA-F:]+(?:[0-9]+(?:\.[0-9]+){3})?", re.ASCII)


def of_text(kind: Kind) -> Callable[[str], str]:
    """Return the conversion from a text."""

    def uuid(value: str) -> str:
        if not _UUID.fullmatch(value):
            raise UnfitError("a text that is not a uuid in its usual spelling")
        return value.lower()

    def inet4(value: str) -> str:
        if not _INET4.fullmatch(value):
            raise UnfitError("a text that is not an IPv4 address in its usual spelling")
        return value

    return {Kind.UUID: uuid, Kind.INET4: inet4, Kind.INET6: _inet6}[kind]


def packed(kind: Kind) -> Callable[[str], bytes]:
    """Return the conversion to the stored bytes."""
    if kind is Kind.UUID:
        return lambda value: bytes.fromhex(value.replace("-", ""))
    family = socket.AF_INET if kind is Kind.INET4 else socket.AF_INET6
    return lambda value: socket.inet_pton(family, value)


def of_bytes(kind: Kind) -> Callable[[bytes], str]:
    """Return the conversion from bytes, which have to be as many as are stored."""

    def unpacked(value: bytes) -> str:
        if len(value) != _SIZES[kind]:
            raise UnfitError(f"bytes that are not the {_SIZES[kind]} of the type")
        if kind is Kind.UUID:
            return str(UUID(bytes=value))
        return addresses.inet4(value) if kind is Kind.INET4 else addresses.inet6(value)

    return unpacked


def _inet6(value: str) -> str:
    if _INET6.fullmatch(value):
        try:
            return addresses.inet6(socket.inet_pton(socket.AF_INET6, value))
        except OSError:
            pass
    raise UnfitError("a text that is not an IPv6 address in its usual spelling")

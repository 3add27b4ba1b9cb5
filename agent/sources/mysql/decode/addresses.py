"""IP addresses: the text that MariaDB prints of a stored ``inet4`` or ``inet6``. Pure."""

import socket


def inet4(value: bytes) -> str:
    """:raises ValueError: it has not four bytes."""
    return socket.inet_ntop(socket.AF_INET, value)


def inet6(value: bytes) -> str:
    """Return the text: the longest row of zero groups becomes ``::``, also a single group, which ``inet_ntop`` keeps.

    :raises ValueError: it has not 16 bytes.
    """
    text = socket.inet_ntop(socket.AF_INET6, value)
    groups = text.split(":")
    if "::" in text or "0" not in groups:
        return text
    at = groups.index("0")
    return f"{':'.join(groups[:at])}::{':'.join(groups[at + 1 :])}"

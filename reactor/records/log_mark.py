"""Log mark: names a cluster's log storage, as etcd holds it.

v0.1.0 stores the mark as the storage has it, and compares the two when a capture starts. From format 2 on it is stored
with a word in front, which only newer captures take away: one of v0.1.0 finds another mark, and does not start.
"""

_WORD = b"format-2 "


def marked(stored: bytes | None) -> bytes | None:
    """As it is stored from format 2 on; doing it again changes nothing."""
    return stored if stored is None or stored.startswith(_WORD) else _WORD + stored


def mark_of(stored: bytes) -> str:
    """What the storage's own mark must be."""
    return stored.removeprefix(_WORD).decode(errors="replace")

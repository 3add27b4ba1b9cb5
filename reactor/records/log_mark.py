"""Log mark: identifies a cluster's log storage in etcd.

v0.1.0 stores the same mark as the storage, and compares the two when a capture starts. From format 2 on it is stored
with a prefix that only newer captures remove: a capture of v0.1.0 finds another mark, and does not start.
"""

_WORD = b"format-2 "


def marked(stored: bytes | None) -> bytes | None:
    """Return the mark as stored from format 2 on; idempotent."""
    return stored if stored is None or stored.startswith(_WORD) else _WORD + stored


def mark_of(stored: bytes) -> str:
    """Return the expected mark of the storage."""
    return stored.removeprefix(_WORD).decode(errors="replace")

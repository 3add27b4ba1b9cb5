"""Parts: divides the files of a table's version among several readers."""

from collections.abc import Iterable


def parted(sizes: Iterable[tuple[str, int]], bytes_max: int) -> list[tuple[str, ...]]:
    """Return consecutive files (name, bytes) in parts of about ``bytes_max``, at least one file each."""
    parts: list[list[str]] = []
    room = 0
    for name, size in sizes:
        if not parts or size > room:
            parts.append([])
            room = bytes_max
        parts[-1].append(name)
        room -= size
    return [tuple(part) for part in parts]

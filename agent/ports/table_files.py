"""Table files: what a table in the sink consists of, as its metadata has it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TableFiles:
    """The data files that readers of a table see now. ``rows``: those that the files contain, deleted ones included;
    ``deleted_rows``: how many of these are deleted, None if the table does not say. ``compacted_time``: when files were
    last joined or rewritten (Unix seconds), 0 if never, or not known."""

    files: int = 0
    bytes: int = 0
    rows: int = 0
    deleted_rows: int | None = 0
    compacted_time: float = 0.0

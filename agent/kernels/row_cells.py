"""Row cells: the columns of a row event's line, in the table that a stream's kernels fill and its readers read.

``OFFSET`` and ``LENGTH``: where the event's bytes are. ``SLOT``: the number of its table. ``COMMIT_TS``, ``SEQ``
(ordinal) and ``COMMIT_TIME`` (Unix microseconds): of its transaction.
"""

OFFSET, LENGTH, SLOT, COMMIT_TS, SEQ, COMMIT_TIME, ROW_CELLS = range(7)

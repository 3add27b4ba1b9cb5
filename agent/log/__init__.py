"""Change log: its segments, head, readers and storage, and the removal of segments that are no longer needed."""

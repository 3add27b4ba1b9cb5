"""Change log: its segments, its head, its readers, its storage and the removal of what nobody needs."""

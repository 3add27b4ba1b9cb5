"""Iceberg upkeep: what is done for a table beside its flushes."""

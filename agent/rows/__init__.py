"""Rows: schemas, changes and batches as values, and pure functions over whole columns."""

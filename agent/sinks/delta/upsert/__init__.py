"""Upserts: the methods of writing net changes into a Delta table."""

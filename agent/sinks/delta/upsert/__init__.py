"""Upserts: the ways of writing net changes into a Delta table."""

"""Filters: which tables, changes and columns pass."""

"""Filters: select the tables, changes and columns that are replicated."""

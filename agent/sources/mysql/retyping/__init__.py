"""Retyping: converts values of a column whose type changes, like the server."""

"""Decoding of MySQL's binary JSON."""

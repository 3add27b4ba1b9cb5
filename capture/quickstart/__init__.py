"""Quickstart: the demonstration and its load."""

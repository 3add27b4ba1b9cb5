"""Comparisons: source and sink compared at one position, and rows that differ made equal."""

"""Soak test: random schema changes and rows at real servers, captures that are killed, and comparisons in between."""

"""Soak test: random schema changes and rows on real servers, killed captures, and comparisons in between."""

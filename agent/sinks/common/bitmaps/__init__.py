"""Bitmaps: sets of row positions, as both table formats store them."""

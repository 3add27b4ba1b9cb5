"""Decoding of row events to Arrow."""
